"""Which settings fit a trace: a search, and what its answer rests on.

From a system's defaults, one setting after the other is set to the value that serves the objective
best, until a whole round changes nothing. Then settings go back to their defaults, the least
useful first, while that costs less than ``WORTH``. Every value is tried by a replay, none by a
formula. The answer is a local optimum: no single change of it, among the values tried, would have
been better by more than that (those replays are the sensitivity).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lab.account import assumptions
from kdalab.lab.flags import System, describe, own_policy, sglang, vllm
from kdalab.lab.request import Requests
from kdalab.lab.setup import Setup, shown
from kdalab.lab.sweep import Row, sweep

OBJECTIVES = {"ttft": "mean time to the first token, s", "flops": "prefill FLOPs saved"}
#: Above this share of busy time, waits say how much the machine lacks rather than how long one
#: waits.
OVERLOAD = 0.97
#: A setting leaves the system's default only where it serves the objective better by this share.
WORTH = 0.005


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One setting changed, and what became of the objective. ``value`` is its text."""

    setting: str
    value: str
    objective: float
    hit_rate: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommendation for one system.

    ``flags`` are those of its command line. ``before`` and ``after`` are the rows of a sweep under
    the defaults and under the recommendation; ``setup`` is the recommendation as the lab's text.
    """

    system: str
    objective: str
    setup: str
    flags: tuple[str, ...]
    before: Row
    after: Row
    neighbours: tuple[Neighbour, ...]
    replays: int
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def better(self) -> bool:
        """Does the recommendation serve the objective better than the defaults (or could those not
        be replayed)?"""
        return score(self.after, self.objective) > score(self.before, self.objective)

    @property
    def gain(self) -> float:
        """What the objective gains over the defaults, as a share: 0.2 is 20 % less time, or 20 %
        more work saved. 0 where the defaults have nothing to compare with: they cannot be
        replayed, or save no work at all (``better`` says whether the recommendation does)."""
        if self.before.get("error"):
            return 0.0
        old, new = score(self.before, self.objective), score(self.after, self.objective)
        return (new - old) / abs(old) if old else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        from dataclasses import asdict

        return {**asdict(self), "gain": self.gain, "better": self.better}


def score(row: Row, objective: str) -> float:
    """More is better; a row that could not be replayed is worse than any other."""
    if row.get("error"):
        return float("-inf")
    return -float(row["ttft_mean"]) if objective == "ttft" else float(row["flops_saved"])


def advise(
    trace: Requests,
    base: Setup,
    objective: str = "ttft",
    host: int = 0,
    jobs: int = 1,
    systems: Sequence[str] = ("SGLang", "vLLM"),
    on_replay: Callable[[int], None] | None = None,
    policy: str | None = None,
) -> list[Advice]:
    """Recommended settings for each system.

    Args:
        base: model, memory, machine and clock; what is searched over is replaced.
        objective: "ttft" (with the trace's arrivals) or "flops".
        host: bytes of a host tier that could be had; 0 for none.
        jobs: as in ``sweep``.
        policy: one of one's own, to be searched around as a further system.

    Raises:
        KdalabError: an unknown objective; the defaults and everything near them cannot be
            replayed (named).
    """
    if objective not in OBJECTIVES:
        raise KdalabError(f"objective {objective!r}; allowed: {', '.join(OBJECTIVES)}")
    base = replace(base, arrivals=objective == "ttft" or base.arrivals, policy=None, pd="off")
    made = {
        "SGLang": lambda: sglang(base, host),
        "vLLM": lambda: vllm(base, trace.block_tokens, host),
    }
    wanted = [made[name]() for name in systems]
    if policy is not None:
        wanted.append(own_policy(base, policy, host))
    return [_Search(trace, system, objective, jobs, on_replay).run() for system in wanted]


def at_an_end(setup: Setup, knobs: dict[str, tuple[str, ...]]) -> list[str]:
    """What to say where a setting is the largest or the smallest number that was tried."""
    said = []
    for knob in ("checkpoints", "split", "interval"):
        numbers = sorted(n for v in knobs.get(knob, ()) if (n := _number(v)) is not None)
        text = shown(knob, getattr(setup, knob))
        if len(numbers) > 1 and (here := _number(text)) in (numbers[0], numbers[-1]):
            most, more = ("smallest", "smaller") if here == numbers[0] else ("largest", "larger")
            said.append(f"{knob}={text} is the {most} that was tried; try a {more} one too")
    return said


def _number(value: str) -> float | None:
    try:
        return float(value.rpartition(":")[2])
    except ValueError:
        return None


class _Search:
    def __init__(
        self,
        trace: Requests,
        system: System,
        objective: str,
        jobs: int,
        on_replay: Callable[[int], None] | None,
    ) -> None:
        self.trace, self.system, self.objective = trace, system, objective
        self.jobs, self.on_replay = jobs, on_replay
        self.rows: dict[Setup, Row] = {}

    def run(self) -> Advice:
        best = self.system.default
        self.replay([best])
        before = None
        while best != before:  # ends: each change is a real gain, and there are finitely many
            before = best
            for knob in self.system.knobs:
                best = self.best_of(self.variants(best, knob), best)
        best = self.simpler(best)
        if self.rows[best].get("error"):
            raise KdalabError(f"{self.system.name}: {self.rows[best]['error']}")
        return self.advice(best)

    def variants(self, setup: Setup, knob: str) -> dict[str, Setup]:
        """The setup with each value of one setting, as far as the trace's blocks allow. Where the
        system does not start with that value beside the others, those change too, and the text of
        the value says so."""
        found = {}
        for value in self.system.knobs[knob]:
            try:
                changed = Setup.parse([f"{knob}={value}"], setup)
            except KdalabError:
                continue
            fitting = self.system.allowed(changed, knob)
            also = [
                f"{name}={shown(name, getattr(fitting, name))}"
                for name in self.system.knobs
                if getattr(fitting, name) != getattr(changed, name)
            ]
            if fitting != setup:
                found[" with ".join([value, " ".join(also)]) if also else value] = fitting
        return found

    def best_of(self, variants: dict[str, Setup], now: Setup) -> Setup:
        """The best of them; ``now`` unless one is really better."""
        self.replay(list(variants.values()))
        return max([now, *variants.values()], key=lambda s: score(self.rows[s], self.objective))

    def simpler(self, best: Setup) -> Setup:
        """``best`` with every setting back at the default that costs nearly nothing: all of them
        together less than ``WORTH`` of the objective."""
        top = score(self.rows[best], self.objective)
        while True:
            changed = [k for k in self.system.knobs if self.differs(best, k)]
            back = [replace(best, **{k: getattr(self.system.default, k)}) for k in changed]
            back = [s for s, k in zip(back, changed, strict=True) if self.system.allowed(s, k) == s]
            if not back:
                return best
            self.replay(back)
            found = max(back, key=lambda s: score(self.rows[s], self.objective))
            if score(self.rows[found], self.objective) < top - WORTH * abs(top):
                return best
            best = found

    def differs(self, setup: Setup, knob: str) -> bool:
        """Has a setting left its default?"""
        return bool(getattr(setup, knob) != getattr(self.system.default, knob))

    def replay(self, setups: Sequence[Setup]) -> None:
        new = [s for s in setups if s not in self.rows]
        done = len(self.rows)
        for setup, row in zip(new, sweep(self.trace, new, self.jobs), strict=True):
            self.rows[setup] = row
        if self.on_replay is not None and len(self.rows) > done:
            self.on_replay(len(self.rows))

    def advice(self, best: Setup) -> Advice:
        neighbours = []
        for knob in self.system.knobs:
            variants = self.variants(best, knob)
            self.replay(list(variants.values()))
            for value, setup in variants.items():
                row = self.rows[setup]
                known = not row.get("error")
                neighbours.append(
                    Neighbour(
                        knob,
                        value,
                        abs(score(row, self.objective)) if known else 0.0,
                        row["hit_rate"] if known else 0.0,
                        row.get("error", ""),
                    )
                )
        row = self.rows[best]
        warnings = []
        if best.memory is None:
            warnings.append(
                "memory has no limit here, so nothing was evicted and this says little about a "
                "real machine. Give what it has: --memory 256GiB"
            )
        if best.arrivals and row["utilisation"] > OVERLOAD:
            warnings.append(
                f"the machine is busy {row['utilisation']:.1%} of the time: this trace brings more "
                "than it can prefill, and the times are mostly waits. Take more devices, or slow "
                "the trace down with speed=0.5"
            )
        return Advice(
            self.system.name,
            self.objective,
            str(best),
            tuple(describe(best, self.trace.block_tokens)),
            self.rows[self.system.default],
            row,
            tuple(neighbours),
            len(self.rows),
            (
                *assumptions(best, self.trace.block_tokens),
                *self.system.limits,
                *at_an_end(best, self.system.knobs),
            ),
            tuple(warnings),
        )
