"""What one process takes, at most. Every number a client sends is held against one of these."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kdalab.errors import KdalabError


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes and tokens, times in seconds.

    ``connections`` may be open at once (503 beyond), ``requests`` run or wait at once (429
    beyond), and ``queue_s`` is how long one may wait for a slot (503 after). ``body_s`` is how
    long the body of a request may take, ``send_s`` how long a reader may leave one piece of an
    answer unread, ``piece_s`` how long the next piece of a state may take, ``request_s`` how long
    a whole request may take.

    Raises:
        KdalabError: a number that is not positive.
    """

    body_bytes: int = 1 << 20
    header_bytes: int = 16 << 10
    header_count: int = 64
    prompt_tokens: int = 4096
    new_tokens: int = 1024
    piece_bytes: int = 64 << 20
    image_pixels: int = 256 * 256
    images: int = 8
    embedding_bytes: int = 64 << 20
    connections: int = 128
    requests: int = 32
    transfers: int = 16
    queue_s: float = 10.0
    body_s: float = 10.0
    send_s: float = 20.0
    piece_s: float = 20.0
    request_s: float = 300.0
    connect_s: float = 2.0
    retries: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "retries" else 1e-3
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise KdalabError(f"limit {field.name} = {value!r}; it must be positive")
