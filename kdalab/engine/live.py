"""The view from the live objects, to be compared with the one that is folded from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.engine.view import NodeView, RequestView, View
from kdalab.memory.slots import CACHE, IN_FLIGHT

if TYPE_CHECKING:
    from kdalab.engine.core import Engine
    from kdalab.engine.request import Request


def live_view(engine: Engine) -> View:
    """What ``fold(engine.events, engine.empty_view())`` must give."""
    view = engine.empty_view()
    owners = engine.active.slots.owners()
    view.active = [None if who in (CACHE, IN_FLIGHT) else who for who in owners]
    view.pages = list(engine.latents.slots.owners())
    if engine.host is not None:
        view.host_pages = list(engine.host.latents.slots.owners())
        view.host_checkpoints = list(engine.host.checkpoints.slots.owners())
    for node in engine.cache.nodes.values():
        if node.parent is None:
            continue
        view.nodes[node.id] = NodeView(
            node.id,
            node.parent.id,
            node.start,
            node.end,
            tuple(node.pages),
            node.state.slot if node.state is not None else None,
            tuple(node.host_pages),
            node.host_state.slot if node.host_state is not None else None,
        )
        if node.state is not None:
            view.checkpoints[node.state.slot] = node.id
    for r in engine.requests.values():
        view.requests[r.name] = RequestView(
            r.name,
            r.n_tokens,
            r.phase.value,
            r.token_match,
            r.restore,
            r.computed,
            r.active_slot,
            _node_of(r),
            tuple(r.pages),
            r.n_shared,
            tuple(r.generated),
            tuple(r.spare_slots),
            r.kept_slot,
        )
    return view


def _node_of(request: Request) -> int:
    if not request.is_running:
        return -1
    return request.lease.node if request.lease is not None else 0
