"""Moving pages and states between pools and packed buffers, as a transfer needs it.

Everything here copies bits; nothing is computed.
"""

from collections.abc import Sequence

import torch

from kdalab_kernels import checks, slot_checks
from kdalab_kernels.aliasing import apart
from kdalab_kernels.dispatch import implementation
from kdalab_kernels.slot_checks import Slots
from kdalab_kernels.tp import ShardPiece, TpRank, checked_rank, overlap

MOVED = (*checks.FLOATS, torch.int8, torch.uint8)


def gather_pages(
    pages: torch.Tensor, page_ids: Slots, *, check_ids: bool = True, backend: str = "auto"
) -> torch.Tensor:
    """Pages (or states) of a pool, packed in the order asked for.

    Args:
        pages: ``[P, ..]`` with at least 2 axes, floating or 8-bit; any view of a pool.
        page_ids: ``[n]`` integers; a page may be named more than once; -1 gives a row of zeros.
        check_ids: False skips the check of the numbers, which on an accelerator makes the host
            wait; the triton kernel then treats those out of range as -1.

    Returns:
        ``[n, ..]``, contiguous.
    """
    checks.flag("check_ids", check_ids)
    _moved("pages", pages, pages)
    index = slot_checks.slots("page_ids", page_ids, len(pages), pages.device, host=check_ids)
    run = implementation("gather_pages", backend, pages.device)
    out: torch.Tensor = run(pages, index)
    return out


def scatter_pages_inplace(
    buffer: torch.Tensor,
    pages: torch.Tensor,
    page_ids: Slots,
    *,
    check_ids: bool = True,
    backend: str = "auto",
) -> None:
    """The way back: row i of buffer ``[n, ..]`` into page ``page_ids[i]``, or nowhere for -1.

    Raises:
        ValueError: wrong shape or dtype, a page out of range or named twice, or a buffer that
            shares memory with pages (gather_pages makes one that does not); nothing is written.
    """
    checks.flag("check_ids", check_ids)
    _moved("pages", pages, pages)
    slot_checks.own_memory("pages", pages)
    _moved("buffer", buffer, pages)
    if buffer.shape[1:] != pages.shape[1:]:
        raise ValueError(
            f"buffer: expected shape [n, ..] = {['n', *pages.shape[1:]]}, "
            f"given {list(buffer.shape)}"
        )
    index = slot_checks.slots(
        "page_ids", page_ids, len(pages), pages.device, len(buffer), distinct=True, host=check_ids
    )
    apart((("pages", pages),), (("buffer", buffer),))
    run = implementation("scatter_pages_inplace", backend, pages.device)
    run(buffer, pages, index)


