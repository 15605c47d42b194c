"""The rules that bind pools, cache and requests together, proved on the live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.cache.transfers import Direction, Flight
from kdalab.engine.request import Start
from kdalab.errors import InvariantError
from kdalab.memory.slots import CACHE, IN_FLIGHT

if TYPE_CHECKING:
    from kdalab.engine.core import Engine
    from kdalab.engine.request import Request
    from kdalab.memory.host import Level


def _require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise InvariantError(f"{rule}{f': {detail}' if detail != '' else ''}")


def check(engine: Engine) -> None:
    """Raise ``InvariantError`` with the first broken rule named."""
    engine.cache.check()
    if engine.buffer is not None:
        engine.buffer.check()
    engine.active.slots.check()
    engine.latents.slots.check()
    engine.checkpoints.check()
    _check_owners(engine)
    _check_transfers(engine)
    _check_states(engine)
    if engine.config.poison:
        _check_poison(engine)


def _check_owners(engine: Engine) -> None:
    running = {r.name: r for r in engine.running}
    for slot, owner in enumerate(engine.active.slots.owners()):
        if owner in (CACHE, IN_FLIGHT) and engine.config.shares_states:
            continue
        if owner is not None:
            _require(owner in running, "an active slot belongs to a running request", owner)
            _require(slot in running[owner].slots, "a request knows every slot it owns", owner)
    for r in engine.requests.values():
        _require(r.is_running == (r.name in running), "running requests are in the batch", r.name)
        if not r.is_running:
            _require(
                not r.slots and r.source_slot == -1 and not r.pages and r.lease is None,
                "a request that does not run holds nothing",
                r.name,
            )
            continue
        _require(len(set(r.slots)) == len(r.slots), "a slot has one use", r.name)
        for slot in r.slots:
            _require(engine.active.slots.owner(slot) == r.name, "its slot is its own", r.name)
        _check_source(engine, r)
        shared, own = r.pages[: r.n_shared], r.pages[r.n_shared :]
        lease_pages = list(r.lease.pages) if r.lease is not None else []
        _require(shared == lease_pages, "shared pages are those of the lease", r.name)
        _require(
            sorted(own) == engine.latents.slots.owned_by(r.name),
            "private pages are the request's own, and all of them are in its table",
            r.name,
        )
        _require(
            r.computed >= len(shared) * engine.config.page_tokens,
            "shared pages hold only what the state has seen",
            r.name,
        )
    held = {r.lease.id for r in engine.running if r.lease is not None}
    _require(held == set(engine.cache.leases), "every lease belongs to a running request", held)
    tree_pages = sorted(p for n in engine.cache.nodes.values() for p in n.pages)
    _require(
        tree_pages == engine.latents.slots.owned_by(CACHE),
        "free + private + cached pages = total",
    )


def _check_source(engine: Engine, r: Request) -> None:
    """What the next forward reads cannot be taken away or changed before it does."""
    if r.source_slot >= 0 and r.source_slot != r.kept_slot:
        state = r.leased_checkpoint
        _require(state is not None and state.slot == r.source_slot, "it reads its lease", r.name)
        _require(_is_locked(engine, r), "a state that is about to be read is locked", r.name)
    if r.start is Start.COPY:
        _require(_is_locked(engine, r), "a deferred copy keeps its checkpoint locked", r.name)


def _is_locked(engine: Engine, r: Request) -> bool:
    return r.lease is not None and engine.cache.nodes[r.lease.node].state_lock > 0


def _check_states(engine: Engine) -> None:
    slots = []
    for node in engine.cache.nodes.values():
        if node.state is None:
            continue
        slots.append(node.state.slot)
        held = engine.checkpoints.boundary(node.state.slot)
        _require(held == node.end, "key length equals state length", f"{node} holds {held}")
    _require(
        sorted(slots) == engine.checkpoints.slots.owned_by(CACHE),
        "free + cached checkpoints = total",
    )


def _check_transfers(engine: Engine) -> None:
    """Each level's pools hold what the tree and the transfers under way say, and no more."""
    tier, host, nodes = engine.cache.host, engine.host, engine.cache.nodes.values()
    flights = list(tier.flights.values()) if tier is not None else []
    _check_targets(engine.device, [f for f in flights if f.job.direction is Direction.LOAD])
    if host is None:
        return
    host.latents.slots.check()
    host.checkpoints.check()
    _check_targets(host, [f for f in flights if f.job.direction is Direction.BACKUP])
    _require(
        sorted(p for n in nodes for p in n.host_pages) == host.latents.slots.owned_by(CACHE),
        "free + in flight + cached host pages = total",
    )
    states = [n.host_state for n in nodes if n.host_state is not None]
    _require(
        sorted(s.slot for s in states) == host.checkpoints.slots.owned_by(CACHE),
        "free + in flight + cached host checkpoints = total",
    )
    for state in states:
        host.checkpoints.require(state)


def _check_targets(level: Level, flights: list[Flight]) -> None:
    rule = "what is in flight belongs to a transfer under way"
    pages = sorted(p for f in flights for p in f.job.targets)
    _require(pages == level.latents.slots.owned_by(IN_FLIGHT), rule, pages)
    slots = sorted(f.job.state[1] for f in flights if f.job.state is not None)
    _require(slots == level.checkpoints.slots.owned_by(IN_FLIGHT), rule, slots)


def _check_poison(engine: Engine) -> None:
    if engine.host is not None:
        clean = engine.host.free_is_poisoned()
        _require(clean, "free memory stays poisoned: nobody writes where nobody owns", "host")
    if engine.buffer is not None:
        return  # the buffer has answered for all of its bytes
    for name, pool in (
        ("active states", engine.active),
        ("checkpoints", engine.checkpoints),
        ("latent pages", engine.latents),
    ):
        clean = pool.free_is_poisoned()
        _require(clean, "free memory stays poisoned: nobody writes where nobody owns", name)
