"""Checkpoints: frozen copies of a recurrent + conv state, shared and read-only once stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kdalab.errors import InvariantError, KdalabError, NotFiniteError
from kdalab.memory.active import ActivePool, StateBuffers, StateStorage
from kdalab.memory.slots import CACHE, SlotAllocator
from kdalab.spec.checkpoint import Checkpoint


class Boundaries:
    """Which slots hold a checkpoint, and of how many tokens: what every checkpoint pool keeps."""

    slots: SlotAllocator
    last_error = 0.0
    """Largest |difference| that the last ``store`` made; exact pools make none."""

    def __init__(self, n: int) -> None:
        self._boundary: list[int | None] = [None] * n

    def boundary(self, slot: int) -> int | None:
        """Tokens that the state in ``slot`` has seen; None when no checkpoint is there."""
        self.slots.owner(slot)
        return self._boundary[slot]

    def seal(self, slot: int, boundary: int, owner: str) -> Checkpoint:
        """``owner``'s slot becomes a checkpoint of ``boundary`` tokens as it stands.

        Raises:
            KdalabError: the slot is not ``owner``'s.
        """
        self.slots.transfer([slot], owner, CACHE)
        self._boundary[slot] = boundary
        return Checkpoint(slot, boundary)

    def unseal(self, checkpoint: Checkpoint, owner: str) -> None:
        """Undo ``seal``: the slot is ``owner``'s again, as it stands."""
        self.slots.transfer([checkpoint.slot], CACHE, owner)
        self._boundary[checkpoint.slot] = None

    def require(self, checkpoint: Checkpoint) -> None:
        """Raise ``InvariantError`` unless the slot holds a state of just that boundary."""
        held = self.boundary(checkpoint.slot)
        if held != checkpoint.boundary:
            raise InvariantError(
                f"checkpoint slot {checkpoint.slot} holds a state of {held} tokens, "
                f"not of {checkpoint.boundary}"
            )

    def check(self) -> None:
        """Conservation, and a boundary for just the slots that belong to the cache."""
        self.slots.check()
        for slot, owner in enumerate(self.slots.owners()):
            if (owner == CACHE) != (self._boundary[slot] is not None):
                raise InvariantError(
                    f"checkpoint slot {slot}: owner {owner}, but its boundary is "
                    f"{self._boundary[slot]}"
                )


def require_finite(active: ActivePool, slot: int, owner: str) -> None:
    """Refuse to freeze a state that is not ``owner``'s, or is no state."""
    if active.slots.owner(slot) != owner:
        raise KdalabError(f"active slot {slot} does not belong to {owner}")
    if not active.is_finite(slot):
        raise NotFiniteError(f"active slot {slot} of {owner} holds no finite state to freeze")


class CheckpointPool(Boundaries, StateBuffers):
    """Slots in the active pool's own dtype, so that a restore is a plain copy: exact.

    There is no ``write``. Bytes come in through ``store`` into a slot just allocated, or with a
    slot that its owner gives up (``adopt``), and go out through ``load``; in between nothing can
    change them.
    """

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        storage: StateStorage | None = None,
    ) -> None:
        StateBuffers.__init__(self, n, recurrent_shape, conv_shape, dtype, "checkpoints", storage)
        Boundaries.__init__(self, self.slots.n)

    @classmethod
    def sharing(cls, active: ActivePool) -> CheckpointPool:
        """Checkpoints in the very slots of ``active``: a slot changes its owner, not its place."""
        return cls(
            active.slots.n,
            active.recurrent.shape[1:],
            active.conv.shape[1:],
            active.conv.dtype,
            active.storage,
        )

    def store(self, active: ActivePool, slot: int, boundary: int, owner: str) -> Checkpoint:
        """Freeze active slot ``slot``, which has seen ``boundary`` tokens.

        The checkpoint belongs to the cache from the start.

        Raises:
            OutOfSlotsError: no slot is free.
            KdalabError: ``owner`` does not own the active slot.
            NotFiniteError: it holds no finite state. Whatever is raised, nothing was taken.
        """
        require_finite(active, slot, owner)
        (target,) = self.slots.allocate(CACHE)
        try:
            # Places are asked for after the allocation, which may move slots of a unified buffer.
            there, here = self.slots.place(target), active.slots.place(slot)
            self.recurrent[there] = active.recurrent[here]
            self.conv[there] = active.conv[here]
        except BaseException:
            self.free([target])
            raise
        self._boundary[target] = boundary
        return Checkpoint(target, boundary)

    def adopt(self, slot: int, boundary: int, owner: str) -> Checkpoint:
        """Take over ``owner``'s slot as a checkpoint (a donation): no byte is copied or read.

        Only for a pool that shares its slots with the active one. Who calls vouches for the
        state; ``store`` looks at it, which costs as much as the copy that is saved here.

        Raises:
            KdalabError: the slot is not ``owner``'s.
        """
        return self.seal(slot, boundary, owner)

    def load(self, checkpoint: Checkpoint, active: ActivePool, slot: int, owner: str) -> None:
        """Copy a checkpoint into ``owner``'s private slot (copy-on-write)."""
        self.require(checkpoint)
        row = self.slots.place(checkpoint.slot)
        active.write(slot, self.recurrent[row], self.conv[row], owner)

    def free(self, slots: Sequence[int], owner: str = CACHE) -> None:
        """Give slots back and poison them."""
        self.slots.free(slots, owner)
        for slot in slots:
            self._boundary[slot] = None
        self.poison(slots)
