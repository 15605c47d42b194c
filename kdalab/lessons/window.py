"""A boundary's state rebuilt from the tokens just before it: sliding-window attention against KDA.

Small stacks of one kind of layer, random weights, fp64: x becomes x + mix(norm(x)) in each layer.
The stack is run over the whole prompt, and again from a zero state over the last R tokens only; the
states at the boundary are compared. Sliding-window attention of window W attends to a token and
the W - 1 before it, so L layers see L (W - 1) tokens back and no further: its state is exact from
there on. KDA's recurrence is that of ``kdalab_kernels.naive_recurrent_kda``; it reaches back to the
first token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kdalab.errors import KdalabError
from kdalab.lessons.chunks import DECAYS
from kdalab_kernels import l2norm, naive_recurrent_kda

WIDTH = 16
MAX_WINDOW_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class WindowRun:
    """Relative errors, max |difference| / max |value| over all layers, of the state at the end.

    ``replayed`` are the tokens run before the boundary, ascending, the last the whole prompt;
    ``swa`` and ``kda`` the errors of each. ``resumed`` is KDA's from its own state saved
    ``reach`` tokens before the boundary, which is what a checkpoint does; ``reach`` is L (W - 1).
    """

    tokens: int
    window: int
    layers: int
    replayed: tuple[int, ...]
    swa: tuple[float, ...]
    kda: tuple[float, ...]
    reach: int
    resumed: float

    def at(self, tokens: int) -> tuple[float, float]:
        """Errors of (SWA, KDA) after replaying so many of ``replayed``."""
        i = self.replayed.index(tokens)
        return self.swa[i], self.kda[i]


def play_window(tokens: int, window: int, layers: int, decay: str, seed: int = 0) -> WindowRun:
    """Rebuild the state at ``tokens`` from 1, 2, 4, ... tokens before it, in both kinds.

    Raises:
        KdalabError: an unknown decay, a window below 2, no layer, or a prompt that is too long or
            no longer than what the layers see back.
    """
    if decay not in DECAYS:
        raise KdalabError(f"decay {decay!r}; use one of {', '.join(DECAYS)}")
    reach = layers * (window - 1)
    if window < 2 or layers < 1 or not reach < tokens <= MAX_WINDOW_TOKENS:
        raise KdalabError(
            f"{tokens:,} tokens, window {window}, {layers} layers; use a window of 2 or more, a "
            f"layer or more, and more than layers x (window - 1) = {reach:,} tokens, at most "
            f"{MAX_WINDOW_TOKENS:,}"
        )
    powers = {1 << k for k in range(tokens.bit_length()) if 1 << k < tokens}
    replayed = sorted({*powers, max(1, reach - 1), reach, tokens})
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, WIDTH, dtype=torch.float64, generator=make)
    alive = torch.arange(tokens) >= tokens - torch.tensor(replayed)[:, None]  # [R, token]
    weights = [_weights(make) for _ in range(layers)]
    swa = _swa(x, alive, weights, window)
    kda = _kda(x, alive, weights, DECAYS[decay])
    resumed = _resumed(x, weights, DECAYS[decay], reach)
    return WindowRun(
        tokens, window, layers, tuple(replayed), tuple(_errors(swa)), tuple(_errors(kda)), reach,
        max(_error(a, b[-1]) for a, b in zip(resumed, kda, strict=True)),
    )  # fmt: skip


Weights = dict[str, torch.Tensor]


def _weights(make: torch.Generator) -> Weights:
    def draw(columns: int) -> torch.Tensor:
        made = torch.randn(WIDTH, columns, dtype=torch.float64, generator=make)
        return made / math.sqrt(WIDTH)

    return {"q": draw(WIDTH), "k": draw(WIDTH), "v": draw(WIDTH), "o": draw(WIDTH),
            "g": draw(WIDTH), "beta": draw(1)}  # fmt: skip


def _norm(x: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def _swa(
    x: torch.Tensor, alive: torch.Tensor, weights: list[Weights], window: int
) -> list[torch.Tensor]:
    """Each layer's state [R, window - 1, 2 WIDTH]: keys and values that later tokens attend to."""
    back = torch.arange(len(x))[:, None] - torch.arange(len(x))
    seen = (back >= 0) & (back < window)
    states, h = [], x.expand(len(alive), -1, -1)
    for w in weights:
        n = _norm(h)
        q, k, v = n @ w["q"], n @ w["k"], n @ w["v"]
        allowed = seen & alive[:, None, :] | torch.eye(len(x), dtype=torch.bool)
        scores = (q @ k.transpose(1, 2) / math.sqrt(WIDTH)).masked_fill(~allowed, -math.inf)
        h = h + torch.softmax(scores, -1) @ v @ w["o"]
        kept = torch.cat([k, v], -1) * alive[..., None]
        states.append(kept[:, len(x) - (window - 1) :])
    return states


def _layer(
    h: torch.Tensor, alive: torch.Tensor, w: Weights, decay: float, start: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One KDA layer over [R, token, WIDTH]; a token that is not alive neither decays nor writes."""
    n = _norm(h)
    q, k = (l2norm((n @ w[name])[:, :, None], backend="reference") for name in "qk")
    v = (n @ w["v"])[:, :, None]
    g = decay * (0.5 + torch.sigmoid(n @ w["g"])) * alive[..., None]
    beta = torch.sigmoid(n @ w["beta"]) * alive[..., None]
    out, state = naive_recurrent_kda(
        q, k, v, g[:, :, None], beta, initial_state=start, output_final_state=True
    )
    assert state is not None
    return h + out[:, :, 0] @ w["o"], state


def _kda(
    x: torch.Tensor, alive: torch.Tensor, weights: list[Weights], decay: float
) -> list[torch.Tensor]:
    """Each layer's state [R, 1, K, V]."""
    states, h = [], x.expand(len(alive), -1, -1)
    for w in weights:
        h, state = _layer(h, alive, w, decay, None)
        states.append(state)
    return states


def _resumed(
    x: torch.Tensor, weights: list[Weights], decay: float, reach: int
) -> list[torch.Tensor]:
    """Every layer's state at the end, from its state ``reach`` tokens earlier."""
    cut, states = len(x) - reach, []
    before, after = x[None, :cut], x[None, cut:]
    for w in weights:
        one = torch.ones(1, cut, dtype=torch.bool), torch.ones(1, reach, dtype=torch.bool)
        before, saved = _layer(before, one[0], w, decay, None)
        after, state = _layer(after, one[1], w, decay, saved)
        states.append(state[0])
    return states


def _errors(states: list[torch.Tensor]) -> list[float]:
    return [max(_error(s[i], s[-1]) for s in states) for i in range(len(states[0]))]


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())
