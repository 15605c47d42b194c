"""Blocks and requests at event i, as a fold over events[:i]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kdalab.engine import events as ev
from kdalab.engine import exchange_events as ex
from kdalab.engine.block import events as bl


@dataclass(frozen=True, slots=True)
class Slot:
    """One block. ``group`` is the group it belongs to (-1: none). ``seen`` counts the tokens that
    the state in it has seen (0 for latent KV). ``names`` are the boundaries that it is cached
    for; ``fresh`` tells that its name is of this very step and cannot be read yet."""

    group: int = -1
    seen: int = 0
    names: tuple[int, ...] = ()
    fresh: bool = False


FREE = Slot()


@dataclass(frozen=True, slots=True)
class BlockRequestView:
    """One request: where it is and what it holds. Lengths in tokens.

    ``kv`` are its KV blocks in order and ``borrowed`` a partly filled one that belongs to others
    (-1: none), by attention group. ``states`` are (boundary, block) of the states it holds, and
    ``pending`` the blocks that this step will fill, by state group.
    """

    name: str
    n_tokens: int
    phase: str = "waiting"
    token_match: int = 0
    restore: int = 0
    computed: int = 0
    generated: tuple[int, ...] = ()
    kv: tuple[tuple[int, ...], ...] = ()
    borrowed: tuple[int, ...] = ()
    states: tuple[tuple[tuple[int, int], ...], ...] = ()
    pending: tuple[tuple[int, ...], ...] = ()

    @property
    def blocks(self) -> frozenset[int]:
        """All blocks that it holds."""
        found = {b for row in (*self.kv, *self.pending) for b in row}
        found |= {b for row in self.states for _, b in row}
        return frozenset(found | {b for b in self.borrowed if b >= 0})

    @property
    def is_running(self) -> bool:
        """True while it holds a table."""
        return self.phase in ("prefill", "decode")


@dataclass(slots=True)
class BlockView:
    """Everything a page draws. ``full`` and ``state`` are the numbers of the groups of each
    kind."""

    slots: list[Slot]
    full: tuple[int, ...]
    state: tuple[int, ...]
    requests: dict[str, BlockRequestView] = field(default_factory=dict)

    def copy(self) -> BlockView:
        """An independent copy."""
        return BlockView(list(self.slots), self.full, self.state, dict(self.requests))

    def holders(self, block: int) -> tuple[str, ...]:
        """Requests that hold a block."""
        return tuple(r.name for r in self.requests.values() if block in r.blocks)

    def free(self) -> tuple[int, ...]:
        """Blocks that nobody holds, the cached ones among them; the null block is none of them."""
        held = {b for r in self.requests.values() for b in r.blocks}
        return tuple(b for b in range(1, len(self.slots)) if b not in held)


def fold(events: Iterable[ev.Event], start: BlockView) -> BlockView:
    """The view after ``events``, beginning at ``start`` (which is left as it is)."""
    view = start.copy()
    for event in events:
        apply(view, event)
    return view


def apply(view: BlockView, event: ev.Event) -> None:
    """Bring ``view`` forward by one event."""
    name = event.request
    match event:
        case ev.Submitted():
            view.requests[name] = BlockRequestView(name, event.n_tokens)
        case ev.Matched():
            _update(view, name, token_match=event.token_match, restore=event.restore)
        case bl.Admitted():
            at = event.restore
            _update(
                view,
                name,
                phase="prefill" if at < view.requests[name].n_tokens else "decode",
                computed=at,
                kv=event.kv,
                borrowed=event.borrowed,
                states=tuple(((at, b),) if b >= 0 else () for b in event.states),
                pending=((),) * len(event.states),
            )
        case bl.BlocksAllocated():
            _allocate(view, event)
        case bl.NamesEvicted():
            _set(view, event.block, names=(), fresh=False)
        case bl.CopyQueued():
            _copy(view, event)
        case bl.StatesWritten():
            _write(view, event)
        case bl.StateCached():
            _name(view, event.block, event.boundary)
        case bl.KVCached():
            for block, boundary in event.names:
                _name(view, block, boundary)
        case bl.Nulled():
            _null(view, event)
        case bl.NamesWithdrawn():
            for _, block, boundary in event.names:
                names = tuple(n for n in view.slots[block].names if n != boundary)
                _set(view, block, names=names)
        case bl.StepEnded():
            view.slots = [replace(s, fresh=False) if s.fresh else s for s in view.slots]
        case ev.Replayed() | ev.Computed():
            done = event.end >= view.requests[name].n_tokens
            _update(view, name, computed=event.end, phase="decode" if done else "prefill")
        case ev.Decoded():
            generated = (*view.requests[name].generated, event.token)
            _update(view, name, generated=generated, computed=event.position)
        case ex.Received():
            _update(view, name, generated=event.generated)
        case bl.Installed():
            done = event.boundary >= view.requests[name].n_tokens
            _update(view, name, computed=event.boundary, phase="decode" if done else "prefill")
        case ev.Finished():
            _end(view, name, phase="finished")
        case bl.Preempted():
            _end(view, name, phase="waiting", computed=0, token_match=0, restore=0)
        case ev.Cancelled():
            _update(view, name, phase="cancelled")
        case _:
            pass  # the others say how, and change nothing that is drawn from the view


def _update(view: BlockView, name: str, **changes: object) -> None:
    view.requests[name] = replace(view.requests[name], **changes)  # type: ignore[arg-type]


def _set(view: BlockView, block: int, **changes: object) -> None:
    view.slots[block] = replace(view.slots[block], **changes)  # type: ignore[arg-type]


def _name(view: BlockView, block: int, boundary: int) -> None:
    names = tuple(sorted({*view.slots[block].names, boundary}))
    _set(view, block, names=names, fresh=True)


def _at(row: tuple[tuple[int, ...], ...], index: int, new: tuple[int, ...]) -> object:
    return (*row[:index], new, *row[index + 1 :])


def _allocate(view: BlockView, event: bl.BlocksAllocated) -> None:
    request = view.requests[event.request]
    for block in event.blocks:
        view.slots[block] = Slot(event.group)
    if event.purpose == "kv":
        i = view.full.index(event.group)
        _update(view, event.request, kv=_at(request.kv, i, request.kv[i] + event.blocks))
    else:
        i = view.state.index(event.group)
        more = request.pending[i] + event.blocks
        _update(view, event.request, pending=_at(request.pending, i, more))


def _copy(view: BlockView, event: bl.CopyQueued) -> None:
    request, source = view.requests[event.request], view.slots[event.source]
    if event.kind == "entry":
        view.slots[event.target] = replace(source, group=event.group, fresh=True)
        _set(view, event.source, names=(), fresh=False)
        return
    if event.kind == "tail":
        i = view.full.index(event.group)
        borrowed = (*request.borrowed[:i], -1, *request.borrowed[i + 1 :])
        _update(view, event.request, borrowed=borrowed)
    else:
        i = view.state.index(event.group)
        left = tuple(s for s in request.states[i] if s[1] != event.source)
        _update(
            view,
            event.request,
            states=(*request.states[:i], left, *request.states[i + 1 :]),
        )
    _let_go(view, [event.source])


def _write(view: BlockView, event: bl.StatesWritten) -> None:
    request = view.requests[event.request]
    states, pending = list(request.states), list(request.pending)
    for group, boundary, block in event.writes:
        i = view.state.index(group)
        _set(view, block, seen=boundary)
        kept = [s for s in states[i] if s[1] != block]
        states[i] = tuple(sorted([*kept, (boundary, block)]))
        pending[i] = tuple(b for b in pending[i] if b != block)
    _update(view, event.request, states=tuple(states), pending=tuple(pending))


def _null(view: BlockView, event: bl.Nulled) -> None:
    request, gone = view.requests[event.request], [b for _, _, b in event.blocks]
    states = tuple(tuple(s for s in row if s[1] not in gone) for row in request.states)
    pending = tuple(tuple(b for b in row if b not in gone) for row in request.pending)
    _update(view, event.request, states=states, pending=pending)
    _let_go(view, gone)


def _end(view: BlockView, name: str, **changes: object) -> None:
    blocks = view.requests[name].blocks
    _update(view, name, kv=(), borrowed=(), states=(), pending=(), **changes)
    _let_go(view, blocks)


def _let_go(view: BlockView, blocks: Iterable[int]) -> None:
    """A block that nobody holds and that has no name is free, and holds nothing."""
    for block in blocks:
        if not view.slots[block].names and not view.holders(block):
            view.slots[block] = FREE
