"""Active states: one private, writable slot a running request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kdalab.errors import KdalabError
from kdalab.memory.slots import SlotAllocator

POISON = float("nan")
"""Free slots are filled with this, so that a stale or unwritten read shows at once."""


class StateStorage(NamedTuple):
    """Who owns which slot, and the bytes: what several pools may share.

    ``recurrent`` and ``conv`` are indexed by ``slots.place(slot)``.
    """

    slots: SlotAllocator
    recurrent: torch.Tensor
    conv: torch.Tensor


class StateBuffers:
    """Recurrent and conv state of ``n`` slots; the two always move together.

    Shapes: ``recurrent`` [slot, KDA layer, value head, V, K], V-first, fp32 (or fp64);
    ``conv`` [slot, KDA layer, W-1 inputs, q|k|v channel] (the model's dtype).

    Args:
        n: slots.
        recurrent_shape, conv_shape: of one slot.
        dtype: of the conv state; the recurrent one is at least fp32.
        name: what the pool is called in messages.
        storage: bytes and owners that live elsewhere (another pool's, or a unified buffer's);
            by default the pool allocates its own.
    """

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        name: str = "states",
        storage: StateStorage | None = None,
    ) -> None:
        self.fill: float | None = POISON  # what freed slots are overwritten with; None: nothing
        if storage is None:
            wide = torch.promote_types(dtype, torch.float32)
            storage = StateStorage(
                SlotAllocator(n, name),
                torch.full((n, *recurrent_shape), POISON, dtype=wide),
                torch.full((n, *conv_shape), POISON, dtype=dtype),
            )
        self.storage = storage
        self.slots, self.recurrent, self.conv = storage

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot: every KDA layer's recurrent and conv state."""
        return self.recurrent[0].nbytes + self.conv[0].nbytes

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that hold a state, row by row."""
        return self.recurrent, self.conv

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.recurrent.nbytes + self.conv.nbytes

    def read(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent, conv) of one slot, as copies: no caller can write through them."""
        row = self.slots.place(slot)
        return self.recurrent[row].clone(), self.conv[row].clone()

    def read_many(self, slots: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent, conv) of several slots, stacked in their order: [slot, ...] each."""
        rows = torch.tensor([self.slots.place(slot) for slot in slots], dtype=torch.long)
        return self.recurrent[rows], self.conv[rows]

    def is_finite(self, slot: int) -> bool:
        """False when a slot holds poison, or a state that has overflowed."""
        row = self.slots.place(slot)
        return bool(self.recurrent[row].isfinite().all() and self.conv[row].isfinite().all())

    def poison(self, slots: Sequence[int]) -> None:
        """Overwrite the bytes of freed slots."""
        if slots and self.fill is not None and not self.slots.moves:
            index = torch.tensor(list(slots))
            self.recurrent[index] = self.fill
            self.conv[index] = self.fill

    def free_is_poisoned(self) -> bool:
        """Nobody has written where nobody owns."""
        if self.slots.moves:
            return True  # the unified buffer answers for all of its bytes
        free = [i for i, owner in enumerate(self.slots.owners()) if owner is None]
        index = torch.tensor(free, dtype=torch.long)
        return all(bool(torch.isnan(t[index]).all()) for t in (self.recurrent, self.conv))


class ActivePool(StateBuffers):
    """Private slots. Only the owner writes; see ``write``."""

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        storage: StateStorage | None = None,
    ) -> None:
        super().__init__(n, recurrent_shape, conv_shape, dtype, "active states", storage)

    def allocate(self, owner: str) -> int:
        """One slot for ``owner``; its bytes are poison until ``write`` or ``clear``."""
        return self.slots.allocate(owner)[0]

    def clear(self, slot: int, owner: str) -> None:
        """The state before the first token: zeros."""
        row = self._writable(slot, owner)
        self.recurrent[row] = 0.0
        self.conv[row] = 0.0

    def write(self, slot: int, recurrent: torch.Tensor, conv: torch.Tensor, owner: str) -> None:
        """Overwrite both states of one slot.

        Raises:
            KdalabError: ``owner`` does not own the slot, or a state has another shape or dtype
                than the pool. Nothing was written.
        """
        row = self._writable(slot, owner)
        # Both before either: a state is never half overwritten.
        self._check_state("recurrent", recurrent[None], self.recurrent)
        self._check_state("conv", conv[None], self.conv)
        self.recurrent[row] = recurrent
        self.conv[row] = conv

    def write_many(
        self,
        slots: Sequence[int],
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        owners: Sequence[str],
    ) -> None:
        """Overwrite both states of several slots: [slot, ...] each, and each slot's owner.

        The states must not lie in this pool themselves.

        Raises:
            KdalabError: as ``write``; or a slot is named twice. Nothing was written.
        """
        if not len(set(slots)) == len(slots) == len(owners) == len(recurrent) == len(conv):
            raise KdalabError(
                f"{len(recurrent)} and {len(conv)} states of {len(owners)} owners for slots "
                f"{list(slots)}; give as many of each, and each slot once"
            )
        pairs = zip(slots, owners, strict=True)
        rows = torch.tensor([self._writable(slot, owner) for slot, owner in pairs])
        self._check_state("recurrent", recurrent, self.recurrent)
        self._check_state("conv", conv, self.conv)
        self.recurrent[rows] = recurrent
        self.conv[rows] = conv

    def free(self, slot: int, owner: str) -> None:
        """Give the slot back and poison it."""
        self.slots.free([slot], owner)
        self.poison([slot])

    @staticmethod
    def _check_state(name: str, state: torch.Tensor, pool: torch.Tensor) -> None:
        if state.shape[1:] != pool.shape[1:] or state.dtype != pool.dtype:
            raise KdalabError(
                f"a {name} state {list(state.shape[1:])} of {state.dtype}; a slot holds "
                f"{list(pool.shape[1:])} of {pool.dtype}"
            )

    def _writable(self, slot: int, owner: str) -> int:
        holder = self.slots.owner(slot)
        if holder != owner:
            raise KdalabError(
                f"active slot {slot} belongs to {holder or 'nobody'}; {owner} must not write it"
            )
        return self.slots.place(slot)
