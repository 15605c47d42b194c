"""Marconi's order among blocks: every choice beside a brute-force model, and the cache's life."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import test_block_machine as block_machine
import test_both_machine as both_machine
from block_cases import Bench, Tokens, text
from hypothesis import settings

from kdalab.cache import (
    BlockConfig,
    BlockRetention,
    BlockStateCache,
    Bytes,
    EvictionOrder,
    Lease,
    Lru,
    Marconi,
    MarconiOrder,
    PrefillFlops,
    Step,
    plain_groups,
)
from kdalab.cache.block_order import OrderedPool
from kdalab.cache.block_pool import Block
from kdalab.errors import InvariantError, KdalabError

FLOPS = PrefillFlops(linear=100, pair=2)


def order(alpha: float) -> MarconiOrder:
    return MarconiOrder(FLOPS, 3, 3, alpha)


class Judge:
    """Stands beside a pool and says, from the tables and texts alone, which block must go.

    ``names`` maps each hash to the text it stands for; ``age`` a block to the number of requests
    that had got blocks for a step when it was given back.
    """

    def __init__(self, bench: Bench, names: dict[bytes, Tokens]) -> None:
        pool = bench.cache.pool
        assert isinstance(pool, OrderedPool)
        self.bench, self.pool, self.names = bench, pool, names
        self.choose, self.drop, self.allocate = pool.least, pool.drop, bench.cache.allocate
        self.age: dict[int, int] = {}
        self.began: set[int] = set()
        self.choices = 0
        pool.least = self.least  # type: ignore[method-assign]
        pool.drop = self.dropped  # type: ignore[method-assign]
        bench.cache.allocate = self.allocated  # type: ignore[method-assign]

    def allocated(self, lease: Lease, end: int, drafts: int = 0) -> Step | None:
        step = self.allocate(lease, end, drafts)
        if step is not None:
            self.began.add(lease.id)
        return step

    def dropped(self, blocks: Iterable[Block]) -> None:
        before = {b.id for b in self.pool.free_blocks()}
        self.drop(tuple(blocks))
        now = [b for b in self.pool.free_blocks() if b.id not in before and b.keys]
        self.age.update({b.id: len(self.began) for b in now})

    def least(self, groups: frozenset[int] | None = None) -> Block | None:
        chosen, expected = self.choose(groups), self.expected(groups)
        assert chosen is expected
        self.choices += 1
        return chosen

    # -- the model ---------------------------------------------------------------------------

    def texts(self, group: int) -> dict[Tokens, Block]:
        return {self.names[h]: b for h, b in self.pool.tables[group].items()}

    def expected(self, groups: frozenset[int] | None) -> Block | None:
        cache = self.bench.cache
        self.kv = {g: self.texts(g) for g in cache.kv_groups}
        self.states = {g: self.texts(g) for g in cache.state_groups}
        self.entries = {t for table in self.states.values() for t in table}
        free = [b for b in self.pool.free_blocks() if b.keys]
        free = [b for b in free if groups is None or b.group in groups]
        free = [b for b in free if b.group in self.states or not self.goes_on(b)]
        if not free:
            return None
        now = 1 + max(self.age[b.id] for b in free)
        recency = norm([1 / (now - self.age[b.id]) for b in free])
        worth = norm([self.worth(b) for b in free])
        alpha = self.pool.order.alpha
        score = [r + alpha * w for r, w in zip(recency, worth, strict=True)]
        return free[score.index(min(score))]  # the queue's first of equals

    def size(self, group: int) -> int:
        return self.bench.cache.groups[group].block_tokens

    def start(self, text: Tokens, group: int) -> int:
        return (len(text) - 1) // self.size(group) * self.size(group)

    def goes_on(self, block: Block) -> bool:
        mine = {self.names[k.hash] for k in block.keys}
        return any(t[: self.start(t, block.group)] in mine for t in self.kv[block.group])

    def restorable(self, entry: Tokens) -> bool:
        return all(entry in table for table in self.states.values()) and all(
            any(t[: len(entry)] == entry and self.start(t, g) < len(entry) for t in table)
            for g, table in self.kv.items()
        )

    def previous(self, entry: Tokens) -> int:
        lower = (n for n in range(1, len(entry)) if entry[:n] in self.entries)
        return max((n for n in lower if self.restorable(entry[:n])), default=0)

    def kv_between(self, start: int, end: int) -> int:
        ends = (range(0, 10**4, self.size(g)) for g in self.kv)
        return sum(start <= at < end for e in ends for at in e)

    def worth(self, block: Block) -> float:
        mine = max((self.names[k.hash] for k in block.keys), key=len)
        if block.group in self.kv:
            start = self.start(mine, block.group)
            if not self.states:
                return self.ratio(start, len(mine), 1)
            ends = range(start + 1, len(mine) + 1)
            on = [mine[:n] for n in ends if mine[:n] in self.entries and self.restorable(mine[:n])]
            if not on:
                return 0
            first, last = self.previous(on[0]), len(on[-1])
            count = len(on) * len(self.states) + self.kv_between(first, last)
            return self.ratio(first, last, count)
        if not self.restorable(mine):
            return 0
        first, last = self.previous(mine), len(mine)
        beyond = any(len(e) > last and e[:last] == mine for e in self.entries)
        return self.ratio(
            first, last, len(self.states) + (0 if beyond else self.kv_between(first, last))
        )

    def ratio(self, start: int, end: int, blocks: int) -> float:
        return sum(100 + 2 * (t + 1) for t in range(start, end)) / (3 * blocks)


def norm(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]


class BlockMarconiMachine(block_machine.BlockMachine):
    """The cache's whole random life, and each choice judged."""

    order = order(0.7)

    def holds_the_judge(self) -> Judge:
        if not hasattr(self, "judge"):
            self.judge = Judge(self.bench, self.names)
        return self.judge

    def learn(self, tokens: Tokens) -> None:
        self.holds_the_judge()
        super().learn(tokens)


