"""Active states: one private, writable slot a running request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kdalab.errors import KdalabError
from kdalab.memory.slots import SlotAllocator

POISON = float("nan")
"""Free slots are filled with this, so that a stale or unwritten read shows at once."""


class StateBuffers:
    """Recurrent and conv state of ``n`` slots; the two always move together.

    Shapes: ``recurrent`` [slot, KDA layer, value head, V, K], V-first, fp32 (or fp64);
    ``conv`` [slot, KDA layer, W-1 inputs, q|k|v channel] (the model's dtype).
    """

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        name: str = "states",
    ) -> None:
        self.slots = SlotAllocator(n, name)
        self.fill: float | None = POISON  # what freed slots are overwritten with; None: nothing
        wide = torch.promote_types(dtype, torch.float32)
        self.recurrent = torch.full((n, *recurrent_shape), POISON, dtype=wide)
        self.conv = torch.full((n, *conv_shape), POISON, dtype=dtype)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot: every KDA layer's recurrent and conv state."""
        return self.recurrent[0].nbytes + self.conv[0].nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.recurrent.nbytes + self.conv.nbytes

    def read(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent, conv) of one slot, as copies: no caller can write through them."""
        self.slots.owner(slot)
        return self.recurrent[slot].clone(), self.conv[slot].clone()

    def is_finite(self, slot: int) -> bool:
        """False when a slot holds poison, or a state that has overflowed."""
        return bool(self.recurrent[slot].isfinite().all() and self.conv[slot].isfinite().all())

    def poison(self, slots: Sequence[int]) -> None:
        """Overwrite the bytes of freed slots."""
        if slots and self.fill is not None:
            index = torch.tensor(list(slots))
            self.recurrent[index] = self.fill
            self.conv[index] = self.fill


class ActivePool(StateBuffers):
    """Private slots. Only the owner writes; see ``write``."""

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(n, recurrent_shape, conv_shape, dtype, "active states")

    def allocate(self, owner: str) -> int:
        """One slot for ``owner``; its bytes are poison until ``write`` or ``clear``."""
        return self.slots.allocate(owner)[0]

    def clear(self, slot: int, owner: str) -> None:
        """The state before the first token: zeros."""
        self._check_writer(slot, owner)
        self.recurrent[slot] = 0.0
        self.conv[slot] = 0.0

    def write(self, slot: int, recurrent: torch.Tensor, conv: torch.Tensor, owner: str) -> None:
        """Overwrite both states of one slot.

        Raises:
            KdalabError: ``owner`` does not own the slot, or a state has another shape or dtype
                than the pool. Nothing was written.
        """
        self._check_writer(slot, owner)
        # Both before either: a state is never half overwritten.
        self._check_state("recurrent", recurrent, self.recurrent)
        self._check_state("conv", conv, self.conv)
        self.recurrent[slot] = recurrent
        self.conv[slot] = conv

    def free(self, slot: int, owner: str) -> None:
        """Give the slot back and poison it."""
        self.slots.free([slot], owner)
        self.poison([slot])

    @staticmethod
    def _check_state(name: str, state: torch.Tensor, pool: torch.Tensor) -> None:
        if state.shape != pool.shape[1:] or state.dtype != pool.dtype:
            raise KdalabError(
                f"a {name} state {list(state.shape)} of {state.dtype}; a slot holds "
                f"{list(pool.shape[1:])} of {pool.dtype}"
            )

    def _check_writer(self, slot: int, owner: str) -> None:
        holder = self.slots.owner(slot)
        if holder != owner:
            raise KdalabError(
                f"active slot {slot} belongs to {holder or 'nobody'}; {owner} must not write it"
            )
