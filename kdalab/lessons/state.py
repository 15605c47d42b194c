"""A list of pairs against one matrix: what a state of fixed size can still answer.

Every token stores a pair of a key and a value. The matrix is written by the reference recurrence
(``S = M S + b`` for each token); the list keeps every pair. Everything is fp64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from kdalab.errors import KdalabError
from kdalab.recall import Row, curves
from kdalab_kernels import naive_recurrent_kda

K = V = 16
"""Channels of a key and of a value."""

MOST_PAIRS = 32

RECALL_PAIRS = (8, 16, 32, 64, 128)
RECALL_EPISODES = 2
RECALL_SIMILARITY = 0.9


@dataclass(frozen=True, slots=True)
class Write:
    """After one more token.

    Shapes: ``state`` [K, V]; ``error`` [pair so far]: |answer - value| / |value| when the matrix is
    asked for each key stored, with the newest value stored under it; ``found``: the stored value
    nearest to the answer is the right one; ``before``: the same error of this token's pair just
    before it was written, which is what the delta rule corrects.
    """

    state: np.ndarray
    error: tuple[float, ...]
    found: tuple[bool, ...]
    before: float


@dataclass(frozen=True, slots=True)
class StateRun:
    """One sequence of writes. ``keys`` [pair, K] of length 1, ``values`` [pair, V]; ``cosine`` is
    the mean |cosine| of two different keys; ``rewritten`` says that the last token stores a new
    value under the first key. ``list_error`` is the worst error of the list: it is asked for the
    newest pair whose key fits best. ``writes[i]`` is after i + 1 tokens."""

    keys: np.ndarray
    values: np.ndarray
    cosine: float
    decay: float
    delta: bool
    rewritten: bool
    writes: tuple[Write, ...]
    list_error: float

    @property
    def pairs(self) -> int:
        """Tokens in all."""
        return len(self.writes)


def play_state(
    pairs: int, similarity: float, decay: float, *, delta: bool = True, rewrite: bool = False,
    seed: int = 1,
) -> StateRun:  # fmt: skip
    """Write ``pairs`` pairs one by one, and ask for all of them after each.

    Args:
        pairs: tokens, 1..32. Up to 15 keys (16 at right angles) stand at exactly the angle asked
            for; more cannot, and point in random directions around what they have in common.
        similarity: cosine of two keys, 0 up to but not including 1.
        decay: what a token leaves of the state before it, in (0, 1].
        delta: the delta rule; without it, every token just adds ``k v^T``.
        rewrite: the last token stores a new value under the first key.

    Raises:
        KdalabError: a number outside its range.
    """
    if not 1 <= pairs <= MOST_PAIRS:
        raise KdalabError(f"{pairs} pairs; use 1 to {MOST_PAIRS}")
    if not (0 <= similarity < 1 and 0 < decay <= 1):
        raise KdalabError(
            f"similarity {similarity:g}, decay {decay:g}; use 0 <= similarity < 1, 0 < decay <= 1"
        )
    random = torch.Generator().manual_seed(seed)
    keys = _keys(pairs, similarity, random)
    values = torch.randn(pairs, V, dtype=torch.float64, generator=random)
    values /= values.norm(dim=-1, keepdim=True)
    if rewrite and pairs > 1:
        keys[-1] = keys[0]
    state = torch.zeros(K, V, dtype=torch.float64)
    writes = []
    for i in range(pairs):
        before = _error(state.T @ keys[i], values[i])
        state = _step(state, keys[i], values[i], decay, delta)
        asked = [_newest(keys, j, i) for j in range(i + 1)]
        answers = keys[: i + 1] @ state
        errors = [_error(a, values[j]) for a, j in zip(answers, asked, strict=True)]
        nearest = torch.cdist(answers, values[: i + 1]).argmin(-1).tolist()
        right = [near == j for near, j in zip(nearest, asked, strict=True)]
        writes.append(Write(state.numpy().copy(), tuple(errors), tuple(right), before))
    gram = (keys @ keys.T).abs()
    others = gram[~torch.eye(pairs, dtype=torch.bool)]
    best = [int((keys @ k > (keys @ k).max() - 1e-12).nonzero().max()) for k in keys]
    listed = max(_error(values[b], values[_newest(keys, j, pairs - 1)]) for j, b in enumerate(best))
    cosine = float(others.mean()) if pairs > 1 else 0.0
    return StateRun(
        keys.numpy(), values.numpy(), cosine, decay, delta, rewrite and pairs > 1, tuple(writes),
        listed,
    )  # fmt: skip


def _step(
    state: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: float, delta: bool
) -> torch.Tensor:
    """One token of the reference recurrence, or of plain linear attention with the same decay."""
    if not delta:
        return decay * state + torch.outer(key, value)
    k = key.view(1, 1, 1, K)
    g = torch.full((1, 1, 1, K), float(np.log(decay)), dtype=torch.float64)
    beta = torch.ones(1, 1, 1, dtype=torch.float64)
    _, new = naive_recurrent_kda(
        k, k, value.view(1, 1, 1, V), g, beta, scale=1.0, initial_state=state[None, None],
        output_final_state=True,
    )  # fmt: skip
    assert new is not None
    return new[0, 0]


def _keys(pairs: int, similarity: float, random: torch.Generator) -> torch.Tensor:
    """Unit keys ``sqrt(s) c + sqrt(1 - s) u_i``; the u_i stand at right angles to c, and to each
    other as far as the channels go."""
    frame = torch.linalg.qr(
        torch.randn(K, K, dtype=torch.float64, generator=random)
    ).Q.T  # fmt: skip
    centre, own = frame[0], frame[1:]
    if not similarity:  # nothing in common: the centre is one more direction
        own = torch.cat([own, frame[:1]])
    more = torch.randn(max(0, pairs - len(own)), K, dtype=torch.float64, generator=random)
    more -= torch.outer(more @ centre, centre)
    more /= more.norm(dim=-1, keepdim=True)
    own = torch.cat([own, more])[:pairs]
    return similarity**0.5 * centre + (1 - similarity) ** 0.5 * own


def _newest(keys: torch.Tensor, j: int, last: int) -> int:
    """The newest pair up to ``last`` with the very key of pair ``j``."""
    return max(i for i in range(j, last + 1) if torch.equal(keys[i], keys[j]))


def _error(answer: torch.Tensor, value: torch.Tensor) -> float:
    return float((answer - value).norm() / value.norm())


@lru_cache(maxsize=1)
def recall_rows() -> tuple[Row, ...]:
    """What the three trained networks recall, measured once a process: two episodes a number of
    pairs, so that a page need not wait; ``kdalab recall`` asks more."""
    rows = curves(pairs=RECALL_PAIRS, similarities=(RECALL_SIMILARITY,), episodes=RECALL_EPISODES)
    return tuple(rows)
