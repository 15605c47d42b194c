"""Pieces of a state on their way: latent KV while prefill goes on, and at last the state.

A piece is a frame: four letters, the CRC-32 of the rest, its length, and a safetensors container
whose metadata says whose state it is, of which prefix, and which tokens. Nothing in it is
executed, every number is checked before it is used, and a frame that is damaged anywhere (also
in its metadata) is found by its checksum before anything of it is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kdalab.errors import KdalabError
from kdalab.transfer.checksum import Buffer
from kdalab.transfer.container import bytes_of, header_bytes, read_header, read_tensor
from kdalab.transfer.metadata import Boundary, Hex32, Hex64, PrefixMeta

MAGIC = b"KDP1"
HEAD = struct.Struct("<4sIQ")
"""Letters, CRC-32 of the length and of all that follows, bytes that follow."""

MAX_PIECES = 1 << 20

Count = Annotated[int, Field(ge=0, le=MAX_PIECES)]


class PieceError(KdalabError):
    """A piece that is damaged, or of another transfer, identity or prefix. Nothing was used."""


class PieceMeta(BaseModel):
    """What a piece says of itself.

    ``prefix`` is the hash of the prompt's first ``end`` tokens, so that what is written at
    [start, end) is of this very text. ``count`` is the number of pieces of the whole transfer,
    known with the state. An ``embedding`` is of an encoder (``identity``) and an ``image``, its
    ``boundary`` the positions it has. A piece of kind ``waiting`` carries nothing: the prompt waits
    its turn in an engine that works. A piece of kind ``error`` ends the transfer with a reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["kdalab-piece"] = "kdalab-piece"
    version: Literal[1] = 1
    transfer: Hex32
    seq: Count
    kind: Literal["latent", "state", "embedding", "waiting", "error"]
    identity: Hex64
    boundary: Boundary
    start: Annotated[int, Field(ge=0)] = 0
    end: Annotated[int, Field(ge=0)] = 0
    prefix: PrefixMeta | None = None
    count: Count | None = None
    first: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    image: Hex32 | None = None
    code: Annotated[str, Field(max_length=40)] = ""
    message: Annotated[str, Field(max_length=2000)] = ""


class Piece(NamedTuple):
    """Metadata and tensors: ``latent`` [MLA layer, token, channel], or ``recurrent`` and ``conv``
    of every KDA layer."""

    meta: PieceMeta
    tensors: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(t.nbytes for t in self.tensors.values())


NAMES = {
    "latent": {"latent"},
    "state": {"recurrent", "conv"},
    "embedding": {"embeddings"},
    "waiting": set(),
    "error": set(),
}


def write_piece(meta: PieceMeta, tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The frame."""
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    parts: list[Buffer] = [
        header_bytes(meta.model_dump_json(), plain),
        *(bytes_of(t) for t in plain.values() if t.nbytes),
    ]
    length = sum(memoryview(p).nbytes for p in parts)
    crc = zlib.crc32(struct.pack("<Q", length))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([HEAD.pack(MAGIC, crc, length), *parts])


def read_piece(frame: Buffer, limit: int) -> Piece:
    """The piece in a whole frame.

    Raises:
        PieceError: it is damaged, malformed or larger than ``limit`` bytes.
    """
    view = memoryview(frame)
    length, crc = read_head(view[: HEAD.size], limit)
    body = view[HEAD.size :]
    if len(body) != length:
        raise PieceError(f"a piece of {length:,} bytes has {len(body):,}: it was cut off")
    return read_body(body, crc)


def read_head(head: Buffer, limit: int) -> tuple[int, int]:
    """(bytes that follow, their checksum).

    Raises:
        PieceError: no head of a piece, or more bytes than ``limit``.
    """
    if len(head) < HEAD.size:
        raise PieceError(f"{len(head)} bytes where a piece's head of {HEAD.size} should be")
    magic, crc, length = HEAD.unpack(head)
    if magic != MAGIC:
        raise PieceError(f"{bytes(magic)!r} where a piece begins with {MAGIC!r}")
    if length > limit:
        raise PieceError(f"a piece of {length:,} bytes; at most {limit:,} are taken")
    return length, crc


def read_body(body: Buffer, crc: int) -> Piece:
    """What follows the head.

    Raises:
        PieceError: the checksum differs, or it is malformed.
    """
    got = zlib.crc32(body, zlib.crc32(struct.pack("<Q", len(body))))
    if got != crc:
        raise PieceError(
            f"checksum {got:08x}, sent as {crc:08x}: the bytes have changed on the way"
        )
    view = memoryview(body)
    try:
        container = read_header(view)
        meta = PieceMeta.model_validate_json(container.metadata)
        if set(container.entries) != NAMES[meta.kind]:
            raise PieceError(f"a piece of kind {meta.kind!r} with {sorted(container.entries)[:4]}")
        tensors = {name: read_tensor(view, container, name) for name in container.entries}
    except PieceError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        raise PieceError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except KdalabError as error:
        raise PieceError(str(error)) from None
    return Piece(meta, tensors)


async def read_pieces(stream: AsyncIterable[bytes], limit: int) -> AsyncIterator[Piece]:
    """The pieces of a stream of bytes that is cut anywhere; never more than one in memory.

    Raises:
        PieceError: as ``read_piece``, or the stream ends within a piece.
    """
    async for head, body in read_frames(stream, limit):
        yield read_body(body, head)


async def read_frames(
    stream: AsyncIterable[bytes], limit: int
) -> AsyncIterator[tuple[int, bytearray]]:
    """(checksum, body) of each frame, not yet looked into."""
    pending = bytearray()
    length, crc = -1, 0
    async for data in stream:
        pending += data
        while True:
            if length < 0:
                if len(pending) < HEAD.size:
                    break
                length, crc = read_head(bytes(pending[: HEAD.size]), limit)
                del pending[: HEAD.size]
            if len(pending) < length:
                break
            body = pending[:length]
            del pending[:length]
            length = -1
            yield crc, body
    if pending or length >= 0:
        raise PieceError("the stream ends within a piece: the connection was cut")
