"""Four prompts through the block cache: where their chunks end, which states stay, what is found.

A and B share a beginning, as do C and B; D is A, and a turn more. The cache is the engine's own,
and it decides every chunk's end.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.cache import (
    BlockConfig,
    BlockLookup,
    BlockRetention,
    BlockStateCache,
    CacheMode,
    HashChain,
    Lease,
    PrefixKey,
    plain_groups,
)
from kdalab.errors import InvariantError, KdalabError
from kdalab.lessons.block_watch import known
from kdalab.lessons.chunks import play_chunks

MODE_BLOCK, MODE_UNIT = 256, 64
"""Tokens of a block of either group, and of a hash unit."""


@dataclass(frozen=True, slots=True)
class ModeAct:
    """One thing that happened to a prompt. ``kind`` names its sentence, ``values`` fill it.

    ``cached`` are the boundaries of this prompt with KV (first) and with a state; ``stops`` the
    boundaries (tokens, name) at which its chunks will stop; ``wrong`` those whose state is of
    another length. ``ends`` are the chunk ends so far.
    """

    kind: str
    request: str
    values: dict[str, object]
    cached: tuple[tuple[int, ...], tuple[int, ...]]
    computed: int
    restore: int
    stops: tuple[tuple[int, str], ...] = ()
    ends: tuple[int, ...] = ()
    fresh: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()
    lookup: BlockLookup | None = None


@dataclass(frozen=True, slots=True)
class ModeResult:
    """A prompt's figures, in tokens: what was known, restored, computed, and its chunks' ends."""

    name: str
    tokens: int
    match: int
    restore: int
    ends: tuple[int, ...]
    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Broken:
    """The state of ``length`` tokens under the key of ``boundary``, and who refused it.

    ``difference`` is max |difference| of the two states for random tokens in the kernels' reference
    recurrence, ``size`` the largest value of the right one. ``at_name`` is what the pool said when
    asked to name it; ``at_check`` what ``check()`` said after the entry had been forced in;
    ``restore`` what the next prompt would have restored.
    """

    length: int
    boundary: int
    at_name: str
    at_check: str
    restore: int
    difference: float
    size: float


@dataclass(frozen=True, slots=True)
class ModeRun:
    """All four prompts."""

    mode: CacheMode
    acts: tuple[ModeAct, ...]
    results: tuple[ModeResult, ...]
    shared: int
    broken: Broken | None


def play_modes(
    mode: str, budget: int, tokens: int, shared: int, dense: bool = True, broken: bool = False
) -> ModeRun:
    """A of ``tokens``, B and C with the same first ``shared``, D that continues A.

    Args:
        mode: "all", "align" or "none".
        budget: tokens of a prefill chunk at most.
        dense: keep every state that a chunk leaves on a block; else only tail and junction.
        broken: after B, let a chunk run through a block boundary and put the older state under
            that boundary's key.

    Raises:
        KdalabError: a share as long as A, a chunk of no token, an unknown mode; ``broken`` in mode
            none, which names no state at all.
    """
    if not 1 <= shared < tokens:
        raise KdalabError(f"{shared:,} shared of {tokens:,} tokens; use 1 to {tokens - 1:,}")
    if mode not in tuple(CacheMode):
        raise KdalabError(f"mode {mode!r}; use one of {', '.join(CacheMode)}")
    if broken and mode == CacheMode.NONE:
        raise KdalabError("mode none gives no state a name, so none can be wrong; use align or all")
    player = _Player(CacheMode(mode), budget, tokens, shared, dense)
    for name in "ABCD":
        player.request(name)
    found = player.run_through() if broken else None
    return ModeRun(player.mode, tuple(player.acts), tuple(player.results), shared, found)


class _Player:
    def __init__(self, mode: CacheMode, budget: int, tokens: int, shared: int, dense: bool) -> None:
        self.mode, self.budget, self.dense, self.shared = mode, budget, dense, shared
        block = MODE_BLOCK
        unit = MODE_UNIT if mode is CacheMode.ALIGN else None
        turn = block // 2
        longest = tokens + turn
        self.cache = BlockStateCache(
            BlockConfig(
                plain_groups(block, block), 64 + 12 * (longest // block + 4), unit=unit,
                mode=mode, retention=BlockRetention(None if dense else 0),
            )
        )  # fmt: skip
        common = tuple(range(shared))
        rest = max(1, min(tokens - shared, block + 40))
        self.tokens = {
            "A": common + tuple(10**6 + i for i in range(tokens - shared)),
            "B": common + tuple(2 * 10**6 + i for i in range(rest)),
            "C": common + tuple(3 * 10**6 + i for i in range(rest)),
        }
        self.tokens["D"] = self.tokens["A"] + tuple(4 * 10**6 + i for i in range(turn))
        self.acts: list[ModeAct] = []
        self.results: list[ModeResult] = []

    def chain(self, name: str) -> HashChain:
        return self.cache.chain(PrefixKey.from_tokens(self.tokens[name], self.cache.sizes.unit))

    def request(self, name: str) -> None:
        """Look up, then chunk after chunk to the prompt's end."""
        cache, chain = self.cache, self.chain(name)
        n = chain.n_tokens
        lookup = cache.lookup(chain)
        stops = cache.stops(n, lookup.branching)
        marks = self._marks(stops.tail, stops.junction, stops.last, lookup.restore)
        facts: dict[str, object] = {
            "who": name, "tokens": n, "match": lookup.token_match, "restore": lookup.restore,
            "junction": stops.junction, "replay": lookup.replay, "shared": self.shared,
            "same": self.shared // cache.sizes.unit * cache.sizes.unit,
        }  # fmt: skip
        kind = "miss"
        if lookup.restore:
            kind = "hit"
        elif lookup.token_match:
            kind = "known"
        ends: list[int] = []
        self._say(kind, name, facts, lookup.restore, lookup.restore, marks, ends, lookup=lookup)
        lease = cache.acquire(lookup)
        while lease.boundary < n:
            start = lease.boundary
            end = cache.chunk_end(lease, self.budget)
            lease, new = self._step(lease, chain, end)
            ends.append(end)
            reason = self._reason(start, end, n, stops.tail, stops.junction, stops.last)
            values = facts | {
                "start": start, "end": end, "budget": self.budget,
                "states": ", ".join(f"{b:,}" for b in new) or "-", "count": len(new),
            }  # fmt: skip
            kind = f"chunk-{reason}" if self.mode is CacheMode.ALIGN else f"chunk-{self.mode}"
            if self.mode is not CacheMode.ALIGN and end == n:
                kind = f"end-{self.mode}"
            if self.mode is CacheMode.ALL and not self.dense:
                kind += "-thinned"  # stored by the kernel, and given no name by the retention
            self._say(kind, name, values, end, lookup.restore, marks, ends, new)
        cache.release(lease)
        states = known(cache, 1, chain)
        facts |= {"states": ", ".join(f"{b:,}" for b in states) or "-", "count": len(states)}
        self._say("done" if states else "done-none", name, facts, n, lookup.restore, marks, ends)
        self.results.append(
            ModeResult(name, n, lookup.token_match, lookup.restore, tuple(ends), states)
        )

    def run_through(self) -> Broken:
        """E computes to a block's end, then through the next one in one chunk; the slot still
        holds the older state, and that is put under the boundary's key. The pool refuses; forced
        in all the same, ``check()`` finds it, and a lookup shows what it would have cost."""
        cache, block = self.cache, MODE_BLOCK
        first, end = 2 * block, 3 * block + cache.sizes.unit // 2
        self.tokens["E"] = tuple(5 * 10**6 + i for i in range(end + block))
        chain = self.chain("E")
        lease, _ = self._step(cache.acquire(cache.lookup(chain)), chain, first)
        running = cache.requests[lease.id].states[1].running
        assert running is not None
        older, boundary = running, 3 * block
        cache.pool.hold((older,))  # it stays where it is while the chunk runs on
        lease, _ = self._step(lease, chain, end)
        template = next(iter(cache.pool.tables[0].values())).keys[0]
        key = type(template)(chain.at(boundary), boundary)
        try:
            cache.pool.name(older, key, is_state=True)
            at_name = ""
        except InvariantError as error:
            at_name = str(error)
        cache.pool.tables[1][key.hash] = older
        older.keys = (*older.keys, key)
        try:
            cache.check()
            at_check = ""
        except InvariantError as error:
            at_check = str(error)
        restore = cache.lookup(chain).restore
        self.acts.append(
            ModeAct(
                "broken", "E",
                {"length": older.length, "boundary": boundary, "start": first, "end": end,
                 "restore": restore, "lost": boundary - older.length, "says": at_name},
                (known(cache, 0, chain), known(cache, 1, chain)), end, 0,
                ends=(first, end), wrong=(boundary,),
            )
        )  # fmt: skip
        states = play_chunks(boundary, boundary // block, "slow").states
        wrong, right = states[older.length // block], states[-1]
        difference = float(abs(wrong - right).max())
        size = float(abs(right).max())
        self.acts[-1].values.update(
            difference=f"{difference:.3g}", size=f"{size:.3g}", check=at_check
        )
        return Broken(older.length, boundary, at_name, at_check, restore, difference, size)

    def _step(self, lease: Lease, chain: HashChain, end: int) -> tuple[Lease, tuple[int, ...]]:
        before = set(known(self.cache, 1, chain))
        if self.cache.allocate(lease, end) is None:
            raise KdalabError(f"{end:,} tokens do not fit the pool of this page")
        lease = self.cache.advance(lease, end)
        self.cache.step_done()
        return lease, tuple(b for b in known(self.cache, 1, chain) if b not in before)

    def _marks(
        self, tail: int, junction: int, last: int, restore: int
    ) -> tuple[tuple[int, str], ...]:
        if self.mode is not CacheMode.ALIGN:
            return ()
        named = {last: "last", tail: "tail", junction: "junction"}
        return tuple(sorted((b, word) for b, word in named.items() if b > restore))

    def _reason(self, start: int, end: int, n: int, tail: int, junction: int, last: int) -> str:
        """Which of the rules ended this chunk."""
        if end == n:
            return "end"
        for at, word in ((junction, "junction"), (last, "last"), (tail, "tail")):
            if end == at:
                return word
        if end % MODE_BLOCK:
            return "inside"
        return "block" if start % MODE_BLOCK else "budget"

    def _say(
        self,
        kind: str,
        name: str,
        values: dict[str, object],
        computed: int,
        restore: int,
        stops: tuple[tuple[int, str], ...],
        ends: list[int],
        fresh: tuple[int, ...] = (),
        lookup: BlockLookup | None = None,
    ) -> None:
        self.cache.check()
        chain = self.chain(name)
        cached = (known(self.cache, 0, chain), known(self.cache, 1, chain))
        self.acts.append(
            ModeAct(
                kind, name, dict(values), cached, computed, restore, stops, tuple(ends), fresh,
                lookup=lookup,
            )
        )  # fmt: skip
