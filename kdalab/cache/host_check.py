"""Every invariant of the host tier, rebuilt from nodes and transfers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kdalab.cache.transfers import Direction
from kdalab.errors import InvariantError

if TYPE_CHECKING:
    from kdalab.cache.host import HostTier
    from kdalab.cache.node import Node
    from kdalab.cache.radix import RadixStateCache


def _require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise InvariantError(f"{rule}{f': {detail}' if detail != '' else ''}")


def transfer_locks(cache: RadixStateCache) -> tuple[Counter[int], Counter[int]]:
    """Device locks (KV by node, states by node) that transfers under way hold."""
    kv: Counter[int] = Counter()
    state: Counter[int] = Counter()
    for flight in cache.host.flights.values() if cache.host is not None else ():
        kv.update(n.id for n in flight.anchor.up_to(cache.root))
        if flight.locks_state:
            state[flight.node.id] += 1
    return kv, state


def check_host(cache: RadixStateCache, host: HostTier, nodes: list[Node]) -> None:
    """Raise ``InvariantError`` with the first broken rule named."""
    _check_copies(cache, host, nodes)
    _check_flights(cache, host, nodes)
    _check_orders(cache, host, nodes)


def _check_copies(cache: RadixStateCache, host: HostTier, nodes: list[Node]) -> None:
    for node in nodes:
        if node.host_pages:
            count = (node.end - node.start) // cache.page_tokens
            _require(len(node.host_pages) == count, "one host page id a page", node)
            assert node.parent is not None
            above = node.parent is cache.root or bool(node.parent.host_pages)
            _require(above, "a copy has copies of all KV before it", node)
        if node.host_state is not None:
            _require(bool(node.host_pages), "a state's copy has the KV's copy", node)
            _require(node.host_state.boundary == node.end, "key length equals state length", node)
    pages = Counter(p for n in nodes for p in n.host_pages)
    states = Counter(n.host_state.slot for n in nodes if n.host_state is not None)
    for flight in host.flights.values():
        if flight.job.direction is Direction.BACKUP:  # numbers taken, not yet a node's
            pages.update(p for s in flight.segments for p in s.targets)
            if flight.job.state is not None:
                states[flight.job.state[1]] += 1
    twice = [p for p, n in (pages + states).items() if max(pages[p], states[p]) > 1]
    _require(not twice, "a host page or slot belongs to one node", twice[:5])
    held = sum(len(n.host_pages) for n in nodes)
    _require(held == host.cached_pages, "the host's page counter equals its pages")
    held = sum(n.host_state is not None for n in nodes)
    _require(held == host.cached_states, "the host's state counter equals its states")


def _check_flights(cache: RadixStateCache, host: HostTier, nodes: list[Node]) -> None:
    locks: Counter[int] = Counter({0: 1})
    for flight in host.flights.values():
        job = flight.job
        _require(cache.nodes.get(job.node) is flight.node, "a transfer's node stays", job)
        _require(flight.node.end == job.boundary, "a transfer ends where its node ends", job)
        locks.update(n.id for n in flight.node.up_to(cache.root))
        whole = tuple(p for s in flight.segments for p in s.targets)
        _require(whole == job.targets, "the parts of a transfer are the whole of it", job)
        path = [n.id for n in flight.node.up_to(cache.root)]
        for part in flight.segments:
            node = part.node
            _require(node.id in path, "a transfer is of one path", job)
            count = (node.end - node.start) // cache.page_tokens
            _require(len(part.targets) == count, "a part covers its node", node)
            here = node.pages if job.direction is Direction.BACKUP else node.host_pages
            _require(bool(here), "what is being copied stays where it is", node)
    for node in nodes:
        _require(
            node.host_lock == locks[node.id], "host locks equal the transfers at and below", node
        )


def _check_orders(cache: RadixStateCache, host: HostTier, nodes: list[Node]) -> None:
    unlocked = {n.id for n in nodes if n.host_pages and not n.host_lock}
    _require(set(host.kv_lru) == unlocked, "the host's KV order holds just the unlocked copies")
    place = {node_id: i for i, node_id in enumerate(host.kv_lru)}
    for node in host.kv_lru.values():
        if node.parent is not None and node.parent.id in place:
            _require(place[node.id] < place[node.parent.id], "copies of leaves go first", node)
    free = {n.id for n in nodes if n.host_state is not None and not n.host_lock}
    _require(set(host.state_lru) == free, "the host's state order holds just the unlocked ones")
    ages = [n.host_used for n in host.kv_lru.values()]
    _require(ages == sorted(ages), "the host's KV order is by last use")
    ages = [n.host_state_used for n in host.state_lru.values()]
    _require(ages == sorted(ages), "the host's state order is by last use")
