"""Reuse between instances: who can restore a prompt farthest, and one source for all of it.

A prompt can be gone on from where latent KV of every page *and* a state at that very boundary are
had, under one identity. The latent KV of one instance and the state of another would fit by their
shapes; but whether they are of one run, nobody could say. So the kinds of one boundary come from
one source, as one bundle, and a source that knows more text but has no state there is of no use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kdalab.engine.arrivals import Arrival, Offer
from kdalab.errors import KdalabError
from kdalab.transfer.bundle import Bundle
from kdalab.transfer.geometry import Geometry
from kdalab.transfer.instance import arrival, checked_identity, export_prefix
from kdalab.transfer.sources import Query, Reach, Source, StoreSource

if TYPE_CHECKING:
    from kdalab.engine import Engine


class Found(NamedTuple):
    """The farthest boundary that one source can restore, and why not farther, source by source.

    ``source`` is None where none reaches beyond what is there already.
    """

    source: Source | None
    boundary: int
    why: tuple[str, ...]


class Skipped(NamedTuple):
    """Something that was offered and could not be taken; or, with boundary 0, a source that could
    not be asked at all."""

    source: str
    boundary: int
    reason: str


class Directory:
    """The sources that an instance may restore from, nearest first.

    What could not be taken from a source once is not asked of it again; ``skipped`` says why. A
    source that cannot be asked is skipped too, and asked again for the next prompt; ``skipped``
    has it once, until it has answered again.
    """

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self.sources: list[Source] = list(sources)
        self.skipped: list[Skipped] = []
        self._bad: set[tuple[str, str]] = set()
        self._away: set[str] = set()

    def find(self, query: Query) -> Found:
        """The longest jointly restorable prefix; of equal ones, that of the nearest source.

        A source that cannot be asked counts as one that knows nothing.
        """
        best: Source | None = None
        boundary, why = query.beyond, []
        reaches: list[tuple[Source, Reach]] = []
        for source in self.sources:
            try:
                reach = source.reach(query)
            except (KdalabError, OSError) as error:
                reason = f"cannot be asked ({error})"
                why.append(f"{source.name}: {reason}")
                if source.name not in self._away:
                    self.skipped.append(Skipped(source.name, 0, reason))
                self._away.add(source.name)
                continue
            self._away.discard(source.name)
            usable = [b for b in reach.joint if not self._is_bad(source, query, b)]
            why.append(_line(source.name, reach, usable))
            reaches.append((source, reach))
            if usable and usable[-1] > boundary:
                best, boundary = source, usable[-1]
        why += _never_joined(reaches, boundary)
        return Found(best, boundary, tuple(why))

    def fetch(self, query: Query) -> tuple[Source, Bundle]:
        """The bundle of the farthest boundary that can be had whole from one source.

        What turns out damaged, false or gone is skipped, with its reason, and the next best taken.

        Raises:
            KdalabError: nothing is left; the reasons are named.
        """
        before = len(self.skipped)
        while True:
            found = self.find(query)
            if found.source is None:
                tried = [s for s in self.skipped[before:] if s.boundary]
                lines = [f"{s.source} at {s.boundary:,}: {s.reason}" for s in tried] or found.why
                raise KdalabError(f"nothing to restore from elsewhere ({'; '.join(lines)})")
            try:
                bundle = found.source.fetch(query, found.boundary)
                bundle.require(query.identity, query.prefix(found.boundary))
                return found.source, bundle
            except (KdalabError, OSError) as error:
                self.skip(found.source, query, found.boundary, str(error))

    def skip(self, source: Source, query: Query, boundary: int, reason: str) -> None:
        """Never take this boundary of this prompt from this source again."""
        self._bad.add((source.name, query.prefix(boundary).digest))
        self.skipped.append(Skipped(source.name, boundary, reason))

    def _is_bad(self, source: Source, query: Query, boundary: int) -> bool:
        return bool(self._bad) and (source.name, query.prefix(boundary).digest) in self._bad


class DirectoryRemote:
    """A directory as the engine asks it (``Engine.remote``)."""

    def __init__(self, engine: Engine, directory: Directory) -> None:
        self.engine, self.directory = engine, directory
        self.identity = checked_identity(engine)

    def find(self, tokens: Sequence[int], beyond: int, last: int) -> Offer | None:
        """As ``kdalab.engine.arrivals.Remote.find``."""
        geometry = Geometry.of(self.engine.model)
        grid = self.engine.config.grid
        query = Query(self.identity, tokens, grid, beyond, last, geometry=geometry)
        found = self.directory.find(query)
        if found.source is None:
            return None
        return Offer(found.source.name, found.boundary, query)

    def fetch(self, offer: Offer) -> Arrival:
        """As ``kdalab.engine.arrivals.Remote.fetch``; perhaps of another source or boundary than
        was offered, where that one is damaged."""
        query = offer.handle
        assert isinstance(query, Query)
        source, bundle = self.directory.fetch(query)
        try:
            return arrival(self.engine, bundle, query.tokens, query.images, source.name)
        except KdalabError as error:
            self.directory.skip(source, query, bundle.boundary, str(error))
            raise


def connect(engine: Engine, directory: Directory) -> None:
    """Before a prompt is computed, ``engine`` asks ``directory`` for what it lacks.

    Raises:
        KdalabError: the engine has no identity.
    """
    engine.remote = DirectoryRemote(engine, directory)


def publish(
    engine: Engine,
    source: StoreSource,
    tokens: Sequence[int],
    boundary: int | None = None,
    replace: bool = False,
) -> str:
    """Put what the engine's cache holds of a prompt into a store; returns the key.

    Args:
        boundary: one with a checkpoint; by default the farthest of the prompt.
        replace: also where the store has one already, perhaps a damaged one.

    Raises:
        KdalabError: no checkpoint there, or the store is full or away.
    """
    return source.put(export_prefix(engine, tokens, boundary, target=source.name), replace)


def _line(name: str, reach: Reach, usable: Sequence[int]) -> str:
    if reach.refusals:
        return f"{name}: of no use ({'; '.join(map(str, reach.refusals))})"
    states = ", ".join(f"{b:,}" for b in reach.states[-4:]) or "none"
    more = "... " if len(reach.states) > 4 else ""
    end = f"restores {usable[-1]:,}" if usable else "restores nothing of use"
    return f"{name}: latent KV to {reach.kv:,}; states at {more}{states}; {end}"


def _never_joined(reaches: Sequence[tuple[Source, Reach]], boundary: int) -> list[str]:
    """The pair of sources that would reach farther together, and does not."""
    pairs = [
        (state, a.name, b.name)
        for a, kv in reaches
        for b, other in reaches
        for state in other.states
        if a is not b and boundary < state <= kv.kv and state not in other.joint
    ]
    if not pairs:
        return []
    state, kv_name, state_name = max(pairs)
    return [
        f"latent KV of {kv_name} with the state of {state_name} would reach {state:,}: the kinds "
        "of one boundary are never taken from two sources"
    ]
