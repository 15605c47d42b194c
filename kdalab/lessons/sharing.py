"""Two requests go on from one checkpoint: what is copied, what is given, who owns which slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kdalab.cache.placement import Every
from kdalab.cache.protocol import Added, Revived
from kdalab.engine import Engine, EngineConfig, Faults
from kdalab.engine import events as ev
from kdalab.engine.strategy import held_slots, parse_strategy, slots_per_request
from kdalab.errors import KdalabError
from kdalab.lessons.cold import max_difference
from kdalab.lessons.player import Recording, play
from kdalab.lessons.scenario import LESSON_CONFIG, Prompt, Scenario
from kdalab.memory import ActivePool, CheckpointPool

SHARING_STRATEGIES = ("copy", "extra_buffer", "extra_buffer_lazy")

_RULES = "You are a travel agent. Name the platform and the time, never invent a train.\n"
_NIGHT = " I travel with a dog, say which car."

_PROMPTS = (
    Prompt("A", _RULES + "When does the train to Bern go?", 1),
    Prompt("B", _RULES + "Which one goes to Lyon tonight?" + _NIGHT, 4),
    Prompt("C", _RULES + "Is there a night train home?" + _NIGHT, 4, together=True),
    Prompt("D", _RULES + "And the last one to Basel?", 3),
)


@dataclass(frozen=True, slots=True)
class SlotView:
    """One state slot at one step.

    ``role`` is "active", "waiting" (for its first forward), "spare", "kept", "cached" or "free".
    Without copy on write a request's slot is an "alias" of the checkpoint ``of``, and that
    checkpoint is "overwritten" by its last writer. ``owner`` is the request, "" for the cache and
    for free slots; ``tokens`` what the state has seen (0: nothing to show); ``readers`` have a
    copy of it queued; ``over`` the tokens that have been written over an overwritten one.
    """

    name: str
    role: str
    owner: str = ""
    tokens: int = 0
    readers: tuple[str, ...] = ()
    of: int = -1
    over: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """What has moved by now. ``copied`` and ``given`` count states."""

    copied: int
    given: int
    bytes_copied: int
    used: int
    most_used: int


@dataclass(frozen=True, slots=True)
class SharingRun:
    """A recording with what its slots say.

    ``spoiled`` is max |difference| between the shared state as its users left it and the
    checkpoint (0.0 without the fault). ``refusal`` is what a pool answers to a write into a slot
    of the cache.
    """

    run: Recording
    one_pool: bool
    per_request: int
    held: int
    total: int
    slots: tuple[tuple[SlotView, ...], ...]
    ledgers: tuple[Ledger, ...]
    queued: tuple[tuple[str, ...], ...]
    spoiled: float
    refusal: str


def sharing_scenario(strategy: str, total: int, cow: bool = True) -> Scenario:
    """A fills the cache; B and C arrive together and hit its checkpoint; D comes last.

    Raises:
        KdalabError: an unknown strategy, or fewer slots than one request needs.
    """
    held = held_slots(parse_strategy(strategy))
    active = max(1, min(4, total - 1) if held == 1 else 2)
    if total <= active:
        raise KdalabError(f"{total} state slots; use {active + 1} or more")
    config = replace(
        LESSON_CONFIG,
        n_pages=64,
        strategy=strategy,
        n_active=active,
        n_checkpoints=total - active,
        placement=Every(64),
        faults=Faults(share_checkpoint=not cow),
    )
    question = "Two requests go on from one state. Who writes where?"
    return Scenario("sharing", "Sharing", question, question, _PROMPTS, config)


def play_sharing(strategy: str = "copy", total: int = 12, cow: bool = True) -> SharingRun:
    """Run it; ``cow`` False leaves out the copy before the first write.

    Raises:
        KdalabError: as ``sharing_scenario``.
    """
    spoiled = [0.0]

    def look(engine: Engine) -> None:
        for (_, slot, _), left in engine.stand_ins.items():
            recurrent, conv = engine.checkpoints.read(slot)
            pairs = ((left.recurrent, recurrent), (left.conv, conv))
            spoiled.extend(max_difference(a, b) for a, b in pairs)

    scenario = sharing_scenario(strategy, total, cow)
    run = play(scenario, clean=1, look=look)
    slots = tuple(_slots(run, i) for i in range(len(run.steps)))
    return SharingRun(
        run,
        scenario.config.shares_states,
        slots_per_request(parse_strategy(strategy)),
        held_slots(parse_strategy(strategy)),
        total,
        slots,
        _ledgers(run, slots),
        tuple(_queued(run, i) for i in range(len(run.steps))),
        max(spoiled),
        refused_write(scenario.config),
    )


def refused_write(config: EngineConfig) -> str:
    """What the pools answer when B writes into a checkpoint: the check that copy on write obeys."""
    active = ActivePool(2, (1, 1, 2, 2), (1, 1, 3))
    slot = active.allocate("A")
    active.clear(slot, "A")
    CheckpointPool.sharing(active).adopt(slot, config.grid, "A")
    try:
        active.write(slot, torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 3), "B")
    except KdalabError as error:
        return str(error)
    return ""


def _slots(run: Recording, step: int) -> tuple[SlotView, ...]:
    view, shared = run.view(step), run.scenario.config.shares_states
    aliases, writers, over = _aliases(run, step)
    past = run.events[: run.steps[step].event_index]
    begun = {e.request for e in past if isinstance(e, ev.Computed | ev.Replayed)}
    moved = _moved(past)
    private: list[SlotView] = []
    for slot, owner in enumerate(view.active):
        name = f"active:{slot}"
        if owner is None:
            private.append(SlotView(name, "free"))
            continue
        request = view.requests[owner]
        role = "active" if slot == request.active_slot else "spare"
        if slot == request.kept_slot:
            role = "kept"
        if role == "active" and owner in aliases:
            private.append(SlotView(name, "alias", owner, of=aliases[owner]))
            continue
        if role == "active" and (owner not in begun or owner in moved):
            role = "waiting"
        seen = request.computed if role == "active" else 0
        private.append(SlotView(name, role, owner, seen))
    cached: list[SlotView] = []
    for slot, node in enumerate(view.checkpoints):
        name = f"checkpoint:{slot}"
        if node is None:
            cached.append(SlotView(name, "free"))
        elif slot in writers:
            end = view.nodes[node].end
            cached.append(SlotView(name, "overwritten", writers[slot], end, over=over[slot]))
        else:
            end = view.nodes[node].end
            cached.append(SlotView(name, "cached", "", end, _readers(run, step, slot)))
    if not shared:
        return (*private, *cached)
    return tuple(p if c.role == "free" else c for p, c in zip(private, cached, strict=True))


def _moved(past: Sequence[ev.Event]) -> set[str]:
    """Requests that have donated their slot and have not written into the next one yet."""
    moved: set[str] = set()
    decoding: set[str] = set()
    for event in past:
        match event:
            case ev.Donated():
                moved.add(event.request)
            case ev.Computed() | ev.Replayed():
                moved.discard(event.request)
            case ev.Decoded():
                if event.request in decoding:  # the first token comes of the prompt's last forward
                    moved.discard(event.request)
                decoding.add(event.request)
    return moved


def _aliases(run: Recording, step: int) -> tuple[dict[str, int], dict[int, str], Counter[int]]:
    """(request -> checkpoint that it writes itself, checkpoint -> who wrote it last, and how many
    tokens have been written over it)."""
    aliases: dict[str, int] = {}
    writers: dict[int, str] = {}
    over: Counter[int] = Counter()
    decoding: set[str] = set()
    states = _checkpoint_of_nodes(run)
    node = dict.fromkeys(run.texts, 0)
    for event in run.events[: run.steps[step].event_index]:
        name = event.request
        match event:
            case ev.Admitted():
                node[name] = event.node
            case ev.FaultInjected(fault="share_checkpoint") if node[name] in states:
                aliases[name] = states[node[name]]
            case ev.Computed() | ev.Replayed() | ev.Decoded() if name in aliases:
                # The first generated token comes of the prompt's last forward and is not run yet.
                ran = 1 if name in decoding else 0
                if isinstance(event, ev.Decoded):
                    decoding.add(name)
                else:
                    ran = event.end - event.start
                writers[aliases[name]] = name
                over[aliases[name]] += ran
    return aliases, writers, over


def _checkpoint_of_nodes(run: Recording) -> dict[int, int]:
    return {
        change.node: change.state
        for event in run.events
        if isinstance(event, ev.Inserted)
        for change in event.changes
        if isinstance(change, Added | Revived)
    }


def _readers(run: Recording, step: int, slot: int) -> tuple[str, ...]:
    """Requests whose deferred copy of this checkpoint has not been made yet."""
    past = run.events[: run.steps[step].event_index]
    waiting: dict[str, int] = {}
    for event in past:
        match event:
            case ev.CopiedOnWrite():
                waiting[event.request] = event.checkpoint_slot
            case ev.Replayed() | ev.Computed() | ev.Finished() | ev.Retracted():
                waiting.pop(event.request, None)
    return tuple(name for name, held in waiting.items() if held == slot)


def _queued(run: Recording, step: int) -> tuple[str, ...]:
    n = len(run.start.checkpoints)
    return tuple(name for slot in range(n) for name in _readers(run, step, slot))


def _ledgers(run: Recording, slots: tuple[tuple[SlotView, ...], ...]) -> tuple[Ledger, ...]:
    found, most = [], 0
    for step, (moment, here) in enumerate(zip(run.steps, slots, strict=True)):
        queued = _queued(run, step)
        past = run.events[: moment.event_index]
        given = sum(isinstance(e, ev.Donated) for e in past)
        frozen = [e.bytes for e in past if isinstance(e, ev.Snapshotted)]
        loads = [e.bytes for e in past if isinstance(e, ev.CopiedOnWrite)]
        loads = loads[: len(loads) - len(queued)]  # the last ones wait for their forward
        used = sum(s.role != "free" for s in here)
        most = max(most, used)
        copied = len(frozen) + len(loads)
        found.append(Ledger(copied, given, sum(frozen) + sum(loads), used, most))
    return tuple(found)
