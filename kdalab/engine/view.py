"""The state of everything at event i, as a fold over events[:i].

Because nothing but the log goes in, stepping back is as easy as stepping forward. A test folds
the log after every step and compares the result with the live objects (``Engine.view``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kdalab.cache.protocol import Added, BackedUp, Change, Dropped, Refilled, Revived, Split
from kdalab.cache.transfers import Direction
from kdalab.engine import events as ev
from kdalab.engine import exchange_events as ex
from kdalab.engine import transfer_events as tr
from kdalab.memory.slots import CACHE, IN_FLIGHT


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of the tree: tokens [start, end), its pages, its checkpoint slot or None, and the
    same on the host. Without ``pages`` it lives from its copy there."""

    id: int
    parent: int
    start: int
    end: int
    pages: tuple[int, ...]
    state: int | None
    host_pages: tuple[int, ...] = ()
    host_state: int | None = None

    @property
    def is_tombstone(self) -> bool:
        """KV without a state: known text, no restore point."""
        return self.state is None


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request: where it is, what it holds. Lengths in tokens; -1 means no slot, no node."""

    name: str
    n_tokens: int
    phase: str = "waiting"
    token_match: int = 0
    restore: int = 0
    computed: int = 0
    active_slot: int = -1
    node: int = -1
    pages: tuple[int, ...] = ()
    n_shared: int = 0
    generated: tuple[int, ...] = ()
    spare_slots: tuple[int, ...] = ()
    kept_slot: int = -1

    @property
    def is_running(self) -> bool:
        """True while it holds slots."""
        return self.phase in ("receiving", "prefill", "decode")


@dataclass(slots=True)
class View:
    """Everything a page draws. ``active`` and ``pages`` name each slot's owner (a request,
    "cache", "transfer", or None when free), and so do the host's two pools; ``checkpoints`` names
    the tree node each slot belongs to."""

    active: list[str | None]
    checkpoints: list[int | None]
    pages: list[str | None]
    nodes: dict[int, NodeView] = field(default_factory=dict)
    requests: dict[str, RequestView] = field(default_factory=dict)
    host_pages: list[str | None] = field(default_factory=list)
    host_checkpoints: list[str | None] = field(default_factory=list)

    @classmethod
    def empty(
        cls,
        n_active: int,
        n_checkpoints: int,
        n_pages: int,
        host_pages: int = 0,
        host_checkpoints: int = 0,
    ) -> View:
        """The view before the first event."""
        return cls(
            [None] * n_active,
            [None] * n_checkpoints,
            [None] * n_pages,
            host_pages=[None] * host_pages,
            host_checkpoints=[None] * host_checkpoints,
        )

    def copy(self) -> View:
        """An independent copy (records are frozen, so the containers are enough)."""
        return View(
            list(self.active),
            list(self.checkpoints),
            list(self.pages),
            dict(self.nodes),
            dict(self.requests),
            list(self.host_pages),
            list(self.host_checkpoints),
        )

    def readers(self, node: int) -> tuple[str, ...]:
        """Running requests whose locks hold ``node``: those that end there or below."""
        names = []
        for request in self.requests.values():
            at = request.node if request.is_running else -1
            while at > 0:
                if at == node:
                    names.append(request.name)
                    break
                at = self.nodes[at].parent
        return tuple(names)


def fold(events: Iterable[ev.Event], start: View) -> View:
    """The view after ``events``, beginning at ``start`` (which is left as it is)."""
    view = start.copy()
    for event in events:
        apply(view, event)
    return view


def apply(view: View, event: ev.Event) -> None:
    """Bring ``view`` forward by one event."""
    name = event.request
    match event:
        case ev.Submitted():
            view.requests[name] = RequestView(name, event.n_tokens)
        case ev.Matched():
            _update(view, name, token_match=event.token_match, restore=event.restore)
        case ev.Admitted():
            for slot in (event.active_slot, *event.spare_slots):
                view.active[slot] = name
            for page in event.private_pages:
                view.pages[page] = name
            _update(
                view,
                name,
                phase="prefill" if event.restore < view.requests[name].n_tokens else "decode",
                active_slot=event.active_slot,
                node=event.node,
                computed=event.restore,
                pages=event.shared_pages + event.private_pages,
                n_shared=len(event.shared_pages),
                spare_slots=event.spare_slots,
            )
        case ev.Replayed() | ev.Computed():
            request = view.requests[name]
            done = event.end >= request.n_tokens
            _update(view, name, computed=event.end, phase="decode" if done else "prefill")
        case ev.Inserted():
            _insert(view, event)
        case ev.Decoded():
            request = view.requests[name]
            _update(
                view,
                name,
                generated=(*request.generated, event.token),
                computed=event.position,
            )
        case ev.Evicted():
            for dropped in event.dropped:
                _drop(view, dropped)
        case ev.Donated():
            request = view.requests[name]
            view.active[event.slot] = None
            if event.slot == request.kept_slot:
                _update(view, name, kept_slot=-1)
            else:
                left = tuple(s for s in request.spare_slots if s != event.active_slot)
                _update(view, name, active_slot=event.active_slot, spare_slots=left)
        case ev.SpareTaken():
            view.active[event.slot] = name
            _update(view, name, spare_slots=(*view.requests[name].spare_slots, event.slot))
        case ev.Tracked():
            _track(view, event)
        case ev.PagesTaken():
            for page in event.pages:
                view.pages[page] = name
            _update(view, name, pages=view.requests[name].pages + event.pages)
        case ev.Finished():
            _end(view, event, phase="finished")
        case ev.Retracted():
            _end(view, event, phase="waiting", computed=0, token_match=0, restore=0)
        case ev.Cancelled():
            _update(view, name, phase="cancelled")
        case tr.BackupStarted() | tr.LoadStarted() | tr.TransferFailed() | tr.BackedUp():
            _transfer(view, event)
        case ex.Expected():
            _expect(view, event)
        case ex.StateLanded():
            _update(view, name, phase="decode", computed=event.boundary)
        case ex.Received():
            _update(view, name, generated=event.generated)
        case tr.Loaded() | ex.Fetched():
            for change in event.changes:
                _change(view, change)
            for page in event.duplicate_pages:
                view.pages[page] = None
        case _:
            pass  # the others say how, and change nothing that is drawn from the view


def _end(view: View, event: ev.Finished | ev.Retracted, **changes: object) -> None:
    for slot in (event.active_slot, *event.freed_slots) if event.active_slot >= 0 else ():
        view.active[slot] = None
    for page in event.freed_pages:
        view.pages[page] = None
    nothing: dict[str, object] = {"active_slot": -1, "spare_slots": (), "kept_slot": -1}
    nothing |= {"node": -1, "pages": (), "n_shared": 0}
    _update(view, event.request, **nothing, **changes)


def _expect(view: View, event: ex.Expected) -> None:
    name = event.request
    for slot in (event.active_slot, *event.spare_slots):
        view.active[slot] = name
    for page in event.private_pages:
        view.pages[page] = name
    _update(
        view,
        name,
        phase="receiving",
        active_slot=event.active_slot,
        node=event.node,
        computed=event.held,
        pages=event.shared_pages + event.private_pages,
        n_shared=len(event.shared_pages),
        spare_slots=event.spare_slots,
    )


def _track(view: View, event: ev.Tracked) -> None:
    request = view.requests[event.request]
    spares = [s for s in request.spare_slots if s != event.active_slot]
    if event.freed_slot >= 0:
        view.active[event.freed_slot] = None
    elif request.kept_slot not in (-1, event.active_slot):
        spares.append(request.kept_slot)
    _update(
        view,
        event.request,
        kept_slot=event.kept_slot,
        active_slot=event.active_slot,
        spare_slots=tuple(spares),
    )


def _update(view: View, name: str, **changes: object) -> None:
    view.requests[name] = replace(view.requests[name], **changes)  # type: ignore[arg-type]


def _transfer(
    view: View, event: tr.BackupStarted | tr.LoadStarted | tr.TransferFailed | tr.BackedUp
) -> None:
    if isinstance(event, tr.BackedUp):
        for change in event.changes:
            _change(view, change)
        return
    owner = None if isinstance(event, tr.TransferFailed) else IN_FLIGHT
    loads = isinstance(event, tr.LoadStarted)
    if isinstance(event, tr.TransferFailed):
        loads = event.direction == Direction.LOAD
    for page in event.pages:
        (view.pages if loads else view.host_pages)[page] = owner
    if event.state is not None and not loads:
        view.host_checkpoints[event.state] = owner


def _change(view: View, change: Change) -> None:
    """Bring the tree forward by one change."""
    nodes = view.nodes
    match change:
        case Split(node=lower_id, upper=upper_id, at=at):
            lower = nodes[lower_id]
            pages = max(len(lower.pages), len(lower.host_pages))
            cut = pages * (at - lower.start) // (lower.end - lower.start)
            above = lower.pages[:cut], None, lower.host_pages[:cut]
            nodes[upper_id] = NodeView(upper_id, lower.parent, lower.start, at, *above)
            nodes[lower_id] = replace(
                lower,
                parent=upper_id,
                start=at,
                pages=lower.pages[cut:],
                host_pages=lower.host_pages[cut:],
            )
        case Added(node=node, parent=parent, start=start, end=end, pages=pages, state=state):
            nodes[node] = NodeView(node, parent, start, end, tuple(pages), state)
            view.checkpoints[state] = node
            for page in pages:
                view.pages[page] = CACHE
        case Revived(node=node, state=state):
            nodes[node] = replace(nodes[node], state=state)
            view.checkpoints[state] = node
        case Refilled(node=node, pages=pages):
            nodes[node] = replace(nodes[node], pages=pages)
            for page in pages:
                view.pages[page] = CACHE
        case BackedUp(node=node, pages=pages, state=state):
            old = nodes[node]
            nodes[node] = replace(
                old,
                host_pages=pages or old.host_pages,
                host_state=old.host_state if state is None else state,
            )
            for page in pages:
                view.host_pages[page] = CACHE
            if state is not None:
                view.host_checkpoints[state] = CACHE


def _insert(view: View, event: ev.Inserted) -> None:
    for change in event.changes:
        _change(view, change)
    for page in event.duplicate_pages:
        view.pages[page] = None
    request = view.requests[event.request]
    own = request.pages[len(event.pages) :]
    _update(
        view,
        event.request,
        node=event.node,
        pages=event.pages + own,
        n_shared=len(event.pages),
    )


def _drop(view: View, dropped: Dropped) -> None:
    if dropped.state is not None:
        view.checkpoints[dropped.state] = None
    for page in dropped.pages:
        view.pages[page] = None
    for page in dropped.host_pages:
        view.host_pages[page] = None
    if dropped.host_state is not None:
        view.host_checkpoints[dropped.host_state] = None
    if dropped.removed:
        del view.nodes[dropped.node]
        return
    node = view.nodes[dropped.node]
    view.nodes[dropped.node] = replace(
        node,
        pages=() if dropped.pages else node.pages,
        state=None if dropped.state is not None else node.state,
        host_pages=() if dropped.host_pages else node.host_pages,
        host_state=None if dropped.host_state is not None else node.host_state,
    )
