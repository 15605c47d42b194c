"""Two levels of memory with the same pools on each, and copies between them.

The host's level has buffers of its own, with the device's page and slot shapes and dtypes. What is
copied is the stored form: an INT8 checkpoint goes down as its INT8 values, its scales and its conv
state, and comes back as the same bytes. So a state restored by way of the host is bit for bit the
one that was cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kdalab.errors import KdalabError
from kdalab.memory.checkpoints import CheckpointPool
from kdalab.memory.int8 import Int8CheckpointPool
from kdalab.memory.latent import LatentPool
from kdalab.memory.slots import CACHE, IN_FLIGHT

Pool = LatentPool | CheckpointPool | Int8CheckpointPool


class Level(NamedTuple):
    """The pages and checkpoints that the cache may hold on one level, device or host."""

    latents: LatentPool
    checkpoints: CheckpointPool | Int8CheckpointPool

    @property
    def nbytes(self) -> int:
        """Bytes of both pools."""
        return self.latents.nbytes + self.checkpoints.nbytes

    def bytes_of(self, pages: int, states: int) -> int:
        """Bytes of so many pages and checkpoints."""
        return pages * self.latents.page_bytes + states * self.checkpoints.slot_bytes

    def has_room(self, pages: int, state: bool) -> bool:
        """Whether so many pages, and a checkpoint slot if asked, are free."""
        free = self.latents.slots.n_free, self.checkpoints.slots.n_free
        return pages <= free[0] and int(state) <= free[1]

    def reserve(self, pages: int, state: bool) -> tuple[tuple[int, ...], int | None]:
        """Take targets for a transfer: (pages, slot or None); all or none.

        Raises:
            OutOfSlotsError: one of the pools has too few. Nothing was taken.
        """
        slots = self.checkpoints.slots.allocate(IN_FLIGHT, int(state))
        try:
            taken = self.latents.slots.allocate(IN_FLIGHT, pages)
        except BaseException:
            self.checkpoints.free(slots, IN_FLIGHT)
            raise
        return taken, slots[0] if slots else None

    def accept(self, pages: Sequence[int], slot: int | None, boundary: int) -> None:
        """The transfer is complete: its targets are the cache's, a state of ``boundary`` tokens."""
        self.latents.slots.transfer(pages, IN_FLIGHT, CACHE)
        if slot is not None:
            self.checkpoints.seal(slot, boundary, IN_FLIGHT)

    def discard(self, pages: Sequence[int], slot: int | None) -> None:
        """Targets that are not needed, or whose transfer failed, go back and are poisoned."""
        self.latents.free(pages, IN_FLIGHT)
        if slot is not None:
            self.checkpoints.free([slot], IN_FLIGHT)

    def free(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        """What the cache has given up goes back and is poisoned."""
        self.latents.free(pages, CACHE)
        self.checkpoints.free(slots)

    def free_is_poisoned(self) -> bool:
        """Nobody has written where nobody owns."""
        return self.latents.free_is_poisoned() and self.checkpoints.free_is_poisoned()


def host_level(n_pages: int, n_checkpoints: int, device: Level, poison: bool = True) -> Level:
    """Host memory for ``n_pages`` and ``n_checkpoints`` in the stored form of ``device``."""
    _, layers, page_tokens, dim = device.latents.data.shape
    latents = LatentPool(n_pages, layers, page_tokens, dim, device.latents.data.dtype)
    like = device.checkpoints
    conv, dtype = like.conv.shape[1:], like.conv.dtype
    checkpoints: CheckpointPool | Int8CheckpointPool
    if isinstance(like, Int8CheckpointPool):
        shape = like.q.shape[1:]
        checkpoints = Int8CheckpointPool(n_checkpoints, shape, conv, dtype, like.scale.dtype)
    else:
        checkpoints = CheckpointPool(n_checkpoints, like.recurrent.shape[1:], conv, dtype)
    latents.slots.name, checkpoints.slots.name = "host pages", "host checkpoints"
    if not poison:
        latents.fill, checkpoints.fill = None, None
    return Level(latents, checkpoints)


def copy_between(
    source: Level,
    target: Level,
    pages: tuple[Sequence[int], Sequence[int]],
    state: tuple[int, int] | None,
) -> None:
    """Copy pages and a state from one level to the other, as they are stored.

    Args:
        source: level whose entries belong to the cache.
        target: level whose entries belong to a transfer.
        pages: (numbers in the source, numbers in the target), as many of each.
        state: (slot in the source, slot in the target), or None.

    Raises:
        KdalabError: an entry has another owner. Nothing was written.
    """
    moves: list[tuple[Pool, Pool, Sequence[int], Sequence[int]]] = [
        (source.latents, target.latents, *pages)
    ]
    if state is not None:
        moves.append((source.checkpoints, target.checkpoints, state[:1], state[1:]))
    rows = [
        (a, b, _rows(a, here, CACHE), _rows(b, there, IN_FLIGHT)) for a, b, here, there in moves
    ]
    for a, b, here_rows, there_rows in rows:
        for mine, theirs in zip(a.parts, b.parts, strict=True):
            theirs[there_rows] = mine[here_rows]


def _rows(pool: Pool, numbers: Sequence[int], owner: str) -> torch.Tensor:
    """Rows of the pool's tensors where ``owner``'s entries lie now."""
    for number in numbers:
        holder = pool.slots.owner(number)
        if holder != owner:
            raise KdalabError(
                f"{pool.slots.name}: slot {number} belongs to {holder or 'nobody'}, not to {owner}"
            )
    return torch.tensor([pool.slots.place(n) for n in numbers], dtype=torch.long)
