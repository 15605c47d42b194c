"""Which part of a state two ranks of different tensor-parallel sizes have in common.

Heads, and channels inside each of the conv's q|k|v sub-blocks, are dealt to the ranks in equal
contiguous runs. A rank's conv row is ``q_r | k_r | v_r``: cutting the *concatenated* row in two
would hand one rank q and half of k, so every cut is made inside the sub-blocks (SGLang #22060).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kdalab_kernels import checks, slot_checks


class TpRank(NamedTuple):
    """Rank ``rank`` of ``size`` tensor-parallel ranks."""

    size: int
    rank: int


class Overlap(NamedTuple):
    """A run that two ranks share: where it starts in each one's own numbering, and its length."""

    source: int
    target: int
    length: int


class ShardPiece(NamedTuple):
    """What one rank sends to another: packed, recurrent and conv together."""

    states: torch.Tensor
    """``[n, L, heads in common, V, K]``."""
    conv: torch.Tensor
    """``[n, L, W - 1, channels in common]``, still in the order q|k|v."""


def checked_rank(name: str, rank: TpRank) -> TpRank:
    """ValueError unless it is a TpRank of integers with ``0 <= rank < size``."""
    if not isinstance(rank, TpRank):
        raise ValueError(f"{name}: expected a TpRank(size, rank), given {checks.given(rank)}")
    size = checks.integer(f"{name}.size", rank.size, 1)
    number = checks.integer(f"{name}.rank", rank.rank, 0)
    if number >= size:
        raise ValueError(f"{name}: expected 0 <= rank < size, given rank {number} of size {size}")
    return TpRank(size, number)


def _target(to_tp: int, rank: int) -> TpRank:
    size = checks.integer("to_tp", to_tp, 1)
    return TpRank(size, checks.integer("rank", rank, 0, size - 1))


def overlap(name: str, total: int, source: TpRank, target: TpRank) -> Overlap:
    """The run of ``total`` heads or channels that both ranks hold (perhaps empty)."""
    for rank in (source, target):
        if total % rank.size:
            raise ValueError(f"{name}: {total} cannot be dealt evenly to {rank.size} ranks")
    at, to = (total // r.size * r.rank for r in (source, target))
    low = max(at, to)
    high = min(at + total // source.size, to + total // target.size)
    if high <= low:
        return Overlap(0, 0, 0)
    return Overlap(low - at, low - to, high - low)


def reslice_states(parts: Sequence[torch.Tensor], to_tp: int, rank: int) -> torch.Tensor:
    """Target rank's recurrent states from those of all source ranks.

    Args:
        parts: one ``[.., HV / from_tp, V, K]`` a source rank, in order.
        to_tp, rank: the target.

    Returns:
        ``[.., HV / to_tp, V, K]``, a fresh tensor.
    """
    target = _target(to_tp, rank)
    heads = _even("parts", parts, -3) * len(parts)
    pieces = []
    for i, part in enumerate(parts):
        common = overlap("heads", heads, TpRank(len(parts), i), target)
        pieces.append(part.narrow(-3, common.source, common.length))
    return torch.cat(pieces, dim=-3)


def reslice_conv(
    parts: Sequence[torch.Tensor], channels: Sequence[int], to_tp: int, rank: int
) -> torch.Tensor:
    """Target rank's conv windows from those of all source ranks, cut inside q, k and v.

    Args:
        parts: one ``[.., W - 1, D / from_tp]`` a source rank, in order; each ``q_r | k_r | v_r``.
        channels: channels of q, of k and of v in the whole model; they add up to D.
        to_tp, rank: the target.

    Returns:
        ``[.., W - 1, D / to_tp]``, a fresh tensor.
    """
    target = _target(to_tp, rank)
    width = _even("parts", parts, -1)
    channels = slot_checks.integers("channels", channels, "[3]", (3,)).tolist()
    if min(channels) < 0 or sum(channels) != width * len(parts):
        raise ValueError(
            f"channels: expected a sum of {width * len(parts)} for {len(parts)} parts of {width}, "
            f"given {channels}"
        )
    pieces = []
    before = 0  # channels of the sub-blocks to the left, in one source rank's row
    for total in channels:
        for i, part in enumerate(parts):
            common = overlap("channels", total, TpRank(len(parts), i), target)
            pieces.append(part.narrow(-1, before + common.source, common.length))
        before += total // len(parts)
    return torch.cat(pieces, dim=-1)


def _even(name: str, parts: Sequence[torch.Tensor], axis: int) -> int:
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise ValueError(f"{name}: expected a list of tensors, given {checks.given(parts)}")
    if not parts:
        raise ValueError(f"{name}: expected at least one source rank, given none")
    for i, part in enumerate(parts):
        checks.tensor(f"{name}[{i}]", part)
        if part.ndim < -axis or part.shape != parts[0].shape:
            raise ValueError(
                f"{name}: expected equal shapes, given {list(parts[0].shape)} and "
                f"{list(part.shape)} at rank {i}"
            )
        if part.dtype != parts[0].dtype:
            raise ValueError(
                f"{name}: expected one dtype, given {parts[0].dtype} and {part.dtype} at rank {i}"
            )
        checks.same_place((f"{name}[0]", parts[0]), (f"{name}[{i}]", part))
    return parts[0].shape[axis]
