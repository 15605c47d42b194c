"""A trace in the lab, on a page: one account, a sweep with its yardsticks, and advice.

All replays are those of ``kdalab lab``; a run tells where it is before every pass over the trace,
and now and then on the way, so that it can be stopped anywhere.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from kdalab.errors import KdalabError
from kdalab.lab.account import Account
from kdalab.lab.advise import Advice, advise, score
from kdalab.lab.bounds import Problem, upper_bound
from kdalab.lab.generate import generated_trace, shape
from kdalab.lab.kv_only import clairvoyant_hits
from kdalab.lab.replay import check_budget
from kdalab.lab.request import Report, Trace, TraceRequest, report_of
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import DEFAULTS, Setup, shown
from kdalab.lab.sweep import Row, combine, pareto, sweep
from kdalab.spec import state_sizes

LAB_TRACES = {"agent-like": 60, "chat-like": 100}
"""Requests of the built-in traces, by the name of their preset."""

MAX_REPLAYS = 400
"""Replays after which a search for advice is given up."""

PLACEMENTS = ("every:4096", "leaf+branch", "branch-first:8192")
BOUND_STEPS = 80
_EVERY = 256  # requests between two reports of a pass

GAINS = {"ttft": "ttft_mean", "flops": "flops_saved_share"}
"""The figure of a row that an objective is about."""

At = Callable[[str, int, int | None], None]
"""Told (what is done, passes or sizes done, in all or None); may raise to stop the run."""


def _nowhere(what: str, done: int, total: int | None) -> None:
    return


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What is possible in ``memory`` bytes, in tokens over the whole trace: ``kv_only`` is hit by
    the clairvoyant policy of a model without a recurrent state, ``bound`` is exceeded by no policy
    of this one (its states taken as INT8, the smallest form)."""

    memory: int
    kv_only: int
    bound: int


@dataclass(frozen=True, slots=True)
class LabRun:
    """Everything that the page shows. ``rows`` are those of the sweep, ``best`` the ones that no
    other beats in ``hit_rate``; ``account`` is the replay under ``setup``. ``known`` tokens were in
    an earlier prompt, with one left to compute: what unlimited memory restores."""

    trace: str
    requests: int
    setup: Setup
    objective: str
    account: Account
    rows: tuple[Row, ...]
    best: tuple[Row, ...]
    known: int
    yardsticks: tuple[Yardstick, ...]
    advice: tuple[Advice, ...]
    report: Report

    def share(self, tokens: int) -> float:
        """Of all prompt tokens, 0 to 1."""
        return tokens / self.account.input_tokens if self.account.input_tokens else 0.0

    @property
    def here(self) -> Yardstick | None:
        """The yardstick at the chosen memory."""
        return next((y for y in self.yardsticks if y.memory == self.setup.memory), None)

    @property
    def worst(self) -> Advice:
        """The system whose defaults lose most against its advice."""
        return max(self.advice, key=lambda a: (a.gain, a.better))


