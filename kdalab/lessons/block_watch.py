"""The block cache, watched: every probe of a lookup in order, and what its tables know.

The lookup that runs is the cache's own. For its duration the tables note what they are asked, and
the reader's searches note where they begin and end; nothing of it changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from kdalab.cache import BlockLookup, BlockStateCache, GroupKind, HashChain


class Probe(NamedTuple):
    """One question to a group's table: is the prefix of ``boundary`` tokens known?"""

    boundary: int
    found: bool


@dataclass(frozen=True, slots=True)
class Search:
    """One group's search: what it was asked for (``candidate`` tokens at most; 0: no limit yet),
    how far it reaches, and its probes in order."""

    group: int
    kind: GroupKind
    candidate: int
    reach: int
    probes: tuple[Probe, ...]


class _Table(dict[bytes, Any]):
    """A table that notes what it is asked."""

    def __init__(self, table: dict[bytes, Any], noted: list[tuple[bytes, bool]]) -> None:
        super().__init__(table)
        self.noted = noted

    def get(self, key: bytes, default: Any = None) -> Any:
        found = super().get(key, default)
        self.noted.append((key, found is not None))
        return found

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self.noted.append((key, found))  # type: ignore[arg-type]
        return found


def watched_lookup(
    cache: BlockStateCache, chain: HashChain
) -> tuple[BlockLookup, tuple[Search, ...]]:
    """``cache.lookup(chain)``, and the searches that it made, in order. Searches that only tell
    how far a group alone would reach are left out: they do not decide anything."""
    noted: list[tuple[bytes, bool]] = []
    searches: list[Search] = []
    at = {h: (i + 1) * chain.unit for i, h in enumerate(chain.hashes)}
    aside = [0]
    reader = cache.reader
    plain_full, plain_state, plain_own = reader.full_reach, reader.state_at, reader.own_reach

    def probes(start: int) -> tuple[Probe, ...]:
        return tuple(Probe(at[key], found) for key, found in noted[start:])

    def full_reach(group: int, chain: HashChain) -> Any:
        start = len(noted)
        reach, blocks = plain_full(group, chain)
        searches.append(Search(group, GroupKind.FULL, 0, reach, probes(start)))
        return reach, blocks

    def state_at(group: int, chain: HashChain, candidate: int) -> int:
        start = len(noted)
        reach = plain_state(group, chain, candidate)
        if not aside[0]:
            searches.append(Search(group, GroupKind.STATE, candidate, reach, probes(start)))
        return reach

    def own_reach(*args: Any) -> int:
        aside[0] += 1
        try:
            return plain_own(*args)
        finally:
            aside[0] -= 1

    watch: dict[str, Callable[..., Any]] = {
        "full_reach": full_reach,
        "state_at": state_at,
        "own_reach": own_reach,
    }
    with _instead(reader, watch), _noting(cache, noted):
        lookup = cache.lookup(chain)
    return lookup, tuple(searches)


def known(cache: BlockStateCache, group: int, chain: HashChain) -> tuple[int, ...]:
    """Boundaries of ``chain``, in tokens, that a group's table has a block for."""
    table = cache.pool.tables[group]
    return tuple((i + 1) * chain.unit for i, h in enumerate(chain.hashes) if h in table)


@contextmanager
def _instead(reader: object, watch: dict[str, Callable[..., Any]]) -> Iterator[None]:
    for name, function in watch.items():
        setattr(reader, name, function)
    try:
        yield
    finally:
        for name in watch:
            delattr(reader, name)


@contextmanager
def _noting(cache: BlockStateCache, noted: list[tuple[bytes, bool]]) -> Iterator[None]:
    plain = cache.pool.tables
    cache.pool.tables = tuple(_Table(t, noted) for t in plain)
    try:
        yield
    finally:
        cache.pool.tables = plain