def gather_shard(
    states: torch.Tensor,
    conv: torch.Tensor,
    slots: Slots,
    source: TpRank,
    target: TpRank,
    channels: Sequence[int],
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> ShardPiece:
    """What this source rank holds and a target rank of another TP size needs: one launch.

    Args:
        states: ``[S, L, HV / source.size, V, K]``, this rank's pool.
        conv: ``[S, L, W - 1, D / source.size]``, each row ``q_r | k_r | v_r``.
        slots: ``[n]`` integers; -1 gives zeros.
        source, target: this rank, and the one that will receive.
        channels: channels of q, of k and of v in the whole model.

    Returns:
        ``ShardPiece(states [n, L, heads in common, V, K], conv [n, L, W - 1, channels in
        common])``; without anything in common both are empty.
    """
    checks.flag("check_slots", check_slots)
    plan = _plan(states, conv, source, target, channels, at_source=True)
    index = slot_checks.slots("slots", slots, len(states), states.device, host=check_slots)
    run = implementation("gather_shard", backend, states.device)
    piece: ShardPiece = run(states, conv, index, *plan)
    return piece


def scatter_shard_inplace(
    piece: ShardPiece,
    states: torch.Tensor,
    conv: torch.Tensor,
    slots: Slots,
    source: TpRank,
    target: TpRank,
    channels: Sequence[int],
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> None:
    """Put a piece of :func:`gather_shard` into the target rank's pool: one launch.

    Args:
        piece: from the source rank, for the same source, target and channels.
        states, conv: the target rank's pools, sharded by ``target.size``; only the heads and
            channels that source holds are written. Pieces of all source ranks make them whole.
            They share no memory with each other or with piece.
        slots: ``[n]``, each at most once, or -1.

    Raises:
        ValueError: naming the argument; nothing has been written then.
    """
    checks.flag("check_slots", check_slots)
    if not isinstance(piece, ShardPiece):
        raise ValueError(f"piece: expected a ShardPiece, given {type(piece).__name__}")
    plan = _plan(states, conv, source, target, channels, at_source=False)
    heads, blocks = plan
    for name, x in (("piece.states", piece.states), ("piece.conv", piece.conv)):
        if checks.floating(name, x).ndim < 3:
            raise ValueError(f"{name}: expected shape [n, L, ..], given {list(x.shape)}")
    n = len(piece.states)
    L, _, V, K = states.shape[1:]
    expected = (
        ("piece.states", piece.states, states, (n, L, heads[1], V, K)),
        ("piece.conv", piece.conv, conv, (n, L, conv.shape[2], sum(b[1] for b in blocks))),
    )
    for name, x, pool, shape in expected:
        if x.shape != shape or x.dtype != pool.dtype:
            raise ValueError(
                f"{name}: expected shape {list(shape)} of {pool.dtype}, "
                f"given {list(x.shape)} of {x.dtype}"
            )
        checks.same_place(("states", states), (name, x))
    index = slot_checks.slots(
        "slots", slots, len(states), states.device, n, distinct=True, host=check_slots
    )
    apart(
        (("states", states), ("conv", conv)),
        (("piece.states", piece.states), ("piece.conv", piece.conv)),
    )
    run = implementation("scatter_shard_inplace", backend, states.device)
    run(piece, states, conv, index, *plan)


def _plan(
    states: torch.Tensor,
    conv: torch.Tensor,
    source: TpRank,
    target: TpRank,
    channels: Sequence[int],
    at_source: bool,
) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """(first head, heads) and, for q, k and v, (first channel, channels), in the pool at hand."""
    source, target = checked_rank("source", source), checked_rank("target", target)
    here = source if at_source else target
    slot_checks.pool("states", states, "[S, L, HV, V, K]", (None,) * 5)
    n, L, heads = states.shape[:3]
    channels = slot_checks.integers("channels", channels, "[3]", (3,)).tolist()
    if any(c < 0 or c % here.size for c in channels):
        raise ValueError(
            f"channels: expected those of q, k and v, each dealt evenly to {here.size} ranks, "
            f"given {channels}"
        )
    D = sum(channels) // here.size
    slot_checks.pool("conv", conv, "[S, L, W - 1, D / size]", (n, L, None, D))
    checks.same_place(("states", states), ("conv", conv))
    common = overlap("heads", heads * here.size, source, target)
    blocks = []
    before = 0
    for total in channels:
        run = overlap("channels", total, source, target)
        blocks.append((before + (run.source if at_source else run.target), run.length))
        before += total // here.size
    return (common.source if at_source else common.target, common.length), blocks


def _moved(name: str, x: object, like: torch.Tensor) -> None:
    x = checks.tensor(name, x)
    if x.dtype not in MOVED or x.dtype != like.dtype:
        kinds = like.dtype if like.dtype in MOVED else "a floating or 8-bit dtype"
        raise ValueError(f"{name}: expected {kinds}, given {x.dtype}")
    if x.ndim < 2:
        raise ValueError(f"{name}: expected at least 2 axes [P, ..], given {list(x.shape)}")
    checks.same_place(("pages", like), (name, x))