def play_lab(
    trace: Trace, setup: Setup, objective: str, systems: tuple[str, ...], at: At = _nowhere
) -> LabRun:
    """Replay, sweep and advise.

    Args:
        setup: with a memory in bytes; what is swept and searched over is replaced.
        objective: "ttft" (by the trace's clock) or "flops".
        systems: of "SGLang", "vLLM".

    Raises:
        KdalabError: an unknown name; a memory in which a request does not fit.
    """
    memory = setup.memory
    if memory is None:
        raise KdalabError("memory without a limit; give one, nothing is evicted without")
    if objective == "ttft":
        setup = Setup.parse("arrivals=on", setup)
    sizes = state_sizes(setup.spec)
    page = sizes.latent_bytes(trace.block_tokens)
    check_budget(trace, memory, page, sizes.checkpoint_bytes)
    watched = _Watched.of(trace, at)
    watched.begin("account")
    account = replay_setup(watched, setup)
    watched.begin("sweep")
    grid = {
        "memory": tuple(str(memory * n // 2) for n in (1, 2, 4, 8)),
        "checkpoints": PLACEMENTS,
        "int8": ("off", "on"),
    }
    setups = combine(setup, grid)[0]
    watched.total = len(setups)
    rows = sweep(watched, setups)
    best = pareto(rows, "memory")
    known, yardsticks = _yardsticks(watched, setup, sorted({r["memory"] for r in rows}))
    found = []
    for system in systems:
        watched.begin(system)
        found += advise(watched, setup, objective, systems=(system,), on_replay=_limit)
    return LabRun(
        trace.name, account.requests, setup, objective, account, tuple(rows), tuple(best), known,
        yardsticks, tuple(found), report_of(trace),
    )  # fmt: skip


@lru_cache(maxsize=64)
def play_built_in(name: str, setup: Setup, objective: str, systems: tuple[str, ...]) -> LabRun:
    """``play_lab`` of a built-in trace.

    Raises:
        KdalabError: as ``play_lab``, and for a trace that is not in ``LAB_TRACES``.
    """
    return play_lab(built_in(name), setup, objective, systems)


@lru_cache(maxsize=4)
def built_in(name: str) -> Trace:
    """A trace of ``LAB_TRACES``.

    Raises:
        KdalabError: no such trace.
    """
    if name not in LAB_TRACES:
        raise KdalabError(f"trace {name!r}; use one of {', '.join(LAB_TRACES)}")
    return generated_trace(LAB_TRACES[name], shape(name), 0, name)


def advise_command(
    source: str,
    setup: Setup,
    objective: str,
    systems: tuple[str, ...],
    limit: int | None = None,
    *,
    sort: bool = False,
) -> str:
    """The command that searches as the page does.

    Args:
        source: a file's name, or "--made-up PRESET:N".
        limit: requests from the beginning; None for all.
        sort: the file's lines are not in the order of arrival.
    """
    trace = source if source.startswith("--made-up ") else shlex.quote(_path(source))
    system = systems[0] if len(systems) == 1 else "both"
    words = [
        "kdalab lab advise", trace, f"--model {shlex.quote(setup.model)}",
        f"--memory {shown('memory', setup.memory)}", f"--objective {objective}",
        f"--system {system}",
    ]  # fmt: skip
    extra = [
        f"{name}={shown(name, getattr(setup, name))}"
        for name in ("hardware", *(("arrivals",) if objective == "flops" else ()))
        if getattr(setup, name) != DEFAULTS[name]
    ]
    if extra:
        words.append(f"--set {shlex.quote(' '.join(extra))}")
    if limit is not None:
        words.append(f"--limit {limit}")
    if sort:
        words.append("--sort")
    return " ".join(words)


def _path(name: str) -> str:
    return f"./{name}" if name.startswith("-") else name


def flag_lines(one: Advice) -> str:
    """The flags as a command's arguments, one a line, to copy; what is no flag is a comment."""
    flags = [f for f in one.flags if f.startswith("--")]
    notes = [f"# {f}" for f in one.flags if not f.startswith("--")]
    return "\n".join([*notes, " \\\n".join(flags)])


def gain_of(one: Advice) -> float:
    """The objective's gain over the defaults, as ``Advice.gain``; 0 where nothing compares."""
    return one.gain if score(one.before, one.objective) != float("-inf") else 0.0


def _yardsticks(
    trace: _Watched, setup: Setup, memories: list[int]
) -> tuple[int, tuple[Yardstick, ...]]:
    trace.begin("bounds")
    sizes = state_sizes(setup.spec)
    problem = Problem.of(trace, setup.spec)
    smallest = Problem(
        problem.tree, problem.choices, problem.page_bytes, sizes.checkpoint_int8_bytes
    )
    tree, block = problem.tree, problem.tree.block_tokens
    found, known = [], 0
    for done, memory in enumerate(memories):
        trace.at("bounds", done, len(memories))
        bound = upper_bound(smallest, memory, BOUND_STEPS)
        hits = clairvoyant_hits(tree, memory // problem.page_bytes)
        ideal = sum(
            min(h, (n - 1) // block) * block for h, n in zip(hits, tree.tokens, strict=True)
        )
        known = bound.known
        found.append(Yardstick(memory, ideal, bound.tokens))
    return known, tuple(found)


class _Watched(Trace):
    """A trace that tells at every pass, and on the way, where the run is."""

    __slots__ = ("at", "passes", "total", "what")

    at: At
    what: str
    passes: int
    total: int | None

    @classmethod
    def of(cls, trace: Trace, at: At) -> _Watched:
        own = cls(
            trace.name, trace.requests, trace.n_skipped, trace.skipped, trace.block_tokens,
            trace.format, trace.notes,
        )  # fmt: skip
        own.at = at
        own.begin("account")
        return own

    def begin(self, what: str) -> None:
        """A new part of the run, of a number of passes that is not known."""
        self.what, self.passes, self.total = what, 0, None

    def __iter__(self) -> Iterator[TraceRequest]:
        self.passes += 1
        for done, request in enumerate(self.requests):
            if done % _EVERY == 0:
                self.at(self.what, self.passes, self.total)
            yield request


def _limit(replays: int) -> None:
    if replays > MAX_REPLAYS:
        raise KdalabError(f"the search took more than {MAX_REPLAYS} replays; use fewer requests")
