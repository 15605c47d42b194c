"""The engine on blocks: bit for bit the radix engine's numbers, whatever layout, mode or hit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from block_engine_cases import (
    SMALL,
    assert_folds,
    assert_nothing_leaks,
    block_engine,
    cold,
    greedy,
    named_states,
    of_type,
    run,
    text,
    worst,
)
from engine_cases import TINY
from test_sick_requests import SICK, WELL, poisoned_model

from kdalab.engine import Engine, EngineConfig, Phase
from kdalab.engine import events as ev
from kdalab.engine.block import BlockEngine, BlockEngineConfig
from kdalab.engine.block import events as bl
from kdalab.engine.drafters import Scripted
from kdalab.errors import KdalabError
from kdalab.model import tiny_model

FINE: dict[str, Any] = {"state_block": 256, "attention_block": 256, "unit": 64}
BASE = text(330)
FORKS = (BASE, BASE[:200] + text(90, 1), BASE, BASE[:128] + text(40, 2), BASE[:321])


@pytest.mark.parametrize("mode", ["align", "all", "none"])
@pytest.mark.parametrize("kernel_grid", [0, 64])
def test_padded_packed_and_radix_give_the_same_bits(mode: str, kernel_grid: int) -> None:
    fine = {**FINE, "kernel_grid": kernel_grid} if mode == "align" else {"state_block": 128}
    if mode != "align" and kernel_grid:
        pytest.skip("a kernel's grid is of mode align")
    radix = Engine(SMALL, EngineConfig(keep_logits=True, chunk_tokens=128))
    engines = [
        radix,
        *(
            block_engine(layout=layout, mode=mode, chunk_tokens=128, retention=None, **fine)
            for layout in ("padded", "packed")
        ),
    ]
    for tokens in FORKS:
        found = []
        for engine in engines:
            request = engine.submit(tokens, 5)
            while request.computed < request.n_tokens:
                engine.step()
            state = engine.state_of(request)
            engine.run()
            found.append((request.generated, request.logits, state))
            assert worst(request) == 0
        for tokens_made, logits, state in found[1:]:
            assert tokens_made == found[0][0]
            shared = min(len(logits), len(found[0][1]))
            assert all(
                torch.equal(a, b)
                for a, b in zip(logits[-shared:], found[0][1][-shared:], strict=True)
            )
            assert torch.equal(state[0], found[0][2][0])
            assert torch.equal(state[1], found[0][2][1])
    for engine in engines[1:]:
        assert_nothing_leaks(engine)
        restored = sum(r.restore > 0 for r in engine.requests.values())
        assert restored == {"align": 2, "all": 4, "none": 0}[mode]


def test_the_tiny_model_of_the_pages_makes_three_state_groups_and_one_of_attention() -> None:
    engine = block_engine(TINY)
    assert [g.layers for g in engine.cache.groups] == [(3, 7), (0, 4), (1, 5), (2, 6)]
    # A state's page of 20,992 bytes takes 65.6 tokens of 320 bytes: 128 on the grid of 64.
    assert {g.block_tokens for g in engine.cache.groups} == {128}
    assert engine.plan.layout.stride == 2 * 128 * 320
    assert engine.plan.layout.page_padding(1) == 2 * (128 * 320 - 20_992)
    tokens = [(5 * i) % 251 for i in range(300)]
    first, second = engine.submit(tokens, 3), None
    engine.run()
    second = engine.submit(tokens[:290], 3)
    engine.run()
    assert second.restore == 256
    assert worst(second, TINY) == 0
    assert first.generated == TINY.greedy(tokens, 3)


def test_a_group_with_fewer_layers_leaves_places_empty() -> None:
    from dataclasses import replace

    from kdalab.model.tiny import tiny_config, tiny_weights
    from kdalab.model.weights import build

    config = replace(tiny_config(), num_hidden_layers=7, full_attn_layers=(2, 5))
    model = build(config, tiny_weights(0, config))
    for layout in ("padded", "packed"):
        engine = block_engine(model, layout=layout, retention=None, chunk_tokens=64)
        assert [len(g.layers) for g in engine.cache.groups] == [2, 2, 2, 1]
        lost = [engine.plan.layout.place_padding(g) for g in range(4)]
        assert lost[3] > lost[1]
        tokens = [(5 * i) % 251 for i in range(200)]
        for n in (200, 190):
            request = engine.submit(tokens[:n], 2)
            engine.run()
            assert request.generated == model.greedy(tokens[:n], 2)
        assert request.restore == 128


# -- hits inside a block ---------------------------------------------------------------------


def test_the_owner_keeps_its_block_and_the_entry_moves() -> None:
    engine = block_engine(**FINE)
    engine.submit(BASE[:200], 4)
    engine.run()
    (copy,) = [c for c in of_type(engine, bl.CopyQueued) if c.kind == "entry"]
    # The owner's last chunk, [192, 200), goes on in the block that was cached at 192.
    assert copy.source == a_block_of(engine, 200, "A")
    assert named_states(engine) == {192: copy.target}
    assert_nothing_leaks(engine)


def a_block_of(engine: BlockEngine, boundary: int, name: str) -> int:
    writes = [w for e in of_type(engine, bl.StatesWritten) if e.request == name for w in e.writes]
    return next(block for _, at, block in writes if at == boundary)


def test_another_request_gets_private_copies_of_the_state_and_of_the_partial_kv_block() -> None:
    engine = block_engine(**FINE)
    _, b = run(engine, BASE[:200], BASE[:200] + text(50, 5))
    assert b.restore == 192
    kinds = [(c.kind, c.tokens) for c in of_type(engine, bl.CopyQueued) if c.request == "B"]
    assert kinds == [("tail", 192), ("private", 0)]
    assert worst(b) == 0
    assert 192 in named_states(engine), "the entry stays as it was"
    again = engine.submit(BASE[:200] + text(50, 6), 1)
    engine.run()
    assert again.restore == 192
    assert worst(again) == 0


def test_a_state_stored_inside_the_chunk_saves_a_forward_and_has_the_same_bits() -> None:
    split = block_engine(**FINE)
    inside = block_engine(**FINE, kernel_grid=64)
    forwards, states = [], []
    for engine in (split, inside):
        run(engine, BASE[:200], new=1)
        forwards.append(len(of_type(engine, bl.Scheduled)))
        blocks = [named_states(engine, g)[192] for g in engine.cache.state_groups]
        states.append(engine.memory.read_state(blocks))
    assert forwards == [2, 1]
    for a, b in zip(*states, strict=True):
        assert torch.equal(a, b)
    recurrent, conv, _ = SMALL.states(BASE[:192])
    assert torch.equal(states[1][0], recurrent)
    assert torch.equal(states[1][1], conv)
    meta = inside.batch
    assert meta is not None


def test_a_prompt_whose_block_is_being_computed_waits_one_step() -> None:
    engine = block_engine(**FINE, retention=None)
    a, b = engine.submit(BASE[:256], 3), engine.submit(BASE[:256] + text(20, 4), 3)
    engine.step()
    assert a.computed == 192
    assert b.phase is Phase.WAITING
    assert [d.request for d in of_type(engine, bl.Deferred)] == ["B"]
    engine.run()
    assert b.restore >= 192
    assert worst(b) == 0
    assert_nothing_leaks(engine)


# -- what is kept ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention", "kept"),
    [(None, {128, 256, 384, 448}), (0, {448}), (256, {256, 448})],
)
def test_retention_decides_which_states_stay(retention: int | None, kept: set[int]) -> None:
    engine = block_engine(
        state_block=128, attention_block=128, unit=64, retention=retention, chunk_tokens=128
    )
    run(engine, text(500))
    assert set(named_states(engine)) == kept


def test_with_retention_0_the_second_prompt_leaves_a_state_at_the_junction() -> None:
    engine = block_engine(state_block=64, attention_block=64)
    first, second, third = (text(200) + text(100, s) for s in (1, 2, 3))
    _, b, c = run(engine, first, second, third)
    assert (b.restore, b.token_match) == (0, 192)
    assert c.restore == 192
    assert worst(c) == 0


def test_decoding_caches_full_blocks_and_the_states_at_their_ends() -> None:
    engine = block_engine(state_block=64, attention_block=64, retention=None)
    a = engine.submit(BASE[:60], 80)
    engine.run()
    assert set(named_states(engine)) == {64, 128}
    b = engine.submit((*a.known, 1), 1)
    engine.run()
    assert b.restore == 128  # prompt and output are one text
    # The state at 128 came from decode steps; the same history from nothing has the same bits.
    alone = block_engine(reuse=False)
    again = alone.submit(BASE[:60], 80)
    alone.run()
    assert again.generated == a.generated
    assert b.generated[:1] != []


@pytest.mark.parametrize("cached", [True, False])
def test_a_conversation_is_bit_for_bit_cold_where_decoding_is_not_cached(cached: bool) -> None:
    """First in, first named: KV that decoding left would stand beside a later prefill's state."""
    engine = block_engine(state_block=64, attention_block=64, cache_decoded=cached, chunk_tokens=64)
    a = engine.submit(BASE[:60], 80)
    engine.run()
    talk = (*a.known, 1, 2, 3)
    b, c = run(engine, talk, talk)
    assert b.token_match == (128 if cached else 0)
    assert c.restore == 128
    assert worst(c) == 0 if not cached else worst(c) < 1e-3


