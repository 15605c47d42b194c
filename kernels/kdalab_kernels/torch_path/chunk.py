"""The chunk form of Kimi Delta Attention in batched torch operations.

Tiles of C tokens; per tile and head, with G the running log2-decay since the tile's start
(Kimi Linear report, section 3; the same names in :mod:`kdalab_kernels.reference.chunk`)::

    T    = (I + Akk)^-1                   Akk, Aqk: decayed products of rows (beta k, q), columns k
    E    = beta V - (beta K . 2^G) S      what the state does not know yet; the report's N is T E
    O    = (q . 2^G) S + (Aqk T) E
    S'   = Diag(2^G_last) S + ((K . 2^(G_last - G))^T T) E

Everything but the lines with S is batched over a block of tiles; those run wave by wave, in three
calls each: T is multiplied into what stands on either side of it beforehand, because small calls
are made of overhead. Buffers are reused by every block, so that a block stays in the cache, and
by the next call.
"""

import threading
from itertools import pairwise
from typing import NamedTuple

import torch

from kdalab_kernels import checks
from kdalab_kernels.call import Activated, KdaCall, KdaResult
from kdalab_kernels.torch_path.decay import Level, decayed_products, levels, squares
from kdalab_kernels.torch_path.tiles import Block, TileGrid, ceil_div

LOG2_E = 1.4426950408889634
TILE = 32  # tokens; on CPUs faster than 64, and 64 is a whole number of them
KEPT_NUMBERS = 1 << 20  # of one buffer that outlives its call
BLOCK_NUMBERS = 1 << 18  # of one [tiles, HV, C, K] buffer: 1 MiB in float32, a dozen fit a cache


class Numbers(NamedTuple):
    """Working memory for n heads-times-tiles; names as in the module's formulas."""

    rows: torch.Tensor  # [n, C, 2, K]: q * scale and beta * k, in turn
    k: torch.Tensor  # [n, C, K]
    beta: torch.Tensor  # [n, C, 1]
    G: torch.Tensor  # [n, C, K]: log2-decay of each token; later, row 0 is G_last
    decay: torch.Tensor  # [n, C, K]: 2^G
    Aqk: torch.Tensor  # [n, C, C]
    T: torch.Tensor  # [n, C, C]
    AqkT: torch.Tensor  # [n, C, C]: Aqk T
    KT: torch.Tensor  # [n, K, C]: keys, decayed to the tile's end, times T
    E: torch.Tensor  # [n, C, 2, V]: minus (q . 2^G) S, and E, in turn
    o: torch.Tensor  # [n, C, V]


class Buffers:
    """Working memory for up to n heads-times-tiles, and views of it."""

    def __init__(
        self, n: int, C: int, K: int, V: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        # Above the diagonal both stay 0; what is below is overwritten by every block.
        Aqk, T = (squares(n, C, dtype, device) for _ in range(2))
        T.diagonal(dim1=1, dim2=2).fill_(1.0)
        self.all = Numbers(
            rows=empty(n, C, 2, K),
            k=empty(n, C, K),
            beta=empty(n, C, 1),
            G=empty(n, C, K),
            decay=empty(n, C, K),
            Aqk=Aqk,
            T=T,
            AqkT=empty(n, C, C),
            KT=empty(n, K, C),
            E=empty(n, C, 2, V),
            o=empty(n, C, V),
        )
        self._parts: dict[int, tuple[Numbers, list[Level]]] = {}
        self._waves: dict[tuple[int, ...], list[Wave]] = {}

    def part(self, n: int) -> tuple[Numbers, list[Level]]:
        """The first n, and their levels of halving; made once, most blocks ask for the same."""
        if n not in self._parts:
            with torch.inference_mode(False):
                x = Numbers(*(t[:n] for t in self.all))
                self._parts[n] = x, levels(x.rows, x.k, x.G, x.decay, x.Aqk, x.T)
        return self._parts[n]

    def waves(self, sizes: tuple[int, ...]) -> "list[Wave]":
        """Views for waves of these many heads; made once, too."""
        if sizes not in self._waves:
            with torch.inference_mode(False):
                self._waves[sizes] = self._cut(sizes)
        return self._waves[sizes]

    def _cut(self, sizes: tuple[int, ...]) -> "list[Wave]":
        x = self.all
        parts = (
            x.rows.flatten(1, 2),
            x.E.flatten(1, 2),
            x.E[:, :, 1],
            x.decay[:, 0, :, None],
            x.KT,
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
    rows: torch.Tensor  # [size, 2 C, K]: decayed q and decayed beta * k, in turn
    both: torch.Tensor  # [size, 2 C, V]: 0 and beta * v, minus rows times the state
    E: torch.Tensor  # [size, C, V]: every second row of these
    carry: torch.Tensor  # [size, K, 1]: decay over the tile
    KT: torch.Tensor  # [size, K, C]


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
    at, pairs = buffers.part((block.tiles.stop - block.tiles.start) * HV)
    grid.load(x.beta[..., None], block, at.beta)
    grid.load(x.q, block, at.rows[:, :, 0], call.scale)
    grid.load(x.k, block, at.k)
    torch.mul(at.k, at.beta, out=at.rows[:, :, 1])
    at.E[:, :, 0].zero_()
    grid.load(x.v, block, at.E[:, :, 1], at.beta)
    grid.load(x.g, block, at.G, LOG2_E)

    spare = at.KT.view(at.k.shape)
    decayed_products(at.rows, at.k, at.G, at.decay, at.Aqk, spare, pairs)
    torch.bmm(at.Aqk, at.T, out=at.AqkT)
    torch.bmm(at.k.transpose(1, 2), at.T, out=at.KT)

    waves = buffers.waves(tuple(count * HV for count in block.counts))
    first = block.first_rank * HV
    state = S.view(-1, K, V)[first : first + waves[0].size]
    for number, wave in zip(block.waves, waves, strict=True):
        if wave.size < len(state):  # the shortest sequences have ended
            state = state[: wave.size]
        if starts is not None:
            starts.keep(number, block.first_rank, state.view(-1, HV, K, V))
        wave.both.baddbmm_(wave.rows, state, alpha=-1)
        state.mul_(wave.carry).baddbmm_(wave.KT, wave.E)
    torch.bmm(at.AqkT, at.E[:, :, 1], out=at.o)
    grid.store(at.o, at.E[:, :, 0], block, o, sign=-1)


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
