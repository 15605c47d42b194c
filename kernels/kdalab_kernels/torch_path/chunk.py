"""The chunk form of Kimi Delta Attention in batched torch operations.

Tiles of C tokens; per tile and head, with G the running log2-decay since the tile's start
(Kimi Linear report, section 3; the same names in :mod:`kdalab_kernels.reference.chunk`)::

    A    = [Aqk; Akk]                     decayed products of rows (q, beta k) with columns k
    N    = (I + Akk)^-1 (beta V - (beta K . 2^G) S)
    O    = (q . 2^G) S + Aqk N
    S'   = Diag(2^G_last) S + (K . 2^(G_last - G))^T N

Everything but the lines with S is batched over a block of tiles; those run wave by wave.
Buffers are made once per call and reused by every block: a block stays in the cache, and fresh
memory, whose first touch costs more than the arithmetic, is not asked for again and again.
"""

from itertools import pairwise

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import Activated, KdaCall, KdaResult
from kdalab_kernels.torch_path.decay import decayed_products
from kdalab_kernels.torch_path.tiles import Block, TileGrid, ceil_div

LOG2_E = 1.4426950408889634
TILE = 32  # tokens; on CPUs faster than 64, and 64 is a whole number of them
BLOCK_NUMBERS = 1 << 18  # of one [tiles, HV, C, K] buffer: 1 MiB in float32, a dozen fit a cache


class Buffers:
    """Working memory for up to n heads-times-tiles; names as in the module's formulas."""

    def __init__(self, n: int, C: int, K: int, V: int, like: torch.Tensor, dtype: torch.dtype):
        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        self.rows = empty(n, C, 2, K)  # q * scale and beta * k, interleaved
        self.k = empty(n, C, K)
        self.bv = empty(n, C, V)  # beta * v
        self.beta = empty(n, C, 1)
        self.G = empty(n, C, K)
        self.to_end = empty(n, C, K)
        self.E = empty(n, C, K)
        self.half_rows = empty(n, C, K)
        self.half_cols = empty(n, C // 2, K)
        # Above the diagonal A stays 0; what is below is overwritten by every block.
        self.A = torch.zeros((n, C, 2, C), dtype=dtype, device=like.device)
        self.from_state = empty(n, 2 * C, V)
        self.N = empty(n, C, V)
        self.eye = torch.eye(C, dtype=dtype, device=like.device).expand(n, C, C)


def chunk_kda(call: KdaCall) -> KdaResult:
    """The ``torch`` backend of :func:`kdalab_kernels.chunk_kda`, forward only."""
    checks.no_gradient(
        "chunk_kda", call.q, call.k, call.v, call.g, call.beta, call.initial_state, call.A_log
    )
    with torch.no_grad():
        return _scan(call, call.activated("torch"))


def _scan(call: KdaCall, x: Activated) -> KdaResult:
    B, T, HV, V = call.v.shape
    K, C = call.K, min(call.chunk_size, TILE)
    grid = TileGrid(B, T, C, call.cu_seqlens, x.q.device)
    S = grid.ranked(call.initial_states_k_first())
    o = torch.empty_like(call.v, memory_format=torch.contiguous_format)
    starts = StartStates(call, grid, S) if call.return_intermediate_states else None
    blocks = grid.blocks(max(1, BLOCK_NUMBERS // (HV * C * K)))
    if blocks:
        largest = max(block.tiles.stop - block.tiles.start for block in blocks)
        buffers = Buffers(largest * HV, C, K, V, x.q, call.dtype)
        for block in blocks:
            _block(call, x, grid, block, buffers, S, o, starts)
    return call.result(o, grid.unranked(S), None if starts is None else starts.h)


def _block(
    call: KdaCall,
    x: Activated,
    grid: TileGrid,
    block: Block,
    buffers: Buffers,
    S: torch.Tensor,
    o: torch.Tensor,
    starts: "StartStates | None",
) -> None:
    """All tiles of a block: S ``[N, HV, K, V]`` (by rank) advances in place, o is written."""
    C, HV, K, V = grid.C, call.HV, call.K, call.V
    n = (block.tiles.stop - block.tiles.start) * HV
    rows, k, bv, beta = (t[:n] for t in (buffers.rows, buffers.k, buffers.bv, buffers.beta))
    G, to_end, A = buffers.G[:n], buffers.to_end[:n], buffers.A[:n]
    grid.load(x.q, block, G)  # G lends its place until the gate is loaded
    torch.mul(G, call.scale, out=rows[:, :, 0])
    grid.load(x.k, block, k)
    grid.load(x.beta[..., None], block, beta)
    torch.mul(k, beta, out=rows[:, :, 1])
    grid.load(x.v, block, bv)
    bv.mul_(beta)
    grid.load(x.g, block, G)
    G.mul_(LOG2_E)

    decayed_products(rows, k, G, to_end, A, buffers)
    solve = torch.linalg.solve_triangular(
        A[:, :, 1], buffers.eye[:n], upper=False, unitriangular=True
    )
    E = torch.exp2(G, out=buffers.E[:n])
    rows.mul_(E[:, :, None])
    carry = E[:, -1, :, None]
    k.mul_(torch.exp2(to_end, out=to_end))

    from_state, N = buffers.from_state[:n], buffers.N[:n]
    rows, k_T = rows.view(n, 2 * C, K), k.transpose(1, 2)
    sizes = [count * HV for count in block.counts]
    first = block.first_rank * HV
    old = from_state.view(n, C, 2, V)[:, :, 1]
    per_wave = [t.split(sizes) for t in (rows, from_state, bv, old, solve, N, carry, k_T)]
    for wave, row, both, error, read, inverse, new, a, key in zip(
        block.waves, *per_wave, strict=True
    ):
        state = S.view(-1, K, V)[first : first + len(a)]
        if starts is not None:
            starts.keep(wave, block.first_rank, state.view(-1, HV, K, V))
        torch.bmm(row, state, out=both)
        torch.bmm(inverse, error.sub_(read), out=new)
        state.mul_(a).baddbmm_(key, new)
    out = torch.baddbmm(from_state.view(n, C, 2, V)[:, :, 0], A[:, :, 0], N, out=bv)
    grid.store(out, block, o)


class StartStates:
    """States at chunk starts, ``h [B, NT, HV, K, V]`` on each sequence's own chunk grid."""

    def __init__(self, call: KdaCall, grid: TileGrid, S: torch.Tensor):
        self.every = call.chunk_size // grid.C
        chunk = call.chunk_size
        if call.cu_seqlens is None:
            counts = [ceil_div(grid.T, chunk)] * grid.B
        else:
            spans = pairwise(call.cu_seqlens)
            counts = [ceil_div(end - start, chunk) for start, end in spans]
        first = torch.tensor([0, *counts], device=S.device).cumsum(0)
        self.first = first[:-1] if grid.order is None else first[:-1][grid.order]
        B = grid.B if call.cu_seqlens is None else 1
        self.h = S.new_empty(B, int(first[-1]) // max(B, 1), *S.shape[1:])

    def keep(self, wave: int, first_rank: int, states: torch.Tensor) -> None:
        """Copy states (of consecutive ranks) before this wave, if a chunk starts with it."""
        if wave % self.every == 0:
            chunk = self.first[first_rank : first_rank + len(states)] + wave // self.every
            self.h.view(-1, *states.shape[1:])[chunk] = states