def test_a_preempted_request_does_not_restore_what_another_prefilled_over_its_output() -> None:
    right = greedy(BASE[:100], 40)
    engine = block_engine(state_block=64, attention_block=64, cache_decoded=False)
    request = engine.submit(BASE[:100], 40)
    while len(request.generated) < 36:
        engine.step()
    run(engine, (*BASE[:100], *right[:35]), new=0)
    other = engine.submit(BASE[:100], 40)
    while len(other.generated) < 36:
        engine.step()
    engine.preempt(engine.request(other.name), "on purpose")
    engine.run()
    assert other.restore == 64
    assert other.generated == right
    assert_nothing_leaks(engine)


@pytest.mark.parametrize("n", [255, 256, 257])
def test_a_hit_leaves_a_token_to_compute(n: int) -> None:
    engine = block_engine(state_block=128, attention_block=128, retention=None)
    _, b = run(engine, BASE[:n], BASE[:n])
    assert b.restore == (n - 1) // 128 * 128
    assert worst(b) == 0


def test_requests_of_another_salt_share_nothing() -> None:
    engine = block_engine()
    engine.submit(BASE, 1, salt="one")
    engine.run()
    other, same = engine.submit(BASE, 1, salt="two"), None
    engine.run()
    same = engine.submit(BASE, 1, salt="one")
    engine.run()
    assert (other.restore, same.restore > 0) == (0, True)


