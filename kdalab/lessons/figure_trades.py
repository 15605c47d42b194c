"""Replays of one trace for figures: what a placement costs, and what a budget is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.kv_only import lru_hits
from kdalab.lab.kv_only_tree import PromptTree, hit_tokens
from kdalab.lab.live import LiveReplay
from kdalab.lab.request import Trace
from kdalab.lab.sweep import pareto
from kdalab.spec import ModelSpec

PLACEMENTS = ("leaf", "leaf+branch", "every:4096", "every:16384")


@dataclass(frozen=True, slots=True)
class Trade:
    """One placement on the whole trace: the most bytes of latent KV and checkpoints in use, those
    of checkpoints at the end, the share of prompt tokens restored (0 to 1), checkpoints written,
    and whether some other placement needs no more bytes and restores as much."""

    placement: str
    peak_bytes: int
    state_bytes: int
    share: float
    states: int
    beaten: bool


def placement_trades(
    trace: Trace, spec: ModelSpec, placements: Sequence[str], budget: int | None = None
) -> tuple[Trade, ...]:
    """Replay ``trace`` once for each placement, with ``budget`` bytes or without a limit.

    Raises:
        KdalabError: an unknown placement, an interval off the trace's blocks, or a budget in which
            one request does not fit.
    """
    live = LiveReplay(trace, spec)
    found = {text: live.run(parse_placement(text), budget) for text in placements}
    rows = [
        {"placement": text, "peak_bytes": r.peak_bytes, "hit_rate": r.token_hit_rate}
        for text, r in found.items()
    ]
    best = {row["placement"] for row in pareto(rows)}
    return tuple(
        Trade(
            text, r.peak_bytes, r.state_bytes, r.token_hit_rate, r.states_written, text not in best
        )
        for text, r in found.items()
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BudgetCurves:
    """Shares of prompt tokens (0 to 1) over budgets in bytes: ``kv_only`` as a simulator without
    state counts them, ``honest`` what is restored, by placement, and ``known`` what the same cache
    knows the latent KV of; None where the budget does not hold one request."""

    budgets: tuple[int, ...]
    kv_only: tuple[float, ...]
    honest: dict[str, tuple[float | None, ...]]
    known: dict[str, tuple[float | None, ...]]


def hit_rates_over_budgets(
    trace: Trace, spec: ModelSpec, budgets: Sequence[int], placements: Sequence[str] = PLACEMENTS
) -> BudgetCurves:
    """KV-only hit rates (least recent use, all of the trace) beside what can be restored.

    Raises:
        KdalabError: no budget, or one below 1 byte; else as :func:`placement_trades`, but a budget
            too small for one request is a None and no error.
    """
    sizes = sorted(set(budgets))
    if not sizes or sizes[0] < 1:
        raise KdalabError("give one budget or more, each of at least 1 byte")
    live = LiveReplay(trace, spec)
    tree = PromptTree(trace, whole_only=True)
    total = sum(tree.tokens)
    hits = lru_hits(tree, [b // live.page_bytes for b in sizes])
    honest: dict[str, tuple[float | None, ...]] = {}
    known: dict[str, tuple[float | None, ...]] = {}
    for text in placements:
        runs = [
            live.run(parse_placement(text), b) if b >= live.smallest_budget else None for b in sizes
        ]
        honest[text] = tuple(r.token_hit_rate if r else None for r in runs)
        known[text] = tuple(r.kv_only_hit_rate if r else None for r in runs)
    kv_only = tuple(hit_tokens(tree, h, 0) / total for h in hits)
    return BudgetCurves(tuple(sizes), kv_only, honest, known)
