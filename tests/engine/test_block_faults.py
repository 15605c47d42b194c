"""Kinds of fault that users of such engines reported, tried on blocks: see each test's name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from block_engine_cases import (
    SMALL,
    CountingModel,
    assert_nothing_leaks,
    block_engine,
    check_counts,
    named_states,
    of_type,
    run,
    text,
    worst,
)

from kdalab.cache import BlockStateCache, Bytes, block_steps
from kdalab.engine.block import BlockEngine
from kdalab.engine.block import events as bl
from kdalab.engine.block.request import BlockRequest
from kdalab.engine.drafters import Scripted
from kdalab.errors import InvariantError

DENSE: dict[str, Any] = {"state_block": 64, "attention_block": 64, "retention": None}


# -- A: a state at the wrong position ---------------------------------------------------------


@pytest.mark.parametrize("kernel_grid", [0, 64])
def test_a_cached_state_is_the_recomputed_one_where_free_memory_is_poison(kernel_grid: int) -> None:
    engine = block_engine(state_block=256, attention_block=256, unit=64, kernel_grid=kernel_grid)
    run(engine, text(256), text(300))
    for boundary in named_states(engine):
        blocks = [named_states(engine, g)[boundary] for g in engine.cache.state_groups]
        recurrent, conv, _ = SMALL.states(text(300)[:boundary])
        state = engine.memory.read_state(blocks)
        assert torch.equal(state[0], recurrent)
        assert torch.equal(state[1], conv)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 127, 128, 129, 192, 193])
def test_the_same_prompt_twice_at_and_around_exact_multiples(n: int) -> None:
    engine = block_engine(**DENSE, chunk_tokens=64)
    _, b = run(engine, text(n), text(n))
    assert b.restore == (n - 1) // 64 * 64
    assert worst(b) == 0


def test_a_hit_that_resumes_inside_a_block_cannot_put_512_tokens_under_the_key_of_1536() -> None:
    """A chunk that begins at 512 with a state stored inside it once ran through the end of the
    block of 1,536, and the slot's older state got that key. Here the chunk stops at the end of
    its block; and a chunk that does run through it leaves no name there."""
    model = CountingModel()
    sizes = {"state_block": 1536, "attention_block": 1536, "unit": 512, "kernel_grid": 64}
    options: dict[str, Any] = {**sizes, "n_blocks": 30, "chunk_tokens": 4096, "keep_logits": False}
    long = text(3600, 1, 4096)
    engine = block_engine(model, **options)
    run(engine, long[:700])
    assert set(named_states(engine)) == {512}
    b = engine.submit(long, 1)
    engine.run()
    assert b.restore == 512
    ends = [e.end for e in of_type(engine, bl.StatesWritten) if e.request == "B"]
    assert ends[0] == 1536
    layers = 3 * 2  # of three state groups
    assert check_counts(engine, [long]) == layers * len(named_states(engine))


def test_even_a_chunk_that_runs_through_its_block_names_only_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = CountingModel()
    sizes = {"state_block": 384, "attention_block": 384, "unit": 128, "kernel_grid": 64}
    monkeypatch.setattr(
        BlockStateCache,
        "chunk_end",
        lambda self, lease, budget: min(
            self.requests[lease.id].computed + budget, self.requests[lease.id].stops.n_tokens
        ),
    )
    long = text(1500, 1, 4096)
    for retention in (None, 0):
        engine = block_engine(model, **sizes, n_blocks=40, chunk_tokens=448, retention=retention)
        for n in (200, 1500, 900, 1499):
            request = engine.submit(long[:n], 2)
            engine.run()
            check_counts(engine, [long, (*long[:n], *request.generated)])
        assert_nothing_leaks(engine)


def test_a_name_of_another_length_than_its_state_cannot_be_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault itself: name the older state by the block's end. It stops at once."""
    real = block_steps._name_state

    def careless(cache: Any, request: Any, block: Any, at: int) -> bool:
        size = cache.config.state_block
        return bool(real(cache, request, block, -(-at // size) * size))

    monkeypatch.setattr(block_steps, "_name_state", careless)
    engine = block_engine(
        state_block=256, attention_block=256, unit=64, retention=None, chunk_tokens=128
    )
    engine.submit(text(600), 1)
    with pytest.raises(InvariantError, match="key length equals state length"):
        engine.run()


def test_a_state_that_differs_from_its_name_is_found_by_the_reference_check() -> None:
    engine = block_engine(CountingModel(), **DENSE, n_blocks=60)
    run(engine, text(200, 0, 4096))
    assert check_counts(engine, [text(200, 0, 4096)])
    block = named_states(engine)[192]
    engine.memory.states[1][0].recurrent[block, 0, 0, 0] = 191
    with pytest.raises(InvariantError, match="a state of 191 tokens under a key of 192"):
        check_counts(engine, [text(200, 0, 4096)])


def test_states_gone_but_kv_known_is_a_cold_start() -> None:
    """Attention hits, the state misses: restore 0, no initial state."""
    engine = block_engine(**DENSE)
    run(engine, text(300))
    cached = sum(len(engine.cache.pool.tables[g]) for g in engine.cache.state_groups)
    engine.cache.evict(Bytes(state=cached * engine.plan.layout.stride))
    engine._scrub()
    b = engine.submit(text(300), 1)
    engine.run()
    assert (b.restore, b.token_match) == (0, 256)
    assert worst(b) == 0


def test_accepted_drafts_do_not_reach_into_a_name_beyond_them() -> None:
    """Drafts across a boundary, all wrong: nothing of them is cached, the state is as before."""
    prompt = text(62)
    right = SMALL.greedy(prompt, 6)
    wrong = Scripted(((*prompt, *right),), miss=1)
    engine = block_engine(**DENSE, draft_tokens=3, drafter=wrong)
    plain = block_engine(**DENSE)
    a, b = engine.submit(prompt, 6), plain.submit(prompt, 6)
    engine.run()
    plain.run()
    assert a.generated == b.generated == right
    assert set(named_states(engine)) == set(named_states(plain)) == {64}
    for e in (engine, plain):
        again = e.submit((*prompt, *right), 1)
        e.run()
        assert again.restore == (0 if e is engine else 64)  # one unit is given up with drafts


# -- B: ownership and copies ------------------------------------------------------------------


def test_the_order_of_rows_after_the_copies_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kdalab.engine.block import decode, prefill

    sizes: dict[str, Any] = {"state_block": 256, "attention_block": 256, "unit": 64}
    real, real_rows = prefill.run_row, decode.run_rows
    queue: list[Any] = []
    outs = []
    for backwards in (False, True):
        if backwards:
            monkeypatch.setattr(prefill, "run_row", lambda *args: queue.append(args))

            def flushed(engine: Any, meta: Any, rows: Any) -> None:
                real_rows(engine, meta, rows)
                while queue:
                    real(*queue.pop())

            monkeypatch.setattr(decode, "run_rows", flushed)
        engine = block_engine(**sizes)
        run(engine, text(200))
        requests = [engine.submit(text(200) + text(70, s), 4) for s in range(3)]
        engine.run()
        assert {r.restore for r in requests} == {192}
        outs.append([r.generated for r in requests])
        assert all(worst(r) == 0 for r in requests)
    assert outs[0] == outs[1]


def test_a_cached_state_stays_as_it_is_while_its_owner_decodes_across_boundaries() -> None:
    engine = block_engine(**DENSE)
    engine.submit(text(60), 140)
    before: dict[int, torch.Tensor] = {}
    while not engine.is_idle:
        engine.step()
        for boundary, block in named_states(engine).items():
            state = engine.memory.read_state([block])[0]
            assert torch.equal(before.setdefault(boundary, state), state)
    assert set(before) == {64, 128, 192}


def test_only_real_bytes_are_copied_and_padding_is_never_written() -> None:
    engine = block_engine(state_block=256, attention_block=256, unit=64)  # check() looks at it
    run(engine, text(200), text(200) + text(30, 1))
    padding = engine.plan.layout.page_padding(engine.cache.state_groups[0])
    assert padding > 0
    sizes = {c.kind: c.bytes for c in of_type(engine, bl.CopyQueued)}
    assert sizes["private"] == engine.cache.groups[1].spec.page_bytes < engine.plan.layout.stride
    assert sizes["tail"] == 192 * engine.cache.groups[0].spec.token_bytes


def test_a_stale_block_shows_as_poison() -> None:
    engine = block_engine(**DENSE)
    run(engine, text(100))
    empty = [b.id for b in engine.cache.pool.free_blocks() if not b.keys]
    engine.memory.states[1][0].recurrent[empty[0]] = 0
    with pytest.raises(InvariantError, match="free memory stays poisoned"):
        engine.check()


# -- C and D: eviction, hit lengths -----------------------------------------------------------


def test_what_was_just_found_is_not_evicted_for_its_own_request() -> None:
    """Every free block is cached; the hit is held before anything is allocated."""
    engine = block_engine(n_blocks=12, **DENSE)
    run(engine, text(200), text(130, 1), text(130, 2))
    for seed in (2, 1, 0):
        request = engine.submit(text(130, seed), 1)
        assert isinstance(request, BlockRequest)
        found = engine.cache.lookup(engine.chain_of(request))
        engine.run()
        assert request.restore == found.restore
        assert worst(request) == 0
    assert of_type(engine, bl.NamesEvicted)


def test_dropping_a_unit_with_retention_0_still_hits() -> None:
    """95 tokens with units of 16 elsewhere; here 300 with units of 64: 192, not 0."""
    engine = block_engine(eagle=True, retention=0, state_block=256, attention_block=256, unit=64)
    _, b = run(engine, text(300), text(300))
    assert b.restore == 192


def test_a_prompt_shorter_than_a_block_hits_in_fine_units_and_never_without() -> None:
    for unit, restore in ((64, 192), (None, 0)):
        engine = block_engine(state_block=512, attention_block=512, unit=unit)
        _, b = run(engine, text(200), text(200))
        assert b.restore == restore


def test_dense_states_take_more_blocks_than_reachable_ones() -> None:
    taken = []
    for retention in (None, 256, 0):
        engine = block_engine(
            n_blocks=200, state_block=64, attention_block=64, retention=retention, chunk_tokens=64
        )
        run(engine, *(text(500, s) for s in range(4)))
        taken.append(len(engine.cache.pool.tables[engine.cache.state_groups[0]]))
    assert taken == [4 * 7, 4 * 2, 4]


def test_asked_to_evict_while_all_is_held_it_gives_nothing() -> None:
    engine: BlockEngine = block_engine(**DENSE, n_blocks=9)
    engine.submit(text(200), 30)
    engine.step()
    engine.step()
    gone = engine.cache.evict(Bytes(kv=1 << 40))
    assert not gone.pages
    engine.run()
    assert_nothing_leaks(engine)