def test_without_reuse_nothing_is_found() -> None:
    engine = block_engine(reuse=False)
    assert [r.restore for r in run(engine, BASE, BASE)] == [0, 0]


# -- speculation -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "miss"), [("padded", 0), ("padded", 1), ("packed", 2), ("packed", 5)]
)
def test_verified_drafts_leave_the_states_of_one_token_at_a_time(layout: str, miss: int) -> None:
    sizes: dict[str, Any] = {"retention": None, "layout": layout}
    sizes["attention_block"] = sizes["state_block"] = 128 if layout == "padded" else 64
    sizes["n_blocks"] = 24
    prompt = text(100, 3, 250)
    plain = block_engine(TINY, **sizes)
    a = plain.submit(prompt, 32)
    plain.run()
    script = Scripted(((*prompt, *a.generated),), miss=miss)
    fast = block_engine(TINY, **sizes, draft_tokens=3, drafter=script)
    b = fast.submit(prompt, 32)
    fast.run()
    assert b.generated == a.generated == TINY.greedy(prompt, 32)
    assert all(torch.equal(x, y) for x, y in zip(a.logits, b.logits, strict=True))
    accepted = sum(e.accepted for e in of_type(fast, ev.Verified))
    assert (accepted == 0) == (miss == 1)
    # Only a step that stops at just 64 leaves a state there; if one did, it has the same bits.
    for boundary in set(named_states(plain)) & set(named_states(fast)):
        pair = [
            e.memory.read_state([named_states(e, g)[boundary] for g in e.cache.state_groups])
            for e in (plain, fast)
        ]
        assert all(torch.equal(x, y) for x, y in zip(*pair, strict=True))
    assert_nothing_leaks(fast)


