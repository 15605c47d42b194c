"""One buffer for latent pages and states, beside a fixed split of the same bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kdalab.cache.placement import Every
from kdalab.engine import Engine, EngineConfig, Event
from kdalab.engine import events as ev
from kdalab.errors import KdalabError
from kdalab.lessons.player import Recording
from kdalab.lessons.scenario import Prompt, Scenario
from kdalab.lessons.steps import Step, steps_of
from kdalab.memory.unified import state_bytes

if TYPE_CHECKING:
    from kdalab.model import HybridModel

UNIFIED_STATES = 10
"""The buffer's size, in bytes of so many states."""

_RULES = "You are a travel agent. Name the platform and the time, and never invent a train. " * 2
_LONG = "Day {n}: breakfast at seven, the train at nine, a walk, dinner, and a quiet evening. "

_FAN = (
    Prompt("A", _RULES[:136] + "To Bern?", 2),
    Prompt("B", _RULES[:136] + "To Lyon tonight, with a dog, two bicycles and a tent? " * 3, 4),
    Prompt("C", _RULES[:136] + "To Basel at noon, first class, near the dining car? " * 3, 8, True),
)
_TRIP = Prompt("D", "".join(_LONG.format(n=n) for n in range(9))[:420], 2)
_TALK = (
    Prompt("A", (_LONG.format(n=1) * 3)[:110], 30),
    Prompt("B", (_LONG.format(n=2) * 3)[:110], 30, True),
)

WORKLOADS: dict[str, tuple[Prompt, ...]] = {
    "mixed": (*_FAN, _TRIP),
    "fan-out": (*_FAN, replace(_FAN[1], name="D", text=_RULES[:136] + "To Rome, and back? " * 7)),
    "long": (_TRIP,),
    "decode": _TALK,
}


@dataclass(frozen=True, slots=True)
class Held:
    """A slot's place: first byte, virtual number, owner ("cache" or a request)."""

    byte: int
    slot: int
    owner: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The unified buffer at one moment; frontiers, holes and gap in bytes."""

    pages: tuple[Held, ...]
    states: tuple[Held, ...]
    low: int
    high: int
    holes: int
    gated: bool

    @property
    def gap(self) -> int:
        """Free bytes between the frontiers."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class SplitLayout:
    """The fixed split at one moment: each slot's owner, or None; active states come first."""

    pages: tuple[str | None, ...]
    states: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Tally:
    """What one of the two has cost by now. Counts, and bytes where it says so."""

    free_bytes: int = 0
    moves: int = 0
    moved_bytes: int = 0
    evicted_states: int = 0
    evicted_pages: int = 0
    skipped: int = 0
    retracted: int = 0
    refused: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class UnifiedRun:
    """Both runs, step by step of the unified one. ``refusals`` are the split's own messages, with
    the step from which each stands."""

    run: Recording
    total: int
    padding: int
    page_bytes: int
    state_bytes: int
    split_pages: int
    split_active: int
    split_states: int
    layouts: tuple[Layout, ...]
    splits: tuple[SplitLayout, ...]
    tallies: tuple[tuple[Tally, Tally], ...]
    refusals: tuple[tuple[int, str], ...]


@lru_cache(maxsize=1)
def unified_model() -> HybridModel:
    """Two KDA layers and one of MLA: the memory is what this lesson is about."""
    from kdalab.model.tiny import tiny_config, tiny_weights
    from kdalab.model.weights import build

    few = {"num_hidden_layers": 3, "full_attn_layers": (2,), "dense_layers": (0, 1, 2)}
    config = replace(tiny_config(), **few)  # type: ignore[arg-type]
    return build(config, tiny_weights(0, config))


