"""States that come from elsewhere: into a slot that a transfer holds, and that nobody reads yet."""

from __future__ import annotations

import torch

from kdalab.errors import KdalabError
from kdalab.memory.active import ActivePool
from kdalab.memory.checkpoints import CheckpointPool
from kdalab.memory.int8 import Int8CheckpointPool, quantise
from kdalab.memory.slots import IN_FLIGHT


def fill_checkpoint(
    pool: CheckpointPool | Int8CheckpointPool,
    slot: int,
    recurrent: torch.Tensor,
    conv: torch.Tensor,
) -> None:
    """Write a state that has arrived into a slot of a transfer; an INT8 pool rounds it here, once.

    Args:
        pool: its ``slot`` belongs to ``IN_FLIGHT``; ``seal`` makes a checkpoint of it afterwards.
        recurrent: [KDA layer, value head, V, K].
        conv: [KDA layer, W-1 inputs, q|k|v channel].

    Raises:
        KdalabError: the slot is no transfer's, or a state has another shape or dtype than the
            pool, or is not finite. Nothing was written.
    """
    holder = pool.slots.owner(slot)
    if holder != IN_FLIGHT:
        raise KdalabError(
            f"checkpoint slot {slot} belongs to {holder or 'nobody'}, not to a transfer"
        )
    check_state(pool, recurrent, conv)
    row = pool.slots.place(slot)
    if isinstance(pool, Int8CheckpointPool):
        pool.q[row], pool.scale[row] = quantise(recurrent, pool.scale.dtype)
    else:
        pool.recurrent[row] = recurrent
    pool.conv[row] = conv


def check_state(
    pool: ActivePool | CheckpointPool | Int8CheckpointPool,
    recurrent: torch.Tensor,
    conv: torch.Tensor,
) -> None:
    """Refuse a state of another shape or dtype than the pool's, or one that is not finite."""
    if isinstance(pool, Int8CheckpointPool):
        shape, dtype = pool.q.shape[1:], pool.state_dtype
    else:
        shape, dtype = pool.recurrent.shape[1:], pool.recurrent.dtype
    for name, x, like, kind in (
        ("recurrent", recurrent, shape, dtype),
        ("conv", conv, pool.conv.shape[1:], pool.conv.dtype),
    ):
        if x.shape != like or x.dtype != kind:
            raise KdalabError(
                f"a {name} state {list(x.shape)} of {x.dtype} has arrived; a slot holds "
                f"{list(like)} of {kind}"
            )
        if not bool(x.isfinite().all()):
            raise KdalabError(f"the {name} state that has arrived is not finite")