def test_a_draft_model_that_reads_the_match_costs_its_last_unit_once() -> None:
    sizes = {"state_block": 64, "attention_block": 64, "retention": None}
    for eagle, restore in ((False, 256), (True, 192)):
        engine = block_engine(**sizes, eagle=eagle)
        _, b = run(engine, BASE[:300], BASE[:300])
        assert (b.restore, b.token_match) == (restore, 256)
        assert worst(b) == 0


# -- too few blocks, sick numbers, aborted ---------------------------------------------------


def test_a_request_is_preempted_when_blocks_run_out_and_goes_on_from_the_cache() -> None:
    engine = block_engine(n_blocks=12, state_block=64, attention_block=64, retention=None)
    prompts = [text(150, s) for s in range(3)]
    requests = [engine.submit(p, 100) for p in prompts]
    engine.run()
    assert of_type(engine, bl.Preempted)
    assert any(r.restore > 0 and r.preemptions for r in requests)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.generated == greedy(prompt, 100)
    assert_nothing_leaks(engine)


@pytest.mark.parametrize("drafts", [0, 3])
def test_nan_in_decode_ends_its_own_request_and_no_other(drafts: int) -> None:
    engine = block_engine(poisoned_model(), draft_tokens=drafts)
    sick, well = engine.submit(SICK, 6), engine.submit(WELL, 6)
    engine.run()
    assert sick.finish_reason.startswith("failed: ")
    assert well.generated == tiny_model().greedy(WELL, 6)
    assert_nothing_leaks(engine)