class BothMarconiMachine(both_machine.BothMachine):
    order = order(1.5)


for machine, examples in ((BlockMarconiMachine, 60), (BothMarconiMachine, 40)):
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=30, deadline=None
    )
TestBlockMarconiMachine = BlockMarconiMachine.TestCase
TestBothMarconiMachine = BothMarconiMachine.TestCase


def judged(bench: Bench, *prompts: Tokens) -> Judge:
    names = {}
    for tokens in prompts:
        for n in range(bench.unit, len(tokens) + 1, bench.unit):
            names[bench.hash(tokens[:n])] = tokens[:n]
    return Judge(bench, names)


@pytest.mark.parametrize("interval", [None, 0, 32])
@pytest.mark.parametrize(("alpha", "kept"), [(0.0, "short"), (2.0, "long")])
def test_a_long_prompt_outlives_younger_short_ones_once_alpha_counts_whatever_stays(
    alpha: float, kept: str, interval: int | None
) -> None:
    bench = Bench(16, 48, states=2, retention=interval, order=order(alpha))
    prompts = {"long": text(321, 1), "short": text(33, 2)}
    others = [text(33, i) for i in range(3, 9)]
    judge = judged(bench, *prompts.values(), *others)
    for tokens in (*prompts.values(), *others):
        bench.run(tokens, 64)
    assert judge.choices
    restored = {name: bench.restore((*tokens, 7)) for name, tokens in prompts.items()}
    assert max(restored, key=lambda name: restored[name] / len(prompts[name])) == kept


def test_kv_goes_from_the_end_of_a_text_and_never_leaves_a_hole() -> None:
    bench = Bench(16, 40, order=order(1.0))
    tokens = text(161)
    judged(bench, tokens)
    bench.run(tokens)
    left = 10
    while gone := bench.cache.evict(Bytes(kv=1)).pages:
        assert len(gone) == 1
        left -= 1
        assert bench.lookup(tokens).token_match == left * 16
        bench.check()
    assert left == 0


