"""Spans of tokens as affine maps: each takes a state S to M S + b, and maps compose in order.

The formulas are those of ``kdalab_kernels.chunk_summary`` and ``compose``; everything runs in fp64,
so that what is equal by mathematics is equal to the last bits here.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from kdalab.errors import KdalabError
from kdalab_kernels import AffineSummary, apply, chunk_summary, compose, l2norm, naive_recurrent_kda

DECAYS = {"fast": -0.5, "medium": -0.05, "slow": -0.005}
"""Mean log-decay of a token and channel, natural logarithm."""

K = V = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) as one map: M ``[K, K]`` and b ``[K, V]``, fp64."""

    start: int
    end: int
    M: np.ndarray
    b: np.ndarray


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """One sequence in pieces. States are ``[K, V]``, fp64.

    ``states[i]`` is the state after the first i pieces, ``direct`` that of the recurrence token by
    token; ``pairs`` are the composed neighbours, ``left`` and ``tree`` the whole sequence
    composed from the left and in pairs, ``swapped`` with the pieces ``swap`` and ``swap + 1``
    exchanged.
    """

    spans: tuple[Span, ...]
    states: tuple[np.ndarray, ...]
    direct: np.ndarray
    pairs: tuple[Span, ...]
    left: Span
    tree: Span
    swap: int
    swapped: Span

    def difference(self, span: Span) -> float:
        """Max |difference| between a whole-sequence map applied to zeros and the recurrence."""
        return float(np.abs(span.b - self.direct).max())

    @property
    def size(self) -> float:
        """Largest |value| of the state, to compare differences with."""
        return float(np.abs(self.direct).max())


def play_chunks(tokens: int, pieces: int, decay: str, swap: int = 0, seed: int = 0) -> ChunkRun:
    """Cut ``tokens`` random tokens into ``pieces`` equal spans and compose them in several ways.

    Raises:
        KdalabError: fewer tokens than pieces, an unknown decay, or no such pair to swap.
    """
    if not 2 <= pieces <= tokens:
        raise KdalabError(
            f"{pieces} pieces of {tokens} tokens; use 2 to as many as there are tokens"
        )
    if decay not in DECAYS:
        raise KdalabError(f"decay {decay!r}; use one of {', '.join(DECAYS)}")
    if not 0 <= swap < pieces - 1:
        raise KdalabError(f"swap = {swap}; use 0 to {pieces - 2}, the first of two neighbours")
    q, k, v, g, beta = _inputs(tokens, DECAYS[decay], seed)
    _, final = naive_recurrent_kda(q, k, v, g, beta, output_final_state=True)
    assert final is not None
    cuts = [round(i * tokens / pieces) for i in range(pieces + 1)]
    maps = [
        chunk_summary(k[:, a:b], v[:, a:b], g[:, a:b], beta[:, a:b], backend="reference")
        for a, b in itertools.pairwise(cuts)
    ]
    state = torch.zeros(1, 1, K, V, dtype=torch.float64)
    states = [state]
    for one in maps:
        state = apply(one, state, backend="reference")
        states.append(state)
    pairs = [_joined(maps[i : i + 2]) for i in range(0, pieces, 2)]
    ends = [cuts[min(i + 2, pieces)] for i in range(0, pieces, 2)]
    starts = [cuts[i] for i in range(0, pieces, 2)]
    other = [*maps[:swap], maps[swap + 1], maps[swap], *maps[swap + 2 :]]
    return ChunkRun(
        tuple(_span(cuts[i], cuts[i + 1], m) for i, m in enumerate(maps)),
        tuple(_plain(s) for s in states),
        _plain(final),
        tuple(_span(a, b, m) for a, b, m in zip(starts, ends, pairs, strict=True)),
        _span(0, tokens, _joined(maps)),
        _span(0, tokens, _in_pairs(maps)),
        swap,
        _span(0, tokens, _joined(other)),
    )


def _inputs(tokens: int, decay: float, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(1, tokens, 1, *shape, dtype=torch.float64, generator=generator)

    q, k = (l2norm(random(K), backend="reference") for _ in range(2))
    g = decay * (0.5 + torch.rand(1, tokens, 1, K, dtype=torch.float64, generator=generator))
    return q, k, random(V), g, torch.sigmoid(random())


def _joined(maps: list[AffineSummary]) -> AffineSummary:
    """One map for several spans, from the left."""
    whole = maps[0]
    for one in maps[1:]:
        whole = compose(whole, one, backend="reference")
    return whole


def _in_pairs(maps: list[AffineSummary]) -> AffineSummary:
    """The same maps, neighbours first, as a parallel scan groups them."""
    while len(maps) > 1:
        maps = [_joined(maps[i : i + 2]) for i in range(0, len(maps), 2)]
    return maps[0]


def _span(start: int, end: int, one: AffineSummary) -> Span:
    return Span(start, end, _plain(one.M), _plain(one.b))


def _plain(x: torch.Tensor) -> np.ndarray:
    return x[0, 0].numpy()