@pytest.mark.parametrize("at", [0, 1])
def test_logits_that_are_no_numbers_end_their_request_and_name_nothing_of_the_step(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """At the last token before a block's end; alone (0), or after a draft that was right (1)."""
    from kdalab.engine.block import decode as rows

    prompt = BASE[:61]
    right = greedy(prompt, 6)
    plain, verify = SMALL.decode, rows.verify_tokens

    def sick_decode(tokens: Any, positions: Any, *rest: Any) -> Any:
        out = plain(tokens, positions, *rest)
        out.logits[[p == 63 for p in positions]] = torch.nan
        return out

    def sick_verify(model: Any, tokens: Any, positions: Any, *rest: Any) -> Any:
        outs = verify(model, tokens, positions, *rest)
        for start, out in zip(positions, outs, strict=True):
            out.logits[63 - start :] = torch.nan
        return outs

    monkeypatch.setattr(SMALL, "decode", sick_decode)
    monkeypatch.setattr(rows, "verify_tokens", sick_verify)
    script = Scripted(((*prompt, *right),))
    engine = block_engine(
        state_block=64, attention_block=64, retention=None, draft_tokens=3 * at, drafter=script
    )
    sick = engine.submit(prompt, 6)
    engine.run()
    assert sick.finish_reason == "failed: its logits are not finite"
    assert sick.generated == right[:3]
    assert not named_states(engine)
    assert_nothing_leaks(engine)


def test_names_of_a_prefill_that_fails_are_taken_back() -> None:
    """They were given when the chunk was scheduled; nobody must ever read what was not written."""
    engine = block_engine(poisoned_model(), state_block=128, attention_block=128, retention=None)
    first = tiny_model().greedy(SICK, 1)[0]
    tokens = [1, 2, 3] * 43 + [first] + [1, 2, 3] * 50
    engine.submit(tokens[:129], 1)
    engine.run()
    assert set(named_states(engine)) == {128}
    sick = engine.submit(tokens, 1)
    engine.step()
    assert sick.finish_reason.startswith("failed: ")
    assert of_type(engine, bl.NamesWithdrawn)
    assert set(named_states(engine)) == {128}, "what was cached before stays"
    assert engine.cache.lookup(engine.chain_of(sick)).token_match == 128
    assert_nothing_leaks(engine)


@pytest.mark.parametrize("steps", range(6))
def test_an_aborted_request_leaves_only_what_is_cached(steps: int) -> None:
    engine = block_engine(**FINE, chunk_tokens=64, draft_tokens=2)
    a, b = engine.submit(BASE, 8), engine.submit(BASE[:200], 8)
    for _ in range(steps):
        engine.step()
    engine.abort("A")
    engine.abort("A")  # twice is nothing
    assert a.phase in (Phase.FINISHED, Phase.CANCELLED)
    assert_folds(engine)
    engine.run()
    assert b.generated == greedy(BASE[:200], 8)
    assert_nothing_leaks(engine)


def test_a_copy_is_made_before_anything_writes() -> None:
    """Shared blocks stay as they are while their readers go on."""
    engine = block_engine(**FINE)
    run(engine, BASE[:200])
    before = {b: engine.memory.read_state([b])[0] for b in named_states(engine).values()}
    requests = [engine.submit(BASE[:200] + text(100, s), 3) for s in range(4)]
    engine.run()
    assert {r.restore for r in requests} == {192}
    for block, state in before.items():
        assert torch.equal(engine.memory.read_state([block])[0], state)
    assert all(worst(r) == 0 for r in requests)


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": 16}, r"unit = 16.*16 = 0 x 64 \+ 16. Use 64"),
        ({"state_block": 100}, r"state_block = 100.*100 = 1 x 64 \+ 36. Use 128"),
        ({"attention_block": 80}, r"attention_block = 80.*Use 128"),
        ({"mode": "all", "state_block": 96}, r"state_block = 96: in mode all"),
        ({"mode": "some"}, "use one of none, all, align"),
        ({"layout": "loose"}, "use one of padded, packed"),
        ({"kernel_grid": 16}, r"16 = 0 x 64 \+ 16; use 0 or a multiple of 64"),
        ({"kernel_grid": 64, "mode": "all"}, "needs mode align"),
        ({"retention": 100, "state_block": 64}, "100 is not a multiple of the scheduler's block"),
        ({"retention": -1}, "retention interval -1"),
        ({"retention": "marconi"}, "unknown retention 'marconi' for blocks"),
        ({"unit": 192, "state_block": 128}, "does not divide every group's block"),
        ({"chunk_tokens": 63}, "a step must hold one cell"),
        ({"total_bytes": 1000, "n_blocks": None}, "block 0 stands idle"),
        ({"total_bytes": 0}, "total_bytes = 0"),
        ({"n_blocks": 1}, "n_blocks = 1 blocks .* Raise n_blocks to 2"),
        ({"n_blocks": 2**31}, "at most 2,147,483,647"),
        ({"n_blocks": 2**30}, "4.00 TiB; this machine has .* Lower n_blocks"),
        ({"total_bytes": 2**50, "n_blocks": None}, "1,024.00 TiB; .* Lower total_bytes"),
        ({"total_bytes": 2**62 + 1}, "at most 4,611,686,018,427,387,904"),
        ({"attention_block": 2**30, "state_block": 64}, "this machine has .* the block sizes"),
        ({"attention_block": 2**40}, "attention_block = 1099511627776; .* at most 2,147,483,647"),
        ({"draft_tokens": 2**40}, "a whole number of 0 to 2,147,483,647"),
        ({"draft_tokens": -1}, "draft_tokens = -1"),
        ({"poison": 1}, "poison = 1; use True or False"),
        ({"drafter": 3, "draft_tokens": 1}, "it needs propose"),
        ({"backend": "cuda"}, "backend = 'cuda' for extend"),
        ({"backend": []}, "backend = .* for extend"),
        ({"layout": []}, "use one of padded, packed"),
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused_with_the_arithmetic(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(KdalabError, match=said):
        block_engine(**changes)


def test_too_many_blocks_are_refused_before_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdalab.engine.block.plan.machine_bytes", lambda: None)
    monkeypatch.setattr("kdalab.engine.block.core.BlockStateCache", None)
    monkeypatch.setattr("kdalab.engine.block.core.BlockMemory", None)
    with pytest.raises(KdalabError, match=r"2,000,000 blocks .* at most 1,048,576 are allowed"):
        block_engine(n_blocks=2_000_000)


def test_memory_that_cannot_be_had_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("kdalab.engine.block.core.BlockMemory", refuse)
    with pytest.raises(KdalabError, match=r"64 blocks need 256.00 KiB, .* not enough memory"):
        block_engine()


def test_a_padded_attention_page_too_small_for_a_state_is_refused() -> None:
    with pytest.raises(KdalabError, match="at least 66 tokens, or the packed layout"):
        BlockEngine(TINY, BlockEngineConfig(attention_block=64))
    BlockEngine(TINY, BlockEngineConfig(attention_block=64, layout="packed"))


def test_a_prompt_that_can_never_fit_is_refused_and_nothing_is_taken() -> None:
    engine = block_engine(n_blocks=8, state_block=64, attention_block=64)
    with pytest.raises(KdalabError, match=r"can need 9 blocks .* there are 7 .* raise n_blocks"):
        engine.submit(text(300), 20)
    assert not engine.requests
    with pytest.raises(KdalabError, match="outside the vocabulary"):
        engine.submit([64], 1)
    with pytest.raises(KdalabError, match="salt = 3"):
        engine.submit([1], 1, salt=3)  # type: ignore[arg-type]
    with pytest.raises(KdalabError, match="stop_tokens"):
        engine.submit([1], 1, stop_tokens="ab")  # type: ignore[arg-type]
    with pytest.raises(KdalabError, match="give a BlockEngineConfig"):
        BlockEngine(SMALL, EngineConfig())  # type: ignore[arg-type]
    assert not engine.requests
    with pytest.raises(KdalabError, match="request 'A' is waiting, not running"):
        engine.state_of(engine.submit([1], 1))
    assert cold((1,)).shape == (1, 64)


@pytest.mark.parametrize("what", ["state_of", "latents_of", "preempt"])
def test_only_a_running_request_of_this_engine_is_read_or_preempted(what: str) -> None:
    one, other = block_engine(), block_engine()
    foreign, own = one.submit(text(300), 3), other.submit(text(300, 1), 3)
    for engine in (one, other):
        engine.step()
    act = getattr(other, what)
    args = ("too few blocks",) if what == "preempt" else ()
    with pytest.raises(KdalabError, match="request 'A' is not of this engine"):
        act(foreign, *args)
    with pytest.raises(KdalabError, match="None is not a request"):
        act(None, *args)
    waiting = other.submit(text(10), 1)
    with pytest.raises(KdalabError, match="request 'B' is waiting, not running"):
        act(waiting, *args)
    assert (list(other.running), list(other.waiting)) == ([own], [waiting])
    for engine in (one, other):
        engine.check()
        engine.run()
    assert_nothing_leaks(other)


@pytest.mark.parametrize(("name", "other", "salt"), [("a / b", "b", " / a"), ("1:xy", "y", "1:x")])
def test_without_reuse_no_salt_and_name_read_together_are_anothers(
    name: str, other: str, salt: str
) -> None:
    engine = block_engine(reuse=False)
    engine.submit(BASE, 1, name=name)
    engine.run()
    again = engine.submit(BASE, 1, name=other, salt=salt)
    engine.run()
    assert again.restore == 0


@pytest.mark.parametrize("reuse", [True, False])
def test_a_lone_surrogate_in_a_salt_or_a_name_is_text_like_any_other(reuse: bool) -> None:
    engine = block_engine(reuse=reuse)
    found = []
    for name, salt in (("\ud800", "\ud801"), ("b", "\ud801"), ("\ud802", "\ud803")):
        found.append(engine.submit(BASE, 1, name=name, salt=salt))
        engine.run()
    assert [r.restore for r in found] == [0, 320 if reuse else 0, 0]
