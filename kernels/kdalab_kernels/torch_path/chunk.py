"""The chunk form of Kimi Delta Attention in batched torch operations.

Tiles of C tokens; per tile and head, with G the running log2-decay since the tile's start
(Kimi Linear report, section 3; the same names in :mod:`kdalab_kernels.reference.chunk`)::

    A    = [Aqk; Akk]                     decayed products of rows (q, beta k) with columns k
    N    = (I + Akk)^-1 (beta V - (beta K . 2^G) S)
    O    = (q . 2^G) S + Aqk N
    S'   = Diag(2^G_last) S + (K . 2^(G_last - G))^T N

Everything but the lines with S is batched over a block of tiles; those run wave by wave.
Buffers are reused by every block, so that a block stays in the cache, and by the next call.
"""

import threading
from itertools import pairwise
from typing import NamedTuple

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import Activated, KdaCall, KdaResult
from kdalab_kernels.torch_path.decay import decayed_products
from kdalab_kernels.torch_path.tiles import Block, TileGrid, ceil_div

LOG2_E = 1.4426950408889634
TILE = 32  # tokens; on CPUs faster than 64, and 64 is a whole number of them
KEPT_NUMBERS = 1 << 20  # of one buffer that outlives its call
BLOCK_NUMBERS = 1 << 18  # of one [tiles, HV, C, K] buffer: 1 MiB in float32, a dozen fit a cache


class Buffers:
    """Working memory for up to n heads-times-tiles; names as in the module's formulas."""

    def __init__(
        self, n: int, C: int, K: int, V: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.rows = empty(n, 2, C, K)  # q * scale, then beta * k
        self.k = empty(n, C, K)
        self.bv = empty(n, C, V)  # beta * v
        self.beta = empty(n, C, 1)
        self.G = empty(n, C, K)
        self.to_end = empty(n, C, K)
        self.E = empty(n, C, K)
        self.half_rows = empty(n, C, K)
        self.half_cols = empty(n, C // 2, K)
        # Above the diagonal A stays 0; what is below is overwritten by every block.
        self.A = torch.zeros((n, 2, C, C), dtype=dtype, device=device)
        self.from_state = empty(n, 2, C, V)
        self.N = empty(n, C, V)
        self.eye = torch.eye(C, dtype=dtype, device=device).expand(n, C, C)
        self.inverse = empty(n, C, C).transpose(1, 2)  # column by column, as the solver writes
        self._waves: dict[tuple[int, ...], list[Wave]] = {}

    def waves(self, sizes: tuple[int, ...]) -> "list[Wave]":
        """Views for waves of these many heads; made once, most blocks ask for the same."""
        if sizes not in self._waves:
            with torch.inference_mode(False):
                self._waves[sizes] = self._cut(sizes)
        return self._waves[sizes]

    def _cut(self, sizes: tuple[int, ...]) -> "list[Wave]":
        n, _, C, K = self.rows.shape
        parts = (
            self.rows.view(n, 2 * C, K),
            self.from_state.view(n, 2 * C, -1),
            self.bv,
            self.from_state[:, 1],
            self.inverse,
            self.N,
            self.E[:, -1, :, None],
            self.k.transpose(1, 2),
        )
        cuts = [t[: sum(sizes)].split(sizes) for t in parts]
        return [Wave(*views) for views in zip(sizes, *cuts, strict=True)]


class _Kept(threading.local):
    """The last buffers of each thread, on CPUs: fresh memory costs more than what it is for.

    A page's first touch takes a microsecond or more, and a call needs thousands of pages.
    """

    key: tuple[object, ...] | None = None
    n = 0
    buffers: Buffers | None = None


_KEPT = _Kept()


def _buffers(n: int, C: int, K: int, V: int, dtype: torch.dtype, device: torch.device) -> Buffers:
    """Room for n heads-times-tiles; their content is what an earlier call left."""
    key = (C, K, V, dtype, device)
    if _KEPT.buffers is not None and _KEPT.key == key and _KEPT.n >= n:
        return _KEPT.buffers
    with torch.inference_mode(False):  # tensors made in that mode could not be written outside it
        made = Buffers(n, C, K, V, dtype, device)
    if device.type == "cpu" and n * C * max(K, V) <= KEPT_NUMBERS:
        _KEPT.key, _KEPT.n, _KEPT.buffers = key, n, made
    return made


class Wave(NamedTuple):
    """One step of the scan: a tile of every sequence that is that long, as views of buffers."""

    size: int  # heads times sequences
    rows: torch.Tensor  # [size, 2 C, K]: decayed q, and decayed beta * k
    from_state: torch.Tensor  # [size, 2 C, V]: rows times the state
    error: torch.Tensor  # [size, C, V]: beta * v, minus what the state knows already
    old: torch.Tensor  # [size, C, V]: the second half of from_state
    inverse: torch.Tensor  # [size, C, C]
    N: torch.Tensor  # [size, C, V]
    carry: torch.Tensor  # [size, K, 1]: decay over the tile
    key: torch.Tensor  # [size, K, C]: keys, decayed to the tile's end


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
        buffers = _buffers(largest * HV, C, K, V, call.dtype, x.q.device)
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
    HV, K, V = call.HV, call.K, call.V
    n = (block.tiles.stop - block.tiles.start) * HV
    rows, k, bv, beta = (t[:n] for t in (buffers.rows, buffers.k, buffers.bv, buffers.beta))
    G, to_end, A = buffers.G[:n], buffers.to_end[:n], buffers.A[:n]
    grid.load(x.beta[..., None], block, beta)
    grid.load(x.q, block, rows[:, 0], call.scale)
    grid.load(x.k, block, k)
    torch.mul(k, beta, out=rows[:, 1])
    grid.load(x.v, block, bv)
    bv.mul_(beta)
    grid.load(x.g, block, G, LOG2_E)

    decayed_products(rows, k, G, to_end, A, buffers)
    torch.linalg.solve_triangular(
        A[:, 1], buffers.eye[:n], upper=False, unitriangular=True, out=buffers.inverse[:n]
    )
    rows.mul_(torch.exp2(G, out=buffers.E[:n])[:, None])
    k.mul_(torch.exp2(to_end, out=to_end))

    waves = buffers.waves(tuple(count * HV for count in block.counts))
    first = block.first_rank * HV
    state = S.view(-1, K, V)[first : first + waves[0].size]
    for wave, at in zip(block.waves, waves, strict=True):
        if at.size < len(state):  # the shortest sequences have ended
            state = state[: at.size]
        if starts is not None:
            starts.keep(wave, block.first_rank, state.view(-1, HV, K, V))
        torch.bmm(at.rows, state, out=at.from_state)
        torch.bmm(at.inverse, at.error.sub_(at.old), out=at.N)
        state.mul_(at.carry).baddbmm_(at.key, at.N)
    from_tile = torch.bmm(A[:, 0], buffers.N[:n], out=bv)
    grid.store(buffers.from_state[:n, 0], from_tile, block, o)


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
