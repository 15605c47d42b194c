"""A small vision encoder: patches, a merge of neighbours, a projector. Its weights are random.

It has the parts of a real one (patch embedding with positions, 2 x 2 merge, projector into the
language model's space), so that an image costs what images cost: positions, bytes, a hash. It
recognises nothing.
"""

from __future__ import annotations

import hashlib
import math

import torch

from kdalab.errors import KdalabError

PATCH, MERGE, WIDTH = 8, 2, 64
CELL_PIXELS = PATCH * MERGE
"""Height and width of an image are multiples of this; each such square is one position."""

VERSION = "kdalab-vision-1"


def n_positions(height: int, width: int) -> int:
    """Positions that an image takes in a prompt.

    Raises:
        KdalabError: sides that are no positive multiples of ``CELL_PIXELS``.
    """
    for name, side in (("height", height), ("width", width)):
        if type(side) is not int or side < 1 or side % CELL_PIXELS:
            raise KdalabError(
                f"{name} = {side!r}; an image's sides are multiples of {CELL_PIXELS} pixels"
            )
    return (height // CELL_PIXELS) * (width // CELL_PIXELS)


def image_digest(pixels: bytes, height: int, width: int, encoder: str, salt: bytes = b"") -> bytes:
    """The 16-byte hash of an image as one encoder sees it; a salt makes it nobody else's.

    Raises:
        KdalabError: other than height x width x 3 bytes.
    """
    n_positions(height, width)
    if len(pixels) != height * width * 3:
        raise KdalabError(
            f"{len(pixels):,} bytes for an image of {height} x {width}; RGB has "
            f"{height * width * 3:,}"
        )
    running = hashlib.blake2b(digest_size=16)
    for part in (encoder.encode(), b"%d %d" % (height, width), salt, pixels):
        running.update(len(part).to_bytes(8, "little") + part)
    return running.digest()


class VisionEncoder:
    """RGB bytes to embeddings [position, hidden].

    Args:
        hidden: of the language model.
        seed: of the weights; equal seeds give equal bits.
    """

    def __init__(self, hidden: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self.hidden, self.seed, self.dtype = hidden, seed, dtype
        random = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int) -> torch.Tensor:
            values = torch.randn(rows, columns, generator=random, dtype=torch.float64)
            return (values / math.sqrt(columns)).to(torch.float32)

        self.patch = weight(WIDTH, 3 * PATCH * PATCH)
        self.up = weight(2 * WIDTH, MERGE * MERGE * WIDTH)
        self.down = weight(hidden, 2 * WIDTH)

    @property
    def fingerprint(self) -> str:
        """What an image's hash and an embedding's identity say of the encoder."""
        return encoder_fingerprint(self.hidden, self.seed, self.dtype)

    @torch.inference_mode()
    def encode(self, pixels: bytes, height: int, width: int) -> torch.Tensor:
        """[position, hidden], row by row of the image.

        Raises:
            KdalabError: sides or a number of bytes that are not allowed.
        """
        image_digest(pixels, height, width, "")
        raw = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
        x = (raw.view(height, width, 3).float() / 127.5 - 1).permute(2, 0, 1)
        rows, columns = height // PATCH, width // PATCH
        x = x.reshape(3, rows, PATCH, columns, PATCH).permute(1, 3, 0, 2, 4)
        x = x.reshape(rows, columns, -1) @ self.patch.T + _positions(rows, columns)
        x = torch.nn.functional.gelu(x)
        x = x.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, WIDTH)
        x = x.permute(0, 2, 1, 3, 4).reshape(-1, MERGE * MERGE * WIDTH)
        x = torch.nn.functional.layer_norm(x, x.shape[-1:])
        x = torch.nn.functional.gelu(x @ self.up.T) @ self.down.T
        return torch.nn.functional.layer_norm(x, x.shape[-1:]).to(self.dtype)


def encoder_fingerprint(hidden: int, seed: int, dtype: torch.dtype) -> str:
    """SHA-256, in hex, of what decides an encoder's output."""
    text = f"{VERSION} hidden {hidden} seed {seed} {dtype} patch {PATCH} merge {MERGE} {WIDTH}"
    return hashlib.sha256(text.encode()).hexdigest()


def _positions(rows: int, columns: int) -> torch.Tensor:
    """[row, column, WIDTH]: sines of both coordinates, so that order matters."""
    rates = torch.exp(-math.log(1e4) * torch.arange(WIDTH // 4) / (WIDTH // 4))
    y = torch.arange(rows)[:, None] * rates
    x = torch.arange(columns)[:, None] * rates
    vertical = torch.cat([y.sin(), y.cos()], -1)[:, None].expand(rows, columns, -1)
    horizontal = torch.cat([x.sin(), x.cos()], -1)[None].expand(rows, columns, -1)
    return torch.cat([vertical, horizontal], -1)
