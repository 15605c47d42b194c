"""An engine of either kind under way: its figures, its times, and its events between arrivals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.cache.protocol import Added, Revived
from kdalab.engine import Engine, EngineConfig
from kdalab.engine import events as ev
from kdalab.engine.block import BlockEngine
from kdalab.engine.block import events as bl
from kdalab.lab.block_replay import held_blocks
from kdalab.lab.figures import WayFigures

if TYPE_CHECKING:
    from kdalab.engine.base import BaseEngine
    from kdalab.engine.request import Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt's ids; ``together`` with the one before it."""

    name: str
    tokens: tuple[int, ...]
    max_new_tokens: int = 4
    together: bool = False


class Watch:
    """An engine under way: times, bytes held, and the events between arrivals."""

    def __init__(self, engine: Engine | BlockEngine) -> None:
        self.engine = engine
        self.first_token: list[float] = []
        self.requests: list[Request] = []
        self.peak = 0
        self.chapters: list[tuple[tuple[str, ...], list[ev.Event]]] = []

    def play(self, arrivals: Sequence[Arrival]) -> None:
        """Each group of arrivals runs to its end before the next comes."""
        for group in _groups(arrivals):
            begin, seen = time.perf_counter(), len(self.engine.events)
            waiting = {}
            for a in group:
                request = self.engine.submit(a.tokens, a.max_new_tokens, a.name)
                self.requests.append(request)
                waiting[a.name] = request
            took = {}
            while not self.engine.is_idle:
                self.engine.step()
                now = time.perf_counter() - begin
                took.update({n: now for n, r in waiting.items() if r.generated and n not in took})
                self.peak = max(self.peak, held_bytes(self.engine))
            self.first_token += [took[a.name] for a in group]
            names = tuple(a.name for a in group)
            self.chapters.append((names, list(self.engine.events[seen:])))


def _groups(arrivals: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    group: list[Arrival] = []
    for a in arrivals:
        if group and not a.together:
            yield group
            group = []
        group.append(a)
    yield group


def bytes_of(engine: Engine) -> int:
    """Bytes of an engine's pools: latent pages, active states and checkpoints."""
    pools = engine.latents.slots.n * engine.cache.page_bytes
    pools += engine.active.slots.n * engine.cache.checkpoint_bytes
    if engine.checkpoints is not engine.active:
        pools += engine.checkpoints.slots.n * engine.cache.checkpoint_bytes
    return pools


def held_bytes(engine: BaseEngine) -> int:
    """Bytes in use, by requests or by the cache."""
    if isinstance(engine, BlockEngine):
        return engine.cache.pool.n_held * engine.plan.layout.stride
    assert isinstance(engine, Engine)
    pages, active = engine.latents.slots, engine.active.slots
    states = active.n - active.n_free
    if engine.checkpoints is not engine.active:
        kept = engine.checkpoints.slots
        states += kept.n - kept.n_free
    page, state = engine.cache.page_bytes, engine.cache.checkpoint_bytes
    return (pages.n - pages.n_free) * page + states * state


def _sums(watch: Watch, way: str, setup: str) -> WayFigures:
    looks = [r.lookup for r in watch.requests if r.lookup is not None]
    return WayFigures(
        way,
        setup,
        hit_tokens=sum(x.restore for x in looks),
        known_tokens=sum(x.token_match for x in looks),
        replayed_tokens=sum(x.replay for x in looks),
        states_read=sum(x.restore > 0 for x in looks),
        held_bytes=held_bytes(watch.engine),
        peak_bytes=watch.peak,
    )


def radix_figures(watch: Watch) -> WayFigures:
    """What ``Engine`` did, from its log."""
    engine, c = watch.engine, watch.engine.config
    assert isinstance(engine, Engine)
    assert isinstance(c, EngineConfig)
    out = _sums(
        watch,
        "radix",
        f"pages of {c.page_tokens}, states on a grid of {c.grid}, {c.placement}, {c.kept}, "
        f"{c.strategy}",
    )
    for event in engine.events:
        match event:
            case ev.Inserted(changes=changes):
                out.states_written += sum(isinstance(x, Added | Revived) for x in changes)
            case ev.CopiedOnWrite(bytes=n) | ev.Snapshotted(bytes=n):
                out.copies += 1
                out.copied_bytes += n
            case ev.SnapshotSkipped():
                out.skipped_states += 1
            case ev.Evicted(kv_bytes=kv, state_bytes=state, dropped=dropped):
                out.evicted_kv_bytes += kv
                out.evicted_state_bytes += state
                out.evicted_states += sum(d.state is not None for d in dropped)
    return out


def block_figures(watch: Watch) -> WayFigures:
    """What ``BlockEngine`` did, from its log; blocks count with their whole bytes."""
    engine = watch.engine
    assert isinstance(engine, BlockEngine)
    cache, layout = engine.cache, engine.plan.layout
    states = len(cache.state_groups)
    out = _sums(
        watch,
        "block",
        f"blocks of {cache.config.state_block}, hashes of {cache.sizes.unit}, {cache.mode}, "
        f"{layout.name}, retention {cache.config.retention}, {states} state groups",
    )
    written = evicted = 0
    for event in engine.events:
        match event:
            case bl.StateCached():
                written += 1
            case bl.CopyQueued(bytes=n):
                out.copies += 1
                out.copied_bytes += n
            case bl.NamesEvicted(group=group):
                evicted += group in cache.state_groups
                if group in cache.state_groups:
                    out.evicted_state_bytes += layout.stride
                else:
                    out.evicted_kv_bytes += layout.stride
    out.states_written, out.evicted_states = -(-written // states), -(-evicted // states)
    held = held_blocks(cache.pool, layout)
    out.padding_bytes, out.unfilled_bytes = held.padding, held.unfilled
    return out
