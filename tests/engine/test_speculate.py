"""Verifying drafts changes nothing but the number of steps."""

from __future__ import annotations

import pytest
import torch
from engine_cases import SHARED, TINY, assert_nothing_leaks, engine, of_type, tail

from kdalab.engine import Engine, Request
from kdalab.engine import events as ev
from kdalab.engine.dispatch import Work, choose
from kdalab.engine.drafters import PromptLookup, Scripted
from kdalab.errors import KdalabError
from kdalab.model.verify import rows_of, verify_tokens

PROMPT, NEW = SHARED[:90], 40
OUTPUT = TINY.greedy(PROMPT, NEW)


def drafted(miss: int, n: int = 3, **changes: object) -> tuple[Engine, Request]:
    script = Scripted((tuple(PROMPT + OUTPUT),), miss)
    e = engine(draft_tokens=n, drafter=script, **changes)
    return e, e.submit(PROMPT, NEW)


@pytest.fixture(scope="module")
def plain() -> Request:
    e = engine()
    r = e.submit(PROMPT, NEW)
    e.run()
    return r


@pytest.mark.parametrize("miss", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 3, 7])
def test_tokens_and_logits_are_those_of_plain_decoding(miss: int, n: int, plain: Request) -> None:
    e, r = drafted(miss, n)
    e.run()
    assert r.generated == OUTPUT
    assert torch.equal(torch.stack(r.logits), torch.stack(plain.logits))
    accepted = sum(x.accepted for x in of_type(e, ev.Verified))
    assert (accepted == 0) == (miss == 1)
    assert_nothing_leaks(e)


def test_right_drafts_take_fewer_steps() -> None:
    def steps(miss: int) -> int:
        e, _ = drafted(miss)
        count = 0
        while not e.is_idle:
            e.step()
            count += 1
        return count

    assert steps(0) <= -(-NEW // 4) + 3
    assert steps(1) >= NEW


def test_rejecting_all_drafts_leaves_the_state_bit_for_bit() -> None:
    e, r = drafted(miss=1)
    p = engine()
    q = p.submit(PROMPT, NEW)
    for _ in range(20):
        e.step()
        p.step()
        if r.phase != "decode" or not r.is_running:
            continue
        assert r.computed == q.computed
        for mine, theirs in zip(e.state_of(r), p.state_of(q), strict=True):
            assert torch.equal(mine, theirs)
        held = e.latents.gather(r.pages, r.computed)
        assert torch.equal(held, p.latents.gather(q.pages, q.computed))
        page, offset = divmod(r.computed, e.config.page_tokens)
        row = e.latents.slots.place(r.pages[page])
        assert bool(e.latents.data[row, :, offset].isnan().all())  # no rejected latent is there


def test_drafts_never_pass_the_last_token_that_was_asked_for() -> None:
    for new in (1, 2, 3):
        e, _ = drafted(0, 7)
        r = e.submit(PROMPT, new)
        e.run()
        assert r.generated == OUTPUT[:new]


def test_a_stop_token_inside_an_accepted_run_ends_it_there() -> None:
    e = engine(draft_tokens=7, drafter=Scripted((tuple(PROMPT + OUTPUT),)))
    r = e.submit(PROMPT, NEW, stop_tokens=[OUTPUT[4]])
    e.run()
    assert r.generated == OUTPUT[: OUTPUT.index(OUTPUT[4]) + 1]
    assert r.finish_reason == "stop token"
    assert_nothing_leaks(e)


def test_many_requests_verify_together_and_never_mix() -> None:
    prompts = [tail(seed, 70 + seed) for seed in range(5)]
    outputs = [TINY.greedy(p, 20) for p in prompts]
    script = Scripted(tuple(tuple(p + o) for p, o in zip(prompts, outputs, strict=True)), miss=4)
    e = engine(draft_tokens=3, drafter=script, n_active=5, n_pages=80)
    rs = [e.submit(p, 20) for p in prompts]
    e.run()
    assert [r.generated for r in rs] == outputs


def test_prompt_lookup_continues_what_was_said_before() -> None:
    lookup = PromptLookup(2)
    assert lookup.propose([1, 2, 3, 4, 1, 2], 3) == (3, 4, 1)
    assert lookup.propose([5, 1, 2, 9, 1, 2, 8, 1, 2], 1) == (8,)  # the latest place counts
    assert lookup.propose([1, 2, 3], 3) == ()
    assert lookup.propose([1, 2], 3) == lookup.propose([1, 2, 1, 2], 0) == ()


def test_drafts_outside_the_vocabulary_are_cut() -> None:
    class Wild:
        def propose(self, tokens: object, n: int) -> tuple[int, ...]:
            return (OUTPUT[1], 100_000, -3)[:n]

    e = engine(draft_tokens=3, drafter=Wild())
    r = e.submit(PROMPT, 5)
    e.run()
    assert r.generated == OUTPUT[:5]
    assert all(len(x.drafted) == 1 for x in of_type(e, ev.Verified))


def test_a_verified_token_has_the_bits_of_a_decoded_one_at_every_position() -> None:
    recurrent, conv, latent = TINY.states(PROMPT)
    tokens = OUTPUT[:5]
    (out,) = verify_tokens(TINY, [tokens], [90], recurrent[None], conv[None], [latent])
    for t, token in enumerate(tokens):
        step = TINY.decode(torch.tensor([token]), [90 + t], recurrent[None], conv[None], [latent])
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        assert torch.equal(out.logits[t], step.logits[0])
        assert torch.equal(out.recurrent[t], recurrent)
        assert torch.equal(out.conv[t], conv)
        assert torch.equal(out.latent[t], step.latent[0])


def test_too_many_drafted_tokens_are_refused() -> None:
    recurrent, conv, latent = TINY.states(PROMPT)
    for tokens in ([], [[]], [[1] * (rows_of(TINY) + 1)]):
        with pytest.raises(KdalabError, match="each with one or more"):
            verify_tokens(TINY, tokens, [90], recurrent[None], conv[None], [latent])


# -- the dispatcher --------------------------------------------------------------------------


def test_the_choice_of_op_is_an_event_and_is_said_once() -> None:
    e, _ = drafted(2)
    e.submit(tail(5), 3)
    e.run()
    assert {x.phase: x.op for x in of_type(e, ev.Dispatched)} == {
        "extend": "chunk_kda",
        "decode": "fused_recurrent_kda",
        "verify": "fused_recurrent_kda",
    }
    assert len(of_type(e, ev.Dispatched)) == 3


def test_a_backend_is_taken_at_its_word() -> None:
    assert choose(Work.EXTEND, "reference").backend == "reference"
    assert choose(Work.DECODE).backend == choose(Work.DECODE, "torch").backend == "torch"
    with pytest.raises(KdalabError, match="backend = 'nonsense' for extend"):
        choose(Work.EXTEND, "nonsense")


def test_another_backend_is_really_used() -> None:
    e = engine(backend="reference")
    r = e.submit(PROMPT[:70], 2)
    e.run()
    assert {x.backend for x in of_type(e, ev.Dispatched)} == {"reference"}
    full = TINY.logits(PROMPT[:70])
    TINY.use_backend("auto")
    mine = torch.stack(r.logits[:70])
    assert 0 < float((mine - TINY.logits(PROMPT[:70])).abs().max()) < 1e-3
    assert torch.equal(mine, full)  # the model ran on what the engine had chosen
