"""How far each group knows a prompt, and the boundary on which all of them agree.

* **Attention**, left to right: whole blocks in a row, then inside the first one that is missing
  the fine boundaries from high to low. What is known is known from 0 on, so a shorter candidate
  only trims it.
* **State**, right to left: the first cached boundary at or below the candidate wins.
* **Coordinator**: the candidate begins at the last boundary that leaves a token to compute; each
  group may only lower it; it is final when a whole round has not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from kdalab.cache.block_hash import HashChain
from kdalab.cache.block_pool import Block, BlockPool
from kdalab.cache.groups import BlockSizes, Group, GroupKind
from kdalab.cache.protocol import Lookup
from kdalab.spec import StateKind


class CacheMode(StrEnum):
    """Where state groups keep states: nowhere, at every block boundary, or where a step ends."""

    NONE = "none"
    ALL = "all"
    ALIGN = "align"


class GroupReach(NamedTuple):
    """How far one group alone knows a prompt, in tokens."""

    name: str
    kind: GroupKind
    tokens: int


@dataclass(frozen=True, slots=True)
class BlockLookup(Lookup):
    """A lookup among blocks: also how far each group reaches, and what it cost.

    ``dropped`` is how much of a hit was given up for speculative decoding; ``deferred`` tells
    that a block of the hit is only being computed in this step, so that the request must wait for
    the next. ``branching`` is the junction: the farthest that any one group knows.
    """

    groups: tuple[GroupReach, ...] = ()
    dropped: int = 0
    deferred: bool = False
    found: tuple[tuple[Block, ...], ...] = field(repr=False, compare=False, default=())
    version: int = field(repr=False, compare=False, default=0)

    @property
    def binding(self) -> str:
        """The constraint that fixes the restore point, in a few words."""
        if self.deferred:
            return "a block of the hit is being computed in this step: wait for the next"
        if not any(g.tokens for g in self.groups):
            return "no cached prefix"
        full = min((g.tokens for g in self.groups if g.kind is GroupKind.FULL), default=None)
        state = min((g.tokens for g in self.groups if g.kind is GroupKind.STATE), default=None)
        if full is not None and self.restore >= full - self.dropped:
            if self.dropped:
                return "one unit is computed again for the draft model"
            return "none: every group reaches the token match"
        if state is not None and state > self.restore:
            return "one token must be computed to get logits"
        if not state:
            return "no state block on the way"
        return "state blocks: the last boundary at which every state group has one"

    @property
    def why(self) -> tuple[str, ...]:
        """Group by group, then the binding constraint, the restore point and the junction."""
        lines = [f"text known to {self.token_match:,} of {self.n_tokens:,} tokens"]
        for g in self.groups:
            if g.kind is GroupKind.FULL:
                lines.append(f"group {g.name}: KV to {g.tokens:,}")
            else:
                at = f"state at {g.tokens:,}" if g.tokens else "no state on the way"
                lines.append(f"group {g.name}: {at}")
        if self.dropped:
            lines.append(f"speculative decoding gives up {self.dropped:,} tokens of the match")
        lines.append(f"binding constraint: {self.binding}")
        lines.append(
            f"restore {self.restore:,}, replay {self.replay:,}, compute {self.new:,} new tokens"
        )
        if self.branching is not None:
            lines.append(f"junction: shared by a second prompt to {self.branching:,}")
        return tuple(lines)


class Reader:
    """Looks prompts up in a pool; changes nothing.

    Args:
        drop: tokens of a match to give up when a draft model reads the last ones (EAGLE); 0 or
            one unit.
    """

    def __init__(
        self,
        groups: tuple[Group, ...],
        sizes: BlockSizes,
        mode: CacheMode,
        pool: BlockPool,
        drop: int,
    ) -> None:
        self.groups, self.sizes, self.mode, self.pool, self.drop = groups, sizes, mode, pool, drop
        # Hits inside a block need a state at just that boundary, which only a step can leave.
        self.align = sizes.unit if mode is CacheMode.ALIGN else sizes.scheduler
        self.full = [i for i, g in enumerate(groups) if g.kind is GroupKind.FULL]
        self.states = [i for i, g in enumerate(groups) if g.kind is GroupKind.STATE]
        self._names = [(g.name, g.kind) for g in groups]
        self._nothing = tuple(GroupReach(g.name, g.kind, 0) for g in groups)
        self._no_blocks: tuple[tuple[Block, ...], ...] = ((),) * len(groups)

    def lookup(self, chain: HashChain) -> BlockLookup:
        """What the pool knows of ``chain``'s tokens."""
        pool, unit, states = self.pool, self.sizes.unit, self.states
        kv = {i: self.full_reach(i, chain) for i in self.full}
        if kv and not any(reach for reach, _ in kv.values()):
            return self._unknown(chain)
        match = min((reach for reach, _ in kv.values()), default=chain.hashed)
        last = (chain.n_tokens - 1) // self.align * self.align
        top = min(last, match)
        dropped = min(self.drop, top)
        top = (top - dropped) // self.align * self.align
        # One drop for the candidate: a state found lower has the dropped unit behind it already.
        candidate, at = top, dict.fromkeys(states, 0)
        while candidate and states:
            before = candidate
            for i in states:
                at[i] = self.state_at(i, chain, candidate)
                candidate = min(candidate, at[i])
            if candidate == before:
                break
        name = chain.at(candidate) if candidate else b""
        reach: list[GroupReach] = []
        found: list[tuple[Block, ...]] = []
        farthest, state = 0, None
        for i, (label, kind) in enumerate(self._names):
            if i in kv:
                tokens, blocks = kv[i]
                found.append(tuple(blocks[: -(-candidate // self.sizes.group[i])]))
            else:
                tokens = self.own_reach(i, chain, at, match)
                found.append((pool.tables[i][name],) if candidate else ())
                state = tokens if state is None or tokens < state else state
            reach.append(GroupReach(label, kind, tokens))
            farthest = max(farthest, tokens)
        if not kv:
            match = farthest
        junction = farthest // unit * unit
        if state is None:
            state = candidate
        kinds = {
            StateKind.MLA_KV: match,
            StateKind.KDA_RECURRENT: state,
            StateKind.KDA_CONV: state,
        }
        deferred = bool(pool.fresh) and any(b.fresh for blocks in found for b in blocks)
        return BlockLookup(
            chain.n_tokens,
            match,
            kinds,
            candidate,
            junction if junction > max(state, candidate) else None,
            (),
            chain,
            None,
            tuple(reach),
            dropped,
            deferred,
            tuple(found),
            pool.version,
        )

    def _unknown(self, chain: HashChain) -> BlockLookup:
        """No attention group knows the first block, so there is nothing to look further for: a
        state without the KV up to it is of no use."""
        kinds = {StateKind.MLA_KV: 0, StateKind.KDA_RECURRENT: 0, StateKind.KDA_CONV: 0}
        return BlockLookup(
            chain.n_tokens, 0, kinds, 0, None, (), chain, None, self._nothing, 0, False,
            self._no_blocks, self.pool.version,
        )  # fmt: skip

    def full_reach(self, group: int, chain: HashChain) -> tuple[int, list[Block]]:
        """Tokens of KV known in a row, and the blocks that hold them, the last perhaps partial."""
        table, block, unit = self.pool.tables[group], self.sizes.group[group], chain.unit
        get, blocks = table.get, []
        for name in chain.of_blocks(block):
            found = get(name)
            if found is None:
                break
            blocks.append(found)
        reach = len(blocks) * block
        if self.mode is CacheMode.ALIGN and unit < block:
            first, hashes = reach // unit, chain.hashes
            for index in range(min(first + block // unit - 1, len(hashes)) - 1, first - 1, -1):
                found = get(hashes[index])
                if found is not None:
                    blocks.append(found)
                    return (index + 1) * unit, blocks
        return reach, blocks

    def state_at(self, group: int, chain: HashChain, candidate: int) -> int:
        """The last boundary at or below ``candidate`` with a cached state; 0 for none."""
        if self.mode is CacheMode.NONE:
            return 0
        table, hashes, unit = self.pool.tables[group], chain.hashes, chain.unit
        step = self.align // unit
        for index in range(candidate // self.align * step - 1, -1, -step):
            if hashes[index] in table:
                return (index + 1) * unit
        return 0

    def own_reach(self, group: int, chain: HashChain, at: dict[int, int], match: int) -> int:
        """How far this group alone would take the prompt."""
        end = min(match, chain.hashed) // self.align * self.align
        if at[group] == end:
            return end
        return self.state_at(group, chain, end)
