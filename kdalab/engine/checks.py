"""The rules that bind pools, cache and requests together, proved on the live objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdalab.errors import InvariantError
from kdalab.memory import CACHE

if TYPE_CHECKING:
    from kdalab.engine.core import Engine


def _require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise InvariantError(f"{rule}{f': {detail}' if detail != '' else ''}")


def check(engine: Engine) -> None:
    """Raise ``InvariantError`` with the first broken rule named."""
    engine.cache.check()
    engine.active.slots.check()
    engine.latents.slots.check()
    engine.checkpoints.check()
    _check_owners(engine)
    _check_states(engine)
    if engine.config.poison:
        _check_poison(engine)


def _check_owners(engine: Engine) -> None:
    running = {r.name: r for r in engine.running}
    for slot, owner in enumerate(engine.active.slots.owners()):
        if owner is not None:
            _require(owner in running, "an active slot belongs to a running request", owner)
            _require(running[owner].active_slot == slot, "one active slot a request", owner)
    for r in engine.requests.values():
        _require(r.is_running == (r.name in running), "running requests are in the batch", r.name)
        if not r.is_running:
            _require(
                r.active_slot == -1 and not r.pages and r.lease is None,
                "a request that does not run holds nothing",
                r.name,
            )
            continue
        _require(engine.active.slots.owner(r.active_slot) == r.name, "its slot is its own", r.name)
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


def _check_poison(engine: Engine) -> None:
    for name, pool, tensors in (
        ("active states", engine.active, (engine.active.recurrent, engine.active.conv)),
        (
            "checkpoints",
            engine.checkpoints,
            (engine.checkpoints.recurrent, engine.checkpoints.conv),
        ),
        ("latent pages", engine.latents, (engine.latents.data,)),
    ):
        free = [i for i, owner in enumerate(pool.slots.owners()) if owner is None]
        for tensor in tensors:
            clean = bool(torch.isnan(tensor[torch.tensor(free, dtype=torch.long)]).all())
            _require(clean, "free memory stays poisoned: nobody writes where nobody owns", name)
