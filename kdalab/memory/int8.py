"""INT8 checkpoints: the recurrent state quantised once a snapshot, the conv state as it is.

KDA decays every key channel by its own factor, so the values of one key channel have one
magnitude. The scale is therefore taken over V: one per (layer, slot, head, key channel), as
SGLang's INT8 checkpoint pool does. The rounding happens once for each snapshot and never inside
the recurrence, so it cannot accumulate; ``Faults.quantise_in_recurrence`` shows what happens
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kdalab.errors import KdalabError
from kdalab.memory.active import POISON, ActivePool
from kdalab.memory.checkpoints import Boundaries, require_finite
from kdalab.memory.slots import CACHE, SlotAllocator
from kdalab.spec.checkpoint import Checkpoint
from kdalab.units import format_bytes

QMAX = 127
"""Largest magnitude of a quantised value: symmetric, no zero point."""

FLOOR = 1e-8
"""Least channel maximum: a channel of zeros gets a scale, and all its values are 0."""

FREED = -128
"""What freed INT8 bytes hold. The clamp to +-127 can never make it."""

SCALE_DTYPES = (torch.float32, torch.bfloat16)


def quantise(
    state: torch.Tensor, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """(q, scale) of a recurrent state [.., V, K]: q int8 [.., V, K], scale [.., 1, K].

    ``scale = max over V of |state| / 127``, rounded to the dtype that it is stored in *before*
    it divides, so that writer and reader use the very same number. Ties go to even.

    Raises:
        KdalabError: a scale dtype whose range is too small.
    """
    if scale_dtype not in SCALE_DTYPES:
        raise KdalabError(
            f"scales in {scale_dtype}: a channel whose largest value is below 3.8e-6 would read "
            "back as 0. Use torch.float32 or torch.bfloat16"
        )
    wide = state.float()
    scale = (wide.abs().amax(-2, keepdim=True).clamp_min(FLOOR) / QMAX).to(scale_dtype)
    q = torch.round(wide / scale.float()).clamp_(-QMAX, QMAX).to(torch.int8)
    return q, scale


def dequantise(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``q * scale``, computed in fp32, then cast to the active pool's dtype."""
    return (q.float() * scale.float()).to(dtype)


def int8_slot_bytes(
    recurrent_shape: Sequence[int],
    conv_shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    scale_dtype: torch.dtype = torch.float32,
) -> int:
    """Bytes of one INT8 checkpoint: q, its scales, and the conv state in ``dtype``."""
    *lead, v, k = recurrent_shape
    channels = math.prod(lead) * k
    return channels * v + channels * scale_dtype.itemsize + math.prod(conv_shape) * dtype.itemsize


class Int8CheckpointPool(Boundaries):
    """As ``CheckpointPool``, in about a quarter of the bytes, and exact to one rounding.

    Shapes: ``q`` int8 [slot, KDA layer, value head, V, K]; ``scale`` [slot, KDA layer, value
    head, 1, K]; ``conv`` [slot, KDA layer, W-1 inputs, q|k|v channel], untouched.

    Args:
        n: slots.
        recurrent_shape, conv_shape: of one slot.
        dtype: of the conv state.
        scale_dtype: fp32 or bf16.
        limit: bytes that may be allocated; None for no limit.

    Raises:
        KdalabError: the estimate of the bytes exceeds ``limit``. Nothing was allocated.
    """

    def __init__(
        self,
        n: int,
        recurrent_shape: Sequence[int],
        conv_shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        scale_dtype: torch.dtype = torch.float32,
        limit: int | None = None,
    ) -> None:
        self.slots = SlotAllocator(n, "checkpoints")
        Boundaries.__init__(self, n)
        one = int8_slot_bytes(recurrent_shape, conv_shape, dtype, scale_dtype)
        if limit is not None and n * one > limit:
            raise KdalabError(
                f"{n:,} INT8 checkpoints of {one:,} bytes need {format_bytes(n * one)}; "
                f"{format_bytes(limit)} are available. {limit // one:,} would fit"
            )
        self.fill: float | None = POISON
        wide = torch.promote_types(dtype, torch.float32)
        self.state_dtype = wide
        channels = (*recurrent_shape[:-2], 1, recurrent_shape[-1])
        self.q = torch.full((n, *recurrent_shape), FREED, dtype=torch.int8)
        self.scale = torch.full((n, *channels), POISON, dtype=scale_dtype)
        self.conv = torch.full((n, *conv_shape), POISON, dtype=dtype)
        if self.nbytes != n * one:
            raise AssertionError(f"estimated {n * one:,} bytes, allocated {self.nbytes:,}")

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.q[0].nbytes + self.scale[0].nbytes + self.conv[0].nbytes

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors that hold a checkpoint, row by row, as it is stored."""
        return self.q, self.scale, self.conv

    @property
    def nbytes(self) -> int:
        """Bytes of the pool: just what the estimate said."""
        return self.q.nbytes + self.scale.nbytes + self.conv.nbytes

    def store(self, active: ActivePool, slot: int, boundary: int, owner: str) -> Checkpoint:
        """Quantise active slot ``slot`` of all layers; ``last_error`` is then max |difference|.

        Raises:
            OutOfSlotsError: no slot is free.
            KdalabError: ``owner`` does not own the active slot.
            NotFiniteError: it holds no finite state. Whatever is raised, nothing was taken.
        """
        require_finite(active, slot, owner)
        here = active.slots.place(slot)
        state = active.recurrent[here]
        q, scale = quantise(state, self.scale.dtype)
        error = float((dequantise(q, scale, state.dtype) - state).abs().max())
        (target,) = self.slots.allocate(CACHE)
        try:
            row = self.slots.place(target)
            self.q[row], self.scale[row] = q, scale
            self.conv[row] = active.conv[here]
        except BaseException:
            self.free([target])
            raise
        self._boundary[target], self.last_error = boundary, error
        return Checkpoint(target, boundary)

    def adopt(self, slot: int, boundary: int, owner: str) -> Checkpoint:
        """Refused: a donor's state is in the active dtype. ``store`` it, then free the donor."""
        raise KdalabError(
            f"slot {slot} of {owner} (boundary {boundary:,}) cannot become an INT8 checkpoint as "
            "it stands; store a quantised copy and free the slot"
        )

    def load(self, checkpoint: Checkpoint, active: ActivePool, slot: int, owner: str) -> None:
        """Dequantise into ``owner``'s private slot: what takes the place of the plain copy."""
        self.require(checkpoint)
        active.write(slot, *self.read(checkpoint.slot), owner)

    def read(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent, conv) as a restore would get them."""
        self.slots.owner(slot)
        recurrent = dequantise(self.q[slot], self.scale[slot], self.state_dtype)
        return recurrent, self.conv[slot].clone()

    def free(self, slots: Sequence[int], owner: str = CACHE) -> None:
        """Give slots back and poison them."""
        self.slots.free(slots, owner)
        for slot in slots:
            self._boundary[slot] = None
        if slots and self.fill is not None:
            index = torch.tensor(list(slots))
            self.q[index] = FREED
            self.scale[index] = self.fill
            self.conv[index] = self.fill

    def free_is_poisoned(self) -> bool:
        """Nobody has written where nobody owns."""
        free = [i for i, owner in enumerate(self.slots.owners()) if owner is None]
        index = torch.tensor(free, dtype=torch.long)
        scales_and_conv = (self.scale[index], self.conv[index])
        return bool((self.q[index] == FREED).all()) and all(
            bool(t.isnan().all()) for t in scales_and_conv
        )
