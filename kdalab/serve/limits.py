"""What one process takes, at most. Every number a client sends is held against one of these."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kdalab.errors import KdalabError


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes and tokens, times in seconds.

    ``connections`` may be open at once: beyond, those that ask nothing are closed, and when all
    ask something the next gets 503. ``requests`` run or wait at once (429 beyond), and
    ``queue_s`` is how long one may wait for a slot here (503 after) or for a prefill process that
    takes no more (429 after). ``head_s`` is how long a connection may take to say what it wants,
    ``body_s`` how long the body of a request may take, ``send_s`` how long a reader may leave one
    piece of an answer unread, ``piece_s`` how long the next piece of a state (or word that it
    waits its turn) may take, ``request_s`` how long a whole request may take.

    Raises:
        KdalabError: a number that is not positive and finite, or a size that is no whole number.
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
    head_s: float = 10.0
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
            kinds = int | float if field.name.endswith("_s") else int
            if isinstance(value, bool) or not isinstance(value, kinds):
                what = "a number" if field.name.endswith("_s") else "a whole number"
                raise KdalabError(f"limit {field.name} = {value!r}; it must be {what}")
            if not least <= value < math.inf:
                raise KdalabError(f"limit {field.name} = {value!r}; it must be positive and finite")
