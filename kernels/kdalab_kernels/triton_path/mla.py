"""Attention over a paged latent cache.

Rows of a program's matrix products are (query, head) pairs, because all heads share the cached
rows: a tile of the cache is loaded once and used as key and, its first R channels, as value.
Decode cuts every context into splits; each leaves a normalised output and its log-sum-exp, and a
second kernel weighs them. In base 2 throughout.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.rows import row_strides

LOG2E = 1.4426950408889634


@triton.jit
def attend(
    q_p,  # [BM] pointers to the first channel of each query row
    on,  # [BM] rows that exist
    limit,  # [BM] how many tokens each row sees
    pages,
    table,  # of this sequence
    start,
    end,
    scale,
    page_row,
    C,
    R: tl.constexpr,
    ROPE: tl.constexpr,
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BP: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows against tokens [start, end): normalised output ``[BM, BR]``, log2-sum-exp2 ``[BM]``."""
    r, p = tl.arange(0, BR), tl.arange(0, BP)
    q = tl.load(q_p[:, None] + r[None, :], mask=on[:, None] & (r < R)[None, :], other=0.0)
    q = q.to(KIND)
    if ROPE > 0:
        q_rope_p = q_p[:, None] + R + p[None, :]
        q_rope = tl.load(q_rope_p, mask=on[:, None] & (p < ROPE)[None, :], other=0.0).to(KIND)
    best = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BR], tl.float32)
    for first in range(start, end, BT):
        t = first + tl.arange(0, BT)
        live = t < end
        page = tl.load(table + t // PAGE, mask=live, other=0)
        row_p = pages + page * page_row + (t % PAGE) * C
        rows = tl.load(
            row_p[:, None] + r[None, :], mask=live[:, None] & (r < R)[None, :], other=0.0
        ).to(KIND)
        scores = tl.dot(q, tl.trans(rows), input_precision=PRECISION)
        if ROPE > 0:
            rope = tl.load(
                row_p[:, None] + R + p[None, :],
                mask=live[:, None] & (p < ROPE)[None, :],
                other=0.0,
            ).to(KIND)
            scores = tl.dot(q_rope, tl.trans(rope), scores, input_precision=PRECISION)
        seen = (t[None, :] < limit[:, None]) & live[None, :]
        scores = tl.where(seen, scores * scale, float("-inf"))
        top = tl.maximum(best, tl.max(scores, axis=1))
        safe = tl.where(top == float("-inf"), 0.0, top)  # a row that has seen nothing yet
        weights = tl.exp2(scores - safe[:, None])
        keep = tl.exp2(best - safe)
        total = total * keep + tl.sum(weights, axis=1)
        acc = acc * keep[:, None]
        acc = tl.dot(weights.to(KIND), rows, acc, input_precision=PRECISION)
        best = top
    found = total > 0.0
    acc = acc / tl.where(found, total, 1.0)[:, None]
    return acc, tl.where(found, best + tl.log2(tl.where(found, total, 1.0)), float("-inf"))


@triton.jit
def mla_decode_kernel(
    q,  # [N, H, C]
    pages,  # [P, PAGE, C], pages by stride
    table,  # [N, max_pages]
    lengths,  # [N]
    parts,  # [N, splits, H, R] float32
    lse,  # [N, splits, H] float32
    scale,  # in base 2
    page_row,
    max_pages,
    H,
    R: tl.constexpr,
    ROPE: tl.constexpr,
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BP: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head_blocks = tl.cdiv(H, BM)
    n = (tl.program_id(0) // head_blocks).to(tl.int64)
    h = tl.program_id(0) % head_blocks * BM + tl.arange(0, BM)
    split, splits = tl.program_id(1), tl.num_programs(1)
    C: tl.constexpr = R + ROPE
    length = tl.minimum(tl.load(lengths + n), max_pages * PAGE).to(tl.int32)
    per_split = tl.cdiv(tl.cdiv(length, splits), BT) * BT
    start = split * per_split
    end = tl.minimum(start + per_split, length)
    on = h < H
    q_p = q + (n * H + h) * C
    limit = tl.where(on, length, 0)
    acc, row_lse = attend(
        q_p,
        on,
        limit,
        pages,
        table + n * max_pages,
        start,
        end,
        scale,
        page_row,
        C,
        R,
        ROPE,
        PAGE,
        BM,
        BT,
        BR,
        BP,
        KIND,
        PRECISION,
    )
    r = tl.arange(0, BR)
    row = (n * splits + split) * H + h
    tl.store(parts + row[:, None] * R + r[None, :], acc, mask=on[:, None] & (r < R)[None, :])
    tl.store(lse + row, row_lse, mask=on)


@triton.jit
def mla_merge_kernel(
    parts,  # [N, splits, H, R]
    lse,  # [N, splits, H]
    o,  # [N, H, R]
    H,
    splits,
    R: tl.constexpr,
    BR: tl.constexpr,
):
    n, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    r = tl.arange(0, BR)
    best = float("-inf")
    total = 0.0
    acc = tl.zeros([BR], tl.float32)
    for split in range(splits):
        row = (n * splits + split) * H + h
        part_lse = tl.load(lse + row)
        top = tl.maximum(best, part_lse)
        safe = tl.where(top == float("-inf"), 0.0, top)
        weight, keep = tl.exp2(part_lse - safe), tl.exp2(best - safe)
        part = tl.load(parts + row * R + r, mask=r < R, other=0.0)
        acc = acc * keep + part * weight
        total = total * keep + weight
        best = top
    acc = acc / tl.where(total > 0.0, total, 1.0)
    tl.store(o + (n * H + h) * R + r, acc.to(o.dtype.element_ty), mask=r < R)


@triton.jit
def mla_prefill_kernel(
    q,  # [T, H, C]
    pages,  # [P, PAGE, C], pages by stride
    block_table,  # [N, max_pages]
    lengths,  # [N]
    offsets,  # [N + 1]
    tiles,  # [blocks, 2]: sequence, block within it
    o,  # [T, H, R]
    scale,  # in base 2
    page_row,
    max_pages,
    H,
    R: tl.constexpr,
    ROPE: tl.constexpr,
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
    BP: tl.constexpr,
    KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    C: tl.constexpr = R + ROPE
    n = tl.load(tiles + 2 * tl.program_id(0)).to(tl.int64)
    block = tl.load(tiles + 2 * tl.program_id(0) + 1)
    first = tl.load(offsets + n)
    queries = (tl.load(offsets + n + 1) - first).to(tl.int32)
    context = tl.minimum(tl.load(lengths + n), max_pages * PAGE).to(tl.int32)
    row = block * BM + tl.arange(0, BM)
    on = row < queries * H
    limit = tl.where(on, context - queries + 1 + row // H, 0)
    q_row = first * H + row
    acc, _ = attend(
        q + q_row * C,
        on,
        limit,
        pages,
        block_table + n * max_pages,
        0,
        tl.max(limit, axis=0),
        scale,
        page_row,
        C,
        R,
        ROPE,
        PAGE,
        BM,
        BT,
        BR,
        BP,
        KIND,
        PRECISION,
    )
    r = tl.arange(0, BR)
    o_p = o + q_row[:, None] * R + r[None, :]
    tl.store(o_p, acc.to(o.dtype.element_ty), mask=on[:, None] & (r < R)[None, :])


def tile_rows(dtype: torch.dtype, hip: bool) -> int:
    """Cached rows of a tile. float32 rows are twice as long, and with 32 rows a program on AMD
    (8 warps of 64 lanes: 256 registers a lane) spills."""
    return 16 if hip or dtype == torch.float32 else 32


def _constants(q: torch.Tensor, pages: torch.Tensor, value_dim: int) -> dict[str, Any]:
    rope = q.shape[2] - value_dim
    return {
        "R": value_dim,
        "ROPE": rope,
        "PAGE": pages.shape[1],
        "BR": launch.next_power_of_2(value_dim, 16),
        "BP": launch.next_power_of_2(rope, 16),
        "KIND": tl.float32 if launch.INTERPRETED else launch.KINDS[q.dtype],
        "PRECISION": "ieee" if q.dtype == torch.float32 else None,
        "BT": tile_rows(q.dtype, launch.HIP),
        "num_stages": 1 if q.dtype == torch.float32 else 2,
    }


def _checked(op: str, q: torch.Tensor, pages: torch.Tensor) -> int:
    """The stride of a page; refuses what the kernels cannot address."""
    launch.refuse_float64(op, q, pages)
    checks.no_gradient(op, q, pages)
    return row_strides("pages", pages, 1)[0]


def _splits(num_splits: int, N: int, head_blocks: int, longest: int, device: torch.device) -> int:
    """Enough programs for two on every processor, but none with fewer than 256 tokens."""
    if num_splits or device.type != "cuda":
        return max(1, num_splits)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = -(-2 * processors // max(1, N * head_blocks))
    return max(1, min(wanted, longest // 256, 64))


def mla_decode_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    value_dim: int,
    num_splits: int,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.mla_decode_paged`, for checked arguments: two launches."""
    page_row = _checked("mla_decode_paged", q, pages)
    q = q.contiguous()
    N, H, _ = q.shape
    o = q.new_empty(N, H, value_dim)
    if not N:
        return o
    BM = 16
    head_blocks = triton.cdiv(H, BM)
    longest = block_table.shape[1] * pages.shape[1]  # known without asking the device
    splits = _splits(num_splits, N, head_blocks, longest, q.device)
    parts = torch.empty((N, splits, H, value_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((N, splits, H), dtype=torch.float32, device=q.device)
    constants = _constants(q, pages, value_dim)
    mla_decode_kernel[(N * head_blocks, splits)](
        q,
        pages,
        block_table,
        lengths,
        parts,
        lse,
        scale * LOG2E,
        page_row,
        block_table.shape[1],
        H,
        **constants,
        BM=BM,
        num_warps=8,
    )
    mla_merge_kernel[(N * H,)](
        parts, lse, o, H, splits, R=value_dim, BR=constants["BR"], num_stages=2
    )
    return o


def mla_prefill_paged(
    q: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens: list[int],
    context_lengths: torch.Tensor,
    scale: float,
    value_dim: int,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.mla_prefill_paged`, for checked arguments."""
    page_row = _checked("mla_prefill_paged", q, pages)
    q = q.contiguous()
    T, H, _ = q.shape
    o = q.new_empty(T, H, value_dim)
    if not T:
        return o
    BM = 32
    rows = [offset * H for offset in cu_seqlens]
    tiles = launch.tiles(1, T * H, rows, BM, q.device)
    offsets = torch.tensor(cu_seqlens, dtype=torch.int64, device=q.device)
    mla_prefill_kernel[(len(tiles.table),)](
        q,
        pages,
        block_table,
        context_lengths,
        offsets,
        tiles.table,
        o,
        scale * LOG2E,
        page_row,
        block_table.shape[1],
        H,
        **_constants(q, pages, value_dim),
        BM=BM,
        num_warps=8,
    )
    return o


def SPECS() -> list[CompileSpec]:
    """Kimi's latent of 512 + 64 channels in bfloat16, pages of 64 tokens."""
    common = {"q": "*bf16", "pages": "*bf16", "lengths": "*i64", "scale": "fp32"}
    common |= {"page_row": "i64", "max_pages": "i32", "H": "i32"}
    decode = {**common, "table": "*i64", "parts": "*fp32", "lse": "*fp32"}
    prefill = {**common, "block_table": "*i64", "offsets": "*i64", "tiles": "*i32", "o": "*bf16"}
    merge = {"parts": "*fp32", "lse": "*fp32", "o": "*bf16", "H": "i32", "splits": "i32"}
    sizes: dict[str, Any] = {"R": 512, "ROPE": 64, "PAGE": 64, "BR": 512, "BP": 64}
    sizes |= {"KIND": tl.bfloat16, "PRECISION": None, "BT": tile_rows(torch.bfloat16, hip=False)}
    hip = {"BT": tile_rows(torch.bfloat16, hip=True)}
    return [
        spec("mla_decode", mla_decode_kernel, decode, {**sizes, "BM": 16}, 8, hip=hip),
        spec("mla_merge", mla_merge_kernel, merge, {"R": 512, "BR": 512}),
        spec("mla_prefill", mla_prefill_kernel, prefill, {**sizes, "BM": 32}, 8, hip=hip),
    ]
