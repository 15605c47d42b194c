"""The public ops on affine summaries: a span of tokens as one map ``S' = M S + b``."""

from typing import NamedTuple

import torch

from kdalab_kernels import checks
from kdalab_kernels.dispatch import implementation


class AffineSummary(NamedTuple):
    """M ``[B, HV, K, K]`` and b ``[B, HV, K, V]``: what a span of tokens does to any state."""

    M: torch.Tensor
    b: torch.Tensor


def chunk_summary(
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    backend: str = "auto",
) -> AffineSummary:
    """The affine map of T tokens on the state (FLA's context parallelism computes the same pair).

    For one summary per chunk reshape ``[B, NT * C, ...]`` to ``[B * NT, C, ...]`` first.
    M is as large as the state when K = V: a tool for parallel scans, not for storage.

    Args:
        k: ``[B, T, H, K]`` (normalise it first where the layer does).
        v: ``[B, T, HV, V]``; g: ``[B, T, HV, K]`` log-decay; beta: ``[B, T, HV]``.

    Returns:
        M and b in float32 (float64 for float64 k); the identity map and zeros for T = 0.
    """
    checks.qkvgb(k, k, v, g, beta)
    run = implementation("chunk_summary", backend, k.device, k.dtype)
    checks.decay_values(g)
    checks.beta_values(beta)
    return AffineSummary(*run(k, v, g, beta))


def compose(first: AffineSummary, second: AffineSummary, *, backend: str = "auto") -> AffineSummary:
    """The summary of the first span followed by the second: ``(M2 M1, M2 b1 + b2)``."""
    for name, s in (("first", first), ("second", second)):
        _check(name, s)
    if first.b.shape != second.b.shape:
        raise ValueError(
            f"second.b: expected shape {list(first.b.shape)}, given {list(second.b.shape)}"
        )
    run = implementation("compose", backend, first.M.device, first.M.dtype)
    return AffineSummary(*run(*first, *second))


def apply(summary: AffineSummary, S: torch.Tensor, *, backend: str = "auto") -> torch.Tensor:
    """``M S + b``: the state ``[B, HV, K, V]`` after the span, from the state S before it."""
    _check("summary", summary)
    checks.shaped("S", S, "[B, HV, K, V]", tuple(summary.b.shape))
    checks.same_place(("summary.M", summary.M), ("S", S))
    if S.dtype != summary.M.dtype:
        raise ValueError(f"S: expected the dtype of summary.M, {summary.M.dtype}, given {S.dtype}")
    run = implementation("apply", backend, S.device, S.dtype)
    out: torch.Tensor = run(*summary, S)
    return out


def _check(name: str, s: AffineSummary) -> None:
    if not isinstance(s, AffineSummary):
        raise ValueError(f"{name}: expected an AffineSummary, given {type(s).__name__}")
    for part, x in zip(("M", "b"), s, strict=True):
        if checks.floating(f"{name}.{part}", x).ndim != 4:
            raise ValueError(
                f"{name}.{part}: expected 4 axes [B, HV, K, ..], given {list(x.shape)}"
            )
        checks.same_place((f"{name}.M", s.M), (f"{name}.{part}", x))
        if x.dtype != s.M.dtype:
            raise ValueError(
                f"{name}.{part}: expected the dtype of {name}.M, {s.M.dtype}, given {x.dtype}"
            )
    K = s.b.shape[-2]
    checks.shaped(f"{name}.M", s.M, "[B, HV, K, K]", (*s.b.shape[:-2], K, K))
