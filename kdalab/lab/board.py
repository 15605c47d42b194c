"""Policies ranked on several traces: those of one's own beside the built-in ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from kdalab.lab.policies import load_policy
from kdalab.lab.request import Requests
from kdalab.lab.setup import Setup
from kdalab.lab.sweep import Row, sweep

BUILT_IN = (
    ("leaf", "lru"),
    ("leaf+branch", "lru"),
    ("leaf+branch", "lru-path"),
    ("branch-first:8192", "lru"),
    ("every:4096", "lru"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy: the share of prefill work saved on each trace (0 where it failed, and why)."""

    name: str
    saved: tuple[float, ...]
    errors: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Over all traces."""
        return fmean(self.saved)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "mean": self.mean}


def leaderboard(
    traces: Sequence[Requests],
    base: Setup,
    policies: Sequence[str],
    jobs: int = 1,
    on_done: Callable[[int, int], None] | None = None,
) -> list[Entry]:
    """The best first. A policy that fails on a trace saves nothing there, and says why.

    Raises:
        KdalabError: a policy cannot be loaded.
    """
    for own in policies:
        load_policy(own)  # once before hours of replays, so that a wrong name is said at once
    named = {f"{p}, {r}": replace(base, checkpoints=p, retention=r) for p, r in BUILT_IN}
    named |= {p: replace(base, policy=p) for p in policies}
    rows: list[list[Row]] = []
    for number, trace in enumerate(traces):
        at = number * len(named)

        def told(done: int, _: int, at: int = at) -> None:
            if on_done is not None:
                on_done(at + done, len(traces) * len(named))

        rows.append(sweep(trace, list(named.values()), jobs, on_done=told))
    entries = [
        Entry(
            name,
            tuple(float(of[i].get("flops_saved_share") or 0.0) for of in rows),
            tuple(str(of[i]["error"]) for of in rows),
        )
        for i, name in enumerate(named)
    ]
    return sorted(entries, key=lambda e: -e.mean)
