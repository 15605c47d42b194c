"""FLOP-aware eviction. The specification is the project's Marconi order."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache.marconi import Worth, scores
from kdalab.exercises.exercise import Exercise, Given
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    node = st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(1, 20))
    nodes = draw(st.lists(node, min_size=1, max_size=5))
    alpha = draw(st.sampled_from([0.0, 1.0, 0.5, 2.0]))
    return {"nodes": nodes, "alpha": alpha, "now": 10 + draw(st.integers(0, 5))}


def expected(nodes: list[tuple[int, int, int]], alpha: float, now: int) -> list[float]:
    """:func:`kdalab.cache.marconi.scores`."""
    worth = [Worth(1 / (now - used), flops / nbytes) for used, flops, nbytes in nodes]
    return [s.total for s in scores(worth, alpha)]


def picture(given: Given, expected: list[float], got: Any) -> Picture:
    """A bar a candidate, and the one that goes."""
    rows = []
    for title, found in (("score", expected), ("yours", got)):
        for i, s in enumerate(found or []):
            least = found.index(min(found)) == i
            label = f"{s:.3f}{' goes' if least else ''}"
            cells = (Cell(0, max(s, 0.0), "free" if least else "kv", label),)
            rows.append(Row(f"{title} {i}", cells))
    return Rows(tuple(rows), "score")


EXERCISE = Exercise(
    number=21,
    title="Marconi's scores",
    level=3,
    notebook="12_retention_and_marconi",
    function="marconi_scores",
    statement="""
        Marconi (arXiv 2411.19379) evicts the candidate of the least score

            S = recency + alpha * efficiency
            recency     1 / (now - last_use)
            efficiency  flops_saved / nbytes

        where both terms are min-max normalised over the candidates: the least becomes 0, the
        largest 1. A term that is equal for all of them counts 0 for all. Write
        `marconi_scores(nodes, alpha, now)`, nodes being `(last_use, flops_saved, nbytes)`: the
        scores, in order.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Compute both raw terms for all candidates before you normalise either.",
        "(v - min) / (max - min) divides by 0 when all are equal, also for a single candidate.",
        "Normalise, then weigh: alpha multiplies the normalised efficiency only.",
    ),
    picture=picture,
    tolerance=1e-9,
)
