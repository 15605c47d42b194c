"""Who can restore what: another engine's cache, or bundles in a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kdalab.cache import Image, PrefixKey
from kdalab.spec import ParallelLayout, StateIdentity, StateKind
from kdalab.transfer.bundle import Bundle, bundle_key
from kdalab.transfer.geometry import Geometry
from kdalab.transfer.instance import checked_identity, export_prefix
from kdalab.transfer.prefix import PrefixHash, prefix_hashes
from kdalab.transfer.ranks import relayout, reslice
from kdalab.transfer.refusal import BundleFormatError, Refusal, identity_refusals
from kdalab.transfer.store import StoreProtocol

if TYPE_CHECKING:
    from kdalab.engine import Engine


@dataclass(frozen=True)
class Query:
    """A prompt that somebody wants to restore: whose states are of use, and at which boundaries.

    ``grid`` is the distance of boundaries that can hold a state (tokens); those in
    (``beyond``, ``last``] are of use. ``geometry`` is that of the model that will go on from them:
    bundles of a store are held against it.
    """

    identity: StateIdentity
    tokens: Sequence[int]
    grid: int
    beyond: int = 0
    last: int | None = None
    images: Sequence[Image] = ()
    geometry: Geometry | None = None
    _hashes: dict[int, PrefixHash] = field(default_factory=dict, repr=False, compare=False)

    @property
    def boundaries(self) -> range:
        """Boundaries that would be of use, ascending."""
        last = len(self.tokens) if self.last is None else self.last
        return range((self.beyond // self.grid + 1) * self.grid, last + 1, self.grid)

    def prefix(self, boundary: int) -> PrefixHash:
        """The hash of the prompt's prefix; all of them are computed at once, in one pass."""
        if not self._hashes:
            made = prefix_hashes(self.tokens, self.boundaries, self.images)
            self._hashes.update((p.boundary, p) for p in made)
        if boundary not in self._hashes:
            self._hashes[boundary] = PrefixHash.of(self.tokens, boundary, self.images)
        return self._hashes[boundary]


class Reach(NamedTuple):
    """How far one source could restore a prompt, kind by kind, in tokens.

    ``refusals`` say why nothing of it is of use at all.
    """

    kv: int = 0
    states: tuple[int, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    @property
    def joint(self) -> tuple[int, ...]:
        """Boundaries with a state and all latent KV before it, ascending."""
        return tuple(sorted(b for b in self.states if b <= self.kv))


class Source(Protocol):
    """Something that holds whole states."""

    @property
    def name(self) -> str:
        """What events and messages call it."""
        ...

    def reach(self, query: Query) -> Reach:
        """What it could restore of the prompt; nothing is moved."""
        ...

    def fetch(self, query: Query, boundary: int) -> Bundle:
        """The whole state at one boundary, for the rank and in the layout of ``query.identity``.

        Raises:
            KdalabError: it is gone, damaged or refused.
        """
        ...


class EngineSource:
    """The cache of another engine, in this process or behind a server."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name, self.engine = name, engine

    def reach(self, query: Query) -> Reach:
        """Its tree is asked, without a lock: what it says may be gone when it is fetched."""
        found = identity_refusals(query.identity, checked_identity(self.engine))
        if found:
            return Reach(refusals=tuple(found))
        cache = self.engine.cache
        lookup = cache.lookup(PrefixKey.from_tokens(query.tokens, cache.page_tokens))
        on_path = [cache.nodes[n] for n in lookup.path]
        matched = lookup.token_match
        states = [n.state.boundary for n in on_path if n.state is not None and n.end <= matched]
        useful = tuple(b for b in states if b in query.boundaries)
        return Reach(lookup.reach[StateKind.MLA_KV], useful)

    def fetch(self, query: Query, boundary: int) -> Bundle:
        """As ``Source.fetch``."""
        return export_prefix(self.engine, query.tokens, boundary, query.images)


class StoreSource:
    """Bundles in a store; the writer may have run on another number of ranks, in another layout.

    Args:
        store: bytes by key.
        tp_size: ranks of who wrote; the bundles of all of them are needed, and re-sliced.
        recurrent_layout, conv_layout: of who wrote; by default the reader's.
    """

    def __init__(
        self,
        store: StoreProtocol,
        tp_size: int = 1,
        recurrent_layout: str | None = None,
        conv_layout: str | None = None,
    ) -> None:
        self.store, self.tp_size = store, tp_size
        self.layout = recurrent_layout, conv_layout

    @property
    def name(self) -> str:
        """The store's."""
        return self.store.name

    def keys(self, identity: StateIdentity, prefix: PrefixHash) -> list[str]:
        """The keys of all ranks."""
        return [bundle_key(who, prefix) for who in self._writers(identity)]

    def reach(self, query: Query) -> Reach:
        """A bundle is whole, so what it reaches it reaches in every kind."""
        at = query.boundaries
        keys = [key for b in at for key in self.keys(query.identity, query.prefix(b))]
        there = self.store.exists(keys) if keys else []
        n = self.tp_size
        states = tuple(b for i, b in enumerate(at) if all(there[i * n : (i + 1) * n]))
        return Reach(states[-1] if states else 0, states)

    def fetch(self, query: Query, boundary: int) -> Bundle:
        """As ``Source.fetch``. What was got is judged again: its identity, prefix, boundary."""
        prefix, parts = query.prefix(boundary), []
        for who in self._writers(query.identity):
            key = bundle_key(who, prefix)
            data = self.store.get(key)
            if data is None:
                raise BundleFormatError(f"{self.name}: {key} is gone")
            part = Bundle.from_bytes(data)
            part.require(who, prefix)
            parts.append(part)
        ours = query.identity
        whole = [relayout(p, ours.recurrent_layout, ours.conv_layout) for p in parts]
        return reslice(whole, ours.parallel.tp_size, ours.parallel.tp_rank, query.geometry)

    def put(self, bundle: Bundle, replace: bool = False) -> str:
        """Keep a bundle; returns its key. What is there under that key is left alone, or with
        ``replace`` given up first, as when it was found damaged."""
        key = bundle.key
        if replace:
            self.store.remove(key)
        if replace or not self.store.exists([key])[0]:
            self.store.put(key, bundle.parts())
        return key

    def _writers(self, identity: StateIdentity) -> list[StateIdentity]:
        """The identities of the writer's ranks, in order."""
        state, conv = self.layout
        p = identity.parallel
        return [
            replace(
                identity,
                recurrent_layout=state or identity.recurrent_layout,
                conv_layout=conv or identity.conv_layout,
                parallel=ParallelLayout(self.tp_size, rank, p.pp_size, p.pp_rank),
            )
            for rank in range(self.tp_size)
        ]
