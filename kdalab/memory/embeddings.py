"""Encoder outputs by image: objects of their own kind, with a life of their own.

An embedding is neither latent KV nor a summary: it belongs to an image, not to a prefix, and is
needed only while its positions are computed. Shared ones stay for the next prompt with the same
image until their bytes are wanted; private ones go with their only reader.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch

from kdalab.errors import InvariantError, KdalabError
from kdalab.spec import StateKind


@dataclass(slots=True)
class Embedding:
    """One image's output [position, hidden] and how many read it now."""

    tensor: torch.Tensor
    shared: bool
    readers: int = 0

    kind = StateKind.EMBEDDING


class EmbeddingPool:
    """Embeddings by the hash of their image, within a number of bytes; the longest unused goes
    first, one that is read never."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise KdalabError(f"an embedding pool of {limit_bytes} bytes; at least 1")
        self.limit_bytes = limit_bytes
        self.held: OrderedDict[bytes, Embedding] = OrderedDict()
        self.hits = self.misses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(e.tensor.nbytes for e in self.held.values())

    @property
    def readers(self) -> int:
        """Reads that have not ended."""
        return sum(e.readers for e in self.held.values())

    def take(self, digest: bytes) -> torch.Tensor | None:
        """The embedding of an image, held until ``give_back``; None when it is not here."""
        found = self.held.get(digest)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        found.readers += 1
        self.held.move_to_end(digest)
        return found.tensor

    def put(self, digest: bytes, tensor: torch.Tensor, shared: bool = True) -> torch.Tensor:
        """Keep an embedding and take it; one that is here already stays as it is.

        Raises:
            KdalabError: no room: all that is here is being read. Nothing has changed.
        """
        found = self.held.get(digest)
        if found is None:
            self._make_room(tensor.nbytes)
            found = self.held[digest] = Embedding(tensor, shared)
        found.readers += 1
        return found.tensor

    def give_back(self, digest: bytes) -> None:
        """End one read; a private embedding goes with its last.

        Raises:
            KdalabError: nobody reads it.
        """
        found = self.held.get(digest)
        if found is None or not found.readers:
            raise KdalabError("an embedding is given back that nobody reads")
        found.readers -= 1
        if not found.readers and not found.shared:
            del self.held[digest]

    def check(self) -> None:
        """Bytes within the limit, no negative readers, no private one without a reader."""
        if self.nbytes > self.limit_bytes:
            raise InvariantError(f"embeddings: {self.nbytes:,} bytes of {self.limit_bytes:,}")
        for found in self.held.values():
            if found.readers < 0 or (not found.shared and not found.readers):
                raise InvariantError("embeddings: a private one without a reader")

    def _make_room(self, need: int) -> None:
        unread = [d for d, e in self.held.items() if not e.readers]
        free = self.limit_bytes - self.nbytes
        could = free + sum(self.held[d].tensor.nbytes for d in unread)
        if need > could:
            raise KdalabError(f"an embedding of {need:,} bytes; {could:,} can be had now")
        for digest in unread:
            if free >= need:
                return
            free += self.held.pop(digest).tensor.nbytes
