"""From the event log to steps: one sentence, one highlight, one moment of the log each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kdalab.cache.protocol import Added, Revived, Split
from kdalab.engine import events as ev

QUIET = (ev.Dispatched, ev.Moved, ev.SpareTaken, ev.PagesTaken)
"""Bookkeeping that stands in the log and is no step of its own; never the first of a log."""


@dataclass(frozen=True, slots=True)
class Step:
    """One moment that a page stops at.

    ``event_index`` is how many events have happened: the view of the step is the fold of
    ``events[:event_index]``. ``highlight`` names what to mark ("node:3", "active:0",
    "checkpoint:2", "page:17"); ``moves`` are copies from one such thing to another. ``request``
    is the request it concerns, "" for none; ``tone`` is that of ``Event.tone``; ``kind`` is the
    name of its first event, or "Start" or "Measured".
    """

    event_index: int
    sentence: str
    highlight: tuple[str, ...] = ()
    tone: str = "plain"
    request: str = ""
    moves: tuple[tuple[str, str], ...] = ()
    kind: str = ""


def steps_of(events: Sequence[ev.Event], names: Sequence[str]) -> tuple[Step, ...]:
    """Steps of a whole log: an opening, one for each act, and a closing for the measurement.

    What belongs together is one step: admission with its zero state, a computed stretch with the
    checkpoint at its end, a run of generated tokens.
    """
    who = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))
    verb = "waits" if len(names) == 1 else "wait"
    steps = [Step(0, f"{who} {verb}. The tree is empty and every slot is free.", kind="Start")]
    slots: dict[str, int] = {}
    for first, last in _groups(events):
        group = [e for e in events[first:last] if not isinstance(e, QUIET)]
        took = (ev.Admitted, ev.Donated, ev.Tracked)
        slots.update({e.request: e.active_slot for e in group if isinstance(e, took)})
        steps.append(_step(group, last, slots))
    closing = "Measured against a run that computes the whole prompt from zero."
    steps.append(Step(len(events), closing, tone="finish", request=names[-1], kind="Measured"))
    return tuple(steps)


def _groups(events: Sequence[ev.Event]) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(events):
        last = first + 1
        while last < len(events) and _joins(events[first:last], events[last]):
            last += 1
        yield first, last
        first = last


def _joins(group: Sequence[ev.Event], event: ev.Event) -> bool:
    if isinstance(event, QUIET):
        return True
    head, tail = group[0], next(e for e in reversed(group) if not isinstance(e, QUIET))
    if isinstance(head, ev.Decoded):
        return isinstance(event, ev.Decoded)
    if event.request != tail.request:
        return False
    match event:
        case ev.Cleared():
            return isinstance(tail, ev.Admitted)
        case ev.Admitted():
            return isinstance(tail, ev.Matched) and tail.token_match == 0
        case ev.Computed():
            # One stretch with nothing to see between its parts: a chunk that ends at no boundary.
            return isinstance(tail, ev.Computed)
        case ev.Replayed():
            return isinstance(tail, ev.Replayed)
        case ev.Snapshotted() | ev.Donated() | ev.SnapshotSkipped():
            return isinstance(tail, ev.Computed | ev.Replayed)
        case ev.Inserted():
            return isinstance(tail, ev.Snapshotted | ev.Donated)
        case _:
            return False


def _step(group: Sequence[ev.Event], index: int, slots: Mapping[str, int]) -> Step:
    head = group[0]
    marks: list[str] = []
    moves: list[tuple[str, str]] = []
    for event in group:
        if isinstance(event, ev.Replayed | ev.Computed | ev.Decoded):
            marks.append(f"active:{slots[event.request]}")  # the state that moved forward
        marks.extend(_marks(event))
        moves.extend(_moves(event))
    tones = [e.tone for e in group]
    tone = next((t for t in tones if t not in ("plain", "compute")), tones[-1])
    return Step(
        index,
        _sentence(group),
        tuple(dict.fromkeys(marks)),
        tone,
        head.request,
        tuple(moves),
        head.name,
    )


def _sentence(group: Sequence[ev.Event]) -> str:
    head = group[0]
    if isinstance(head, ev.Decoded):
        made = Counter(e.request for e in group)
        names, each = sorted(made), max(made.values())
        if min(made.values()) < each:
            return f"One batch generates tokens: {', '.join(f'{n} {made[n]:,}' for n in names)}."
        who = " and ".join(names)
        tokens = "token" if each == 1 else "tokens"
        return f"{who} generate{'s' if len(names) == 1 else ''} {each:,} {tokens}" + (
            "." if len(names) == 1 else " each, in one batch."
        )
    if isinstance(head, ev.Computed | ev.Replayed):
        same = [e for e in group if isinstance(e, ev.Computed | ev.Replayed)]
        text = type(head)(head.request, same[0].start, same[-1].end).sentence()
        rest = [e for e in group[len(same) :] if not isinstance(e, ev.Snapshotted)]
        given = any(isinstance(e, ev.Donated) for e in rest)  # then nothing is frozen anywhere
        return " ".join([text, *(e.sentence() if given else _after_prefill(e) for e in rest)])
    return " ".join(e.sentence() for e in group)


def _after_prefill(event: ev.Event) -> str:
    if not isinstance(event, ev.Inserted):
        return event.sentence()
    if event.state_existed:
        return "A checkpoint of this boundary is in the tree already; the second copy goes back."
    kinds = {type(c) for c in event.changes}
    frozen = f"Its state at {event.boundary:,} is frozen into checkpoint {event.checkpoint_slot}"
    cuts = [c.at for c in event.changes if isinstance(c, Split)]
    if cuts:
        return (
            f"{frozen}. An edge is split at {cuts[0]:,}, where the texts part; the old state stays "
            "with the lower node."
        )
    if Revived in kinds:
        return f"{frozen}; the tombstone there has a state again."
    return f"{frozen} and enters the tree as a new leaf."


def _marks(event: ev.Event) -> list[str]:
    match event:
        case ev.Matched():
            return [f"node:{n}" for n in event.path]
        case ev.Admitted():
            return [f"active:{event.active_slot}", *(f"page:{p}" for p in event.private_pages)]
        case ev.Cleared():
            return [f"active:{event.active_slot}"]
        case ev.CopiedOnWrite():
            return [f"active:{event.active_slot}", f"checkpoint:{event.checkpoint_slot}"]
        case ev.Inserted():
            nodes = [c.node for c in event.changes if isinstance(c, Added | Revived)]
            uppers = [c.upper for c in event.changes if isinstance(c, Split)]
            slots = [c.state for c in event.changes if isinstance(c, Added | Revived)]
            return [f"node:{n}" for n in nodes + uppers] + [f"checkpoint:{s}" for s in slots]
        case ev.Evicted():
            kept = [f"node:{d.node}" for d in event.dropped if not d.removed]
            slots = [d.state for d in event.dropped if d.state is not None]
            return kept + [f"checkpoint:{s}" for s in slots]
        case ev.Finished():
            pages = [f"page:{p}" for p in event.freed_pages]
            return [f"active:{event.active_slot}", *pages]
        case _:
            return []


def _moves(event: ev.Event) -> list[tuple[str, str]]:
    match event:
        case ev.CopiedOnWrite():
            return [(f"checkpoint:{event.checkpoint_slot}", f"active:{event.active_slot}")]
        case ev.Snapshotted():
            return [(f"active:{event.active_slot}", f"checkpoint:{event.checkpoint_slot}")]
        case ev.Donated():
            return [(f"active:{event.slot}", f"checkpoint:{event.slot}")]
        case _:
            return []
