"""Two prompts in the block cache: the first leaves blocks, the second finds how far they reach.

The cache is the one that the engine runs; blocks hold nothing here, since only decisions matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.cache import (
    BlockConfig,
    BlockLookup,
    BlockSizes,
    BlockStateCache,
    Copy,
    GroupKind,
    PrefixKey,
    plain_groups,
)
from kdalab.errors import KdalabError
from kdalab.lessons.block_watch import Search, known, watched_lookup

#: What B asks for beyond the shared tokens, as a share of the block: enough to see.
_OWN = 4


@dataclass(frozen=True, slots=True)
class PartialAct:
    """One thing that happened. ``kind`` names its sentence, ``values`` fill it.

    ``cached[group]`` are the boundaries (tokens) that the group's table knows of the prompt
    looked at; ``computed`` how far A is computed; ``candidate`` the boundary that is still
    possible, None before a lookup; ``search`` the group's search in this act.
    """

    kind: str
    values: dict[str, object]
    cached: tuple[tuple[int, ...], ...]
    computed: int
    candidate: int | None = None
    search: Search | None = None


@dataclass(frozen=True, slots=True)
class PartialRun:
    """Both prompts, act by act. Lengths in tokens."""

    sizes: BlockSizes
    kinds: tuple[GroupKind, ...]
    a_tokens: int
    b_tokens: int
    shared: int
    acts: tuple[PartialAct, ...]
    lookup: BlockLookup
    searches: tuple[Search, ...]
    copies: tuple[Copy, ...]

    @property
    def again(self) -> int:
        """Shared tokens that B computes again: those replayed, and those that no name covers."""
        return self.shared - self.lookup.restore


def play_partial(
    shared: int, block: int, unit: int | None, *, parts: int = 1, beyond: int = 0
) -> PartialRun:
    """A of ``shared + beyond`` tokens is computed; B shares the first ``shared`` of them.

    Args:
        shared: tokens that both begin with.
        block: of the state group, in tokens.
        unit: ``prefix_match_unit``; None for the gcd of the groups' blocks.
        parts: the attention block is ``block / parts`` tokens.
        beyond: tokens of A that B does not share.

    Raises:
        KdalabError: sizes that do not go together, or a prompt of no token.
    """
    if shared < 1 or beyond < 0 or parts < 1 or block % parts:
        raise KdalabError(
            f"{shared} shared tokens, {beyond} beyond, an attention block of {block} / {parts}; "
            "use 1 or more shared, 0 or more beyond, and parts that divide the block"
        )
    groups = plain_groups(block // parts, block)
    own = max(1, block // _OWN)
    n_blocks = 16 + 3 * (shared + beyond + own) // (block // parts) + 8
    cache = BlockStateCache(BlockConfig(groups, n_blocks, unit=unit))
    return _Player(cache, shared, beyond, own).run


class _Player:
    def __init__(self, cache: BlockStateCache, shared: int, beyond: int, own: int) -> None:
        self.cache = cache
        common = tuple(range(1, shared + 1))
        a = common + tuple(1_000_000 + i for i in range(beyond))
        b = common + tuple(2_000_000 + i for i in range(own))
        unit = cache.sizes.unit
        self.a = cache.chain(PrefixKey.from_tokens(a, unit))
        self.b = cache.chain(PrefixKey.from_tokens(b, unit))
        self.shared, self.computed = shared, 0
        self.acts: list[PartialAct] = []
        self._first()
        lookup, searches = watched_lookup(cache, self.b)
        self._second(lookup, searches)
        copies = self._begin(lookup)
        self.run = PartialRun(
            cache.sizes, tuple(g.kind for g in cache.groups), len(a), len(b), shared,
            tuple(self.acts), lookup, searches, copies,
        )  # fmt: skip

    def _first(self) -> None:
        """A, from nothing to its last token."""
        cache, chain = self.cache, self.a
        full, state = (g.block_tokens for g in cache.groups)
        sizes = cache.sizes
        self._say(
            "sizes",
            {"full": full, "state": state, "scheduler": sizes.scheduler, "unit": sizes.unit},
        )
        lease = cache.acquire(cache.lookup(chain))
        while lease.boundary < chain.n_tokens:
            start = lease.boundary
            end = cache.chunk_end(lease, chain.n_tokens)
            before = [set(known(cache, i, chain)) for i in range(len(cache.groups))]
            if cache.allocate(lease, end) is None:
                raise KdalabError("the pool is too small for this prompt")
            lease = cache.advance(lease, end)
            cache.step_done()
            self.computed = end
            new = [sorted(set(known(cache, i, chain)) - old) for i, old in enumerate(before)]
            kind = "tail" if new[1] and end % state else ("chunk" if new[1] else "rest")
            self._say(kind, {"start": start, "end": end, "count": len(new[0]), "state": end})
        cache.release(lease)

    def _second(self, lookup: BlockLookup, searches: tuple[Search, ...]) -> None:
        """B's lookup, search by search."""
        cache, chain = self.cache, self.b
        same = self.shared // chain.unit
        self._say(
            "hash",
            {"tokens": chain.n_tokens, "units": len(chain.hashes), "same": same,
             "unit": chain.unit, "shared": self.shared},
        )  # fmt: skip
        candidate = None
        for search in searches:
            block = cache.groups[search.group].block_tokens
            if search.kind is GroupKind.FULL:
                n, blocks = _whole(search, block), search.reach // block * block
                facts: dict[str, object] = {
                    "count": blocks // block, "blocks": blocks, "block": block, "probes": n,
                }  # fmt: skip
                part = Search(search.group, search.kind, 0, blocks, search.probes[:n])
                self._say("whole" if blocks else "whole-none", facts, blocks, part)
                if fine := search.probes[n:]:
                    facts = {
                        "reach": search.reach, "probes": len(fine), "from": fine[0].boundary,
                        "to": fine[-1].boundary, "blocks": blocks,
                    }  # fmt: skip
                    part = Search(search.group, search.kind, 0, search.reach, fine)
                    kind = "fine" if search.reach > blocks else "fine-none"
                    self._say(kind, facts, search.reach, part)
                candidate = search.reach
                continue
            if search.candidate != candidate:
                facts = {"reach": candidate, "candidate": search.candidate}
                self._say("leave", facts, search.candidate)
            facts = {
                "candidate": search.candidate, "reach": search.reach,
                "probes": len(search.probes), "group": search.group,
            }  # fmt: skip
            kind = "state-none" if not search.reach else (
                "state-same" if search.reach == search.candidate else "state-lower"
            )  # fmt: skip
            candidate = search.reach
            self._say(kind, facts, candidate, search)
        facts = {
            "restore": lookup.restore, "match": lookup.token_match, "replay": lookup.replay,
            "shared": self.shared, "tokens": chain.n_tokens, "own": chain.n_tokens - self.shared,
            "again": self.shared - lookup.restore,
        }  # fmt: skip
        self._say("agree" if lookup.restore else "nothing", facts, lookup.restore)

    def _begin(self, lookup: BlockLookup) -> tuple[Copy, ...]:
        """B's first step: what it must copy before it may write."""
        cache = self.cache
        if not lookup.restore:
            return ()
        lease = cache.acquire(lookup)
        step = cache.allocate(lease, cache.chunk_end(lease, self.b.n_tokens))
        assert step is not None
        copies = step.copies
        lease = cache.advance(lease, step.end)
        cache.step_done()
        cache.check()
        cache.release(lease)
        tail = next((c.tokens for c in copies if c.tokens), 0)
        facts: dict[str, object] = {
            "restore": lookup.restore, "copies": len(copies), "tail": tail, "end": step.end,
        }  # fmt: skip
        if copies:
            kind = "copy" if tail else "copy-state"
        else:
            kind = "shared"
        self._say(kind, facts, lookup.restore)
        return copies

    def _say(
        self,
        kind: str,
        values: dict[str, object],
        candidate: int | None = None,
        search: Search | None = None,
    ) -> None:
        self.cache.check()
        chain = self.a
        cached = tuple(known(self.cache, i, chain) for i in range(len(self.cache.groups)))
        self.acts.append(PartialAct(kind, values, cached, self.computed, candidate, search))


def _whole(search: Search, block: int) -> int:
    """How many of an attention search's probes are for whole blocks: those that come first, up to
    the first miss."""
    for i, probe in enumerate(search.probes):
        if probe.boundary != (i + 1) * block:
            return i
        if not probe.found:
            return i + 1
    return len(search.probes)