def test_what_is_left_of_an_entry_goes_before_what_can_still_be_restored() -> None:
    bench = Bench(16, 60, states=3, order=order(1.0))
    first, second = text(33, 1), text(33, 2)
    judged(bench, first, second)
    bench.run(first)
    bench.run(second)
    gone = bench.cache.evict(Bytes(state=3))
    assert len(gone.states) == 3
    assert [bench.restore((*t, 5)) for t in (first, second)] == [0, 32]


def test_blocks_without_states_are_worth_what_they_hold() -> None:
    bench = Bench(16, 30, states=0, order=order(2.0))
    long, short = text(161, 1), text(33, 2)
    judged(bench, long, short)
    bench.run(long)
    bench.run(short)
    bench.cache.evict(Bytes(kv=2))
    assert (bench.restore((*long, 1)), bench.restore((*short, 1))) == (160, 0)


def test_ages_count_requests_however_many_steps_they_ran_and_not_those_turned_away() -> None:
    bench = Bench(16, 80, states=2, retention=None, order=order(1.0))
    slow, quick, last = text(161, 1), text(161, 2), text(33, 3)
    pool = bench.cache.pool
    assert isinstance(pool, OrderedPool)

    def ages() -> set[int]:
        return {int(pool.used[b.id]) for b in pool.free_blocks() if b.keys} - seen

    seen: set[int] = set()
    for number, (tokens, budget) in enumerate([(slow, 16), (quick, 512), (last, 16)], 1):
        for _ in range(number):  # it finds no room yet, and asks again
            bench.cache.release(bench.start(tokens), used=False)
            held = bench.start(tokens)
            assert bench.cache.allocate(held, 10**5) is None
            bench.cache.release(held, used=False)
        bench.run(tokens, budget)
        assert ages() == {number}
        seen |= ages()


def test_an_order_without_costs_and_one_of_a_tree_are_refused() -> None:
    config = BlockConfig(plain_groups(16, 16), 20, retention=BlockRetention(0, Marconi(1.0)))
    with pytest.raises(KdalabError, match="knows neither"):
        BlockStateCache(config)
    mine: EvictionOrder = order(1.0)
    with pytest.raises(KdalabError, match="no eviction order of blocks"):
        BlockRetention(0, str(mine))  # type: ignore[arg-type]
    assert type(Bench(order=None).cache.pool).__name__ == "BlockPool"
    assert BlockRetention(0).order == Lru()


def test_an_entry_is_weighed_again_when_one_far_above_it_goes() -> None:
    """States at 32, 64 and 96 of one text; the middle one has lost a block, then the first goes."""
    bench = Bench(16, 60, states=2, retention=32, order=order(1.0))
    tokens = text(97)
    bench.run(tokens, 32)
    pool = bench.cache.pool
    assert isinstance(pool, OrderedPool)
    at = {b.length: b for b in pool.tables[1].values()}
    assert sorted(at) == [32, 64, 96]
    pool.evict([at[64]])
    pool.least()
    assert pool.efficiency[at[96].id] == FLOPS.between(32, 96) / (3 * (2 + 4))
    pool.evict([at[32]])
    pool.least()
    assert pool.efficiency[at[96].id] == FLOPS.between(0, 96) / (3 * (2 + 6))
    pool.check()


def _forget_a_first_span(pool: OrderedPool) -> None:
    spans = pool.worths.spans
    del spans[next(i for i, s in spans.items() if not s.start)]


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        ("a weight is up to date", lambda p: p.efficiency.__setitem__(slice(None), 1e9)),
        ("a candidate is free", lambda p: p.candidate.__setitem__(slice(None), True)),
        ("an entry wherever", lambda p: p.worths.entries.popitem()),
        ("KV blocks cover", lambda p: p.worths.covers[0].popitem()),
        ("counted where they begin", lambda p: p.worths.begun.popitem()),
        ("cached KV has a span", _forget_a_first_span),
    ],
)
def test_check_names_what_the_order_has_wrong(rule: str, harm: object) -> None:
    bench = Bench(16, 40, order=order(1.0))
    bench.run(text(100))
    pool = bench.cache.pool
    assert isinstance(pool, OrderedPool)
    pool.least()
    pool.check()
    harm(pool)  # type: ignore[operator]
    with pytest.raises(InvariantError, match=rule):
        pool.check()