class _Seen(Engine):
    """An engine that looks at its memory after every event, and says a move when it is made."""

    def __init__(self, model: HybridModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self.layouts: list[Layout | SplitLayout] = []
        self.at: list[tuple[int, int]] = []
        self.clock = 0, 0

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.layouts.append(self.layout())
        self.at.append(self.clock)
        if not isinstance(event, ev.Moved):
            self.say_moves()

    def layout(self) -> Layout | SplitLayout:
        if self.buffer is None:
            states = (*self.active.slots.owners(), *self.checkpoints.slots.owners())
            return SplitLayout(self.latents.slots.owners(), states)
        pages, states_ = self.buffer.pages, self.buffer.states
        sides = []
        for side in (pages, states_):
            owned = enumerate(side.owners())
            sides.append(
                tuple(
                    Held(side.place(slot) * side.entry_bytes, slot, owner)
                    for slot, owner in owned
                    if owner is not None
                )
            )
        holes = pages.n_holes * pages.entry_bytes + states_.n_holes * states_.entry_bytes
        low, high = pages.frontier, states_.frontier
        return Layout(sides[0], sides[1], low, high, holes, self.buffer.gated)


@lru_cache(maxsize=16)
def play_unified(
    workload: str = "mixed",
    lazy: bool = False,
    share: int = 70,
    gate: str = "none",
) -> UnifiedRun:
    """Run one workload in both memories; what has been run is kept, for it is plain data.

    Args:
        workload: one of ``WORKLOADS``.
        lazy: leave holes until somebody needs the gap.
        share: percent of the bytes that the fixed split gives to states.
        gate: "none", "second" (a transfer holds every address while the second arrivals run),
            or "forever" (it never lets go).

    Raises:
        KdalabError: an unknown workload or gate, or a share that leaves too few states or pages.
    """
    if workload not in WORKLOADS or gate not in ("none", "second", "forever"):
        raise KdalabError(f"{workload!r}, {gate!r}: use one of {', '.join(WORKLOADS)}")
    model, prompts = unified_model(), WORKLOADS[workload]
    shapes = tuple(model.recurrent_shape), tuple(model.conv_shape)
    state = state_bytes(*shapes, model.dtype)
    total = UNIFIED_STATES * state
    config = EngineConfig(
        n_active=2,
        chunk_tokens=128,
        placement=Every(64),
        reserve_output=False,
        check_every_step=True,
        max_running=2,
    )
    one = replace(config, memory="unified", memory_bytes=total, lazy_compaction=lazy)
    mine = _Seen(model, replace(one, compact_moves=1))
    page = mine.latents.page_bytes
    n_states = total * share // 100 // state
    n_pages = (total - total * share // 100) // page
    if n_states < 3 or n_pages < 1:
        raise KdalabError(
            f"{share} % of {total:,} bytes are {n_states} states and leave {n_pages} pages; the "
            "split needs 3 states (2 active, 1 checkpoint) and 1 page"
        )
    other = _Seen(model, replace(config, n_pages=n_pages, n_checkpoints=n_states - 2))
    marks, _ = _drive(mine, prompts, gate)
    _, refused = _drive(other, prompts, "none")
    return _joined(mine, other, prompts, marks, refused, total)


def _drive(
    engine: _Seen, prompts: tuple[Prompt, ...], gate: str
) -> tuple[list[tuple[int, int, str]], list[tuple[int, str]]]:
    """(events before and after a hold or a release, refusals by group of arrivals)."""
    groups: list[list[Prompt]] = []
    for prompt in prompts:
        if prompt.together:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    marks: list[tuple[int, int, str]] = []
    refused = []
    hold = None
    wanted = 0 if gate == "forever" else min(1, len(groups) - 1)
    for number, group in enumerate(groups):
        engine.clock = number, 0
        for prompt in group:
            try:
                engine.submit(list(prompt.text.encode()), prompt.max_new_tokens, prompt.name)
            except KdalabError as error:
                refused.append((number, f"{prompt.name}: {error}"))
        while not engine.is_idle:
            engine.clock = number, engine.clock[1] + 1
            engine.step()
            if gate != "none" and number == wanted and hold is None:
                hold = engine.hold_moves("a transfer")
                marks.append((len(engine.events), len(engine.events), "Held"))
        if hold is not None and hold.is_held and gate == "second":
            before = len(engine.events)
            hold.release()
            engine.say_moves()
            marks.append((before, len(engine.events), "Released"))
    return marks, refused


def _joined(
    mine: _Seen,
    other: _Seen,
    prompts: tuple[Prompt, ...],
    marks: list[tuple[int, int, str]],
    refused: list[tuple[int, str]],
    total: int,
) -> UnifiedRun:
    names = [p.name for p in prompts]
    steps = list(steps_of(mine.events, names))[:-1]  # nothing is measured here
    for before, after, kind in marks:
        place = next((i for i, s in enumerate(steps) if s.event_index >= before), len(steps) - 1)
        steps[place] = replace(steps[place], event_index=before)
        steps.insert(place + 1, Step(after, kind, tone="copy", kind=kind))
    steps.append(Step(len(mine.events), "End", tone="finish", kind="End"))
    assert mine.buffer is not None
    pages, states = mine.buffer.pages, mine.buffer.states
    empty = Layout((), (), pages.first * pages.entry_bytes, states.rows * states.entry_bytes, 0,
                   False)  # fmt: skip
    nothing = SplitLayout((None,) * other.latents.slots.n, (None,) * (
        other.active.slots.n + other.checkpoints.slots.n))  # fmt: skip
    layouts: list[Layout] = []
    splits: list[SplitLayout] = []
    tallies: list[tuple[Tally, Tally]] = []
    page, state = mine.latents.page_bytes, states.entry_bytes
    refusals: list[tuple[int, str]] = []
    for step in steps:
        n = step.event_index
        layout = mine.layouts[n - 1] if n else empty
        assert isinstance(layout, Layout)
        clock = mine.at[n - 1] if n else (-1, 0)
        if step.kind == "Held":
            layout = replace(layout, gated=True)
        if step.kind == "End":
            clock = len(prompts), 0
        m = sum(at <= clock for at in other.at)
        split = other.layouts[m - 1] if m else nothing
        assert isinstance(split, SplitLayout)
        for group, what in refused:
            if group <= clock[0] and what not in [r for _, r in refusals]:
                refusals.append((len(layouts), what))
        free = split.pages.count(None) * page + split.states.count(None) * state
        layouts.append(layout)
        splits.append(split)
        tallies.append(
            (
                _tally(mine.events[:n], layout.gap + layout.holes, 0),
                _tally(other.events[:m], free, len(refusals)),
            )
        )
    texts = {p.name: tuple(p.text) for p in prompts}
    scenario = Scenario("unified", "Unified", "?", "", prompts, mine.config)
    run = Recording(
        scenario, tuple(mine.events), mine.empty_view(), texts, tuple(steps), (), (),
        mine.config.page_tokens, page, mine.active.recurrent[0].nbytes,
        mine.active.conv[0].nbytes, 0.0,
    )  # fmt: skip
    return UnifiedRun(
        run, total, empty.low, page, state, other.latents.slots.n, other.active.slots.n,
        other.checkpoints.slots.n + other.active.slots.n, tuple(layouts), tuple(splits),
        tuple(tallies), tuple(refusals),
    )  # fmt: skip


def _tally(events: list[Event], free: int, refused: int) -> Tally:
    moved = [e.bytes for e in events if isinstance(e, ev.Moved)]
    dropped = [d for e in events if isinstance(e, ev.Evicted) for d in e.dropped]
    ran = [e.end - e.start for e in events if isinstance(e, ev.Computed | ev.Replayed)]
    return Tally(
        free,
        len(moved),
        sum(moved),
        sum(d.state is not None for d in dropped),
        sum(len(d.pages) for d in dropped),
        sum(isinstance(e, ev.SnapshotSkipped) for e in events),
        sum(isinstance(e, ev.Retracted) for e in events),
        refused,
        sum(ran),
    )
