"""Checkpoints: frozen copies of a recurrent + conv state, shared and read-only once stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kdalab.errors import InvariantError, KdalabError
from kdalab.memory.active import ActivePool, StateBuffers
from kdalab.memory.slots import CACHE
from kdalab.spec.checkpoint import Checkpoint


class CheckpointPool(StateBuffers):
    """Slots in the active pool's own dtype, so that a restore is a plain copy: exact.

    There is no ``write``. Bytes come in through ``store`` into a slot just allocated and go out
    through ``load``; in between nothing can change them.
    """

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(n, recurrent_shape, conv_shape, dtype, "checkpoints")
        self._boundary: list[int | None] = [None] * n

    def store(self, active: ActivePool, slot: int, boundary: int, owner: str) -> Checkpoint:
        """Freeze active slot ``slot``, which has seen ``boundary`` tokens.

        The checkpoint belongs to the cache from the start.

        Raises:
            OutOfSlotsError: no slot is free.
            KdalabError: ``owner`` does not own the active slot, or it holds no finite state.
        """
        if active.slots.owner(slot) != owner:
            raise KdalabError(f"active slot {slot} does not belong to {owner}")
        if not active.is_finite(slot):
            raise KdalabError(f"active slot {slot} of {owner} holds no finite state to freeze")
        (target,) = self.slots.allocate(CACHE)
        self.recurrent[target] = active.recurrent[slot]
        self.conv[target] = active.conv[slot]
        self._boundary[target] = boundary
        return Checkpoint(target, boundary)

    def load(self, checkpoint: Checkpoint, active: ActivePool, slot: int, owner: str) -> None:
        """Copy a checkpoint into ``owner``'s private slot (copy-on-write, made at once)."""
        held = self.boundary(checkpoint.slot)
        if held != checkpoint.boundary:
            raise InvariantError(
                f"checkpoint slot {checkpoint.slot} holds a state of {held} tokens, "
                f"not of {checkpoint.boundary}"
            )
        active.write(slot, self.recurrent[checkpoint.slot], self.conv[checkpoint.slot], owner)

    def boundary(self, slot: int) -> int | None:
        """Tokens that the state in ``slot`` has seen; None when the slot is free."""
        self.slots.owner(slot)
        return self._boundary[slot]

    def free(self, slots: Sequence[int]) -> None:
        """Give slots back and poison them."""
        self.slots.free(slots, CACHE)
        for slot in slots:
            self._boundary[slot] = None
        self.poison(slots)

    def check(self) -> None:
        """Conservation, and a boundary for just the slots in use."""
        self.slots.check()
        for slot, owner in enumerate(self.slots.owners()):
            if (owner is None) != (self._boundary[slot] is None):
                raise InvariantError(
                    f"checkpoint slot {slot}: owner {owner}, but its boundary is "
                    f"{self._boundary[slot]}"
                )
