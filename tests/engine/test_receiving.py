"""A request whose prefill runs elsewhere: allocated first, whole before it decodes, no leaks."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from kdalab.cache import parse_placement
from kdalab.engine import Engine, EngineConfig, fold
from kdalab.engine.receiving import expect, fall_back, land_latent, land_state
from kdalab.errors import KdalabError, OutOfSlotsError
from kdalab.model import tiny_model

MODEL = tiny_model()
PROMPT = [(5 * i) % 251 for i in range(200)]


def engine(**changes: Any) -> Engine:
    sizes: dict[str, Any] = {"n_pages": 64, "n_active": 3, "n_checkpoints": 8}
    return Engine(MODEL, EngineConfig(check_every_step=True, **{**sizes, **changes}))


def straight(tokens: list[int], n: int) -> list[int]:
    e = engine()
    request = e.submit(tokens, n)
    e.run()
    return request.generated


def whole(tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """(latent, recurrent, conv, first token) by the network alone."""
    recurrent, conv, latent = MODEL.states(tokens)
    return latent, recurrent, conv, MODEL.greedy(tokens, 1)[0]


def sound(e: Engine) -> None:
    e.check()
    assert fold(e.events, e.empty_view()) == e.view()


def free(e: Engine) -> tuple[int, int]:
    return e.latents.slots.n_free, e.active.slots.n_free


@pytest.mark.parametrize("strategy", ["copy", "extra_buffer", "extra_buffer_lazy"])
@pytest.mark.parametrize("memory", ["split", "unified"])
def test_pieces_in_any_order_give_the_tokens_of_one_engine(strategy: str, memory: str) -> None:
    e = engine(strategy=strategy, memory=memory, n_active=6)
    latent, recurrent, conv, first = whole(PROMPT)
    r = expect(e, PROMPT, 7, name="R", source="P")
    pieces = [(at, min(at + 50, 200)) for at in range(0, 200, 50)]
    random.Random(3).shuffle(pieces)
    for a, b in pieces:
        assert land_latent(e, r, a, latent[:, a:b]) == b - a
        sound(e)
        e.step()  # nothing is decoded before the state is here
        assert not r.generated
    land_state(e, r, recurrent, conv, first)
    sound(e)
    e.run()
    assert r.generated == straight(PROMPT, 7)
    sound(e)


def test_a_known_prefix_needs_no_latent_kv_but_the_state_all_the_same() -> None:
    e = engine()
    e.submit(PROMPT[:128], 1)
    e.run()
    latent, recurrent, conv, first = whole(PROMPT)
    r = expect(e, PROMPT, 4)
    assert r.landing is not None
    assert (r.landing.held, r.landing.missing) == (128, 72)
    sound(e)
    land_latent(e, r, 128, latent[:, 128:])
    land_state(e, r, recurrent, conv, first)
    e.run()
    assert r.generated == straight(PROMPT, 4)
    sound(e)


def test_a_prefix_is_known_where_its_state_has_been_evicted() -> None:
    e = engine(n_checkpoints=2, placement=parse_placement("every:64"))
    e.submit(PROMPT[:128], 1)
    e.run()
    e.submit([7] * 64, 1)  # takes a checkpoint slot: the path keeps one state of two
    e.run()
    r = expect(e, PROMPT, 4)
    assert r.landing is not None
    assert r.landing.held == 128
    sound(e)
    e.abort(r.name)
    sound(e)


@pytest.mark.parametrize("landed", [0, 64, 200])
def test_nothing_is_decoded_from_part_of_a_state(landed: int) -> None:
    e = engine()
    latent, recurrent, conv, first = whole(PROMPT)
    r = expect(e, PROMPT, 4)
    if landed:
        land_latent(e, r, 0, latent[:, :landed])
    if landed < 200:
        with pytest.raises(KdalabError, match=f"of {200 - landed} tokens is not"):
            land_state(e, r, recurrent, conv, first)
    bad = recurrent.clone()
    bad[0, 0, 0, 0] = float("nan")
    if landed == 200:
        with pytest.raises(KdalabError, match="not finite"):
            land_state(e, r, bad, conv, first)
        with pytest.raises(KdalabError, match="outside the vocabulary"):
            land_state(e, r, recurrent, conv, 10**6)
    for _ in range(3):
        e.step()
    assert not r.generated
    sound(e)
    before = free(e)
    e.abort(r.name)
    assert free(e) > before
    assert free(e) == free(engine())
    with pytest.raises(KdalabError, match="expects no state"):
        land_latent(e, r, 0, latent[:, :64])
    sound(e)


def test_what_arrives_twice_must_be_the_same() -> None:
    e = engine()
    latent, *_ = whole(PROMPT)
    r = expect(e, PROMPT, 4)
    land_latent(e, r, 0, latent[:, :100])
    assert land_latent(e, r, 50, latent[:, 50:120]) == 20
    other = latent.clone()
    other[0, 60, 0] += 1
    with pytest.raises(KdalabError, match="of another run"):
        land_latent(e, r, 55, other[:, 55:70])
    for start, piece in ((150, latent[:, :60]), (-1, latent[:, :5]), (0, latent[:1, :5])):
        with pytest.raises(KdalabError):
            land_latent(e, r, start, piece)
    with pytest.raises(KdalabError, match="not finite"):
        land_latent(e, r, 120, latent[:, 120:130] * float("nan"))
    assert r.landing is not None
    assert r.landing.front == 120
    sound(e)


def test_a_request_falls_back_to_a_prefill_here() -> None:
    e = engine()
    latent, *_ = whole(PROMPT)
    r = expect(e, PROMPT, 5)
    land_latent(e, r, 0, latent[:, :130])
    fall_back(e, r, "the prefill instance is gone")
    sound(e)
    e.run()
    assert r.generated == straight(PROMPT, 5)
    with pytest.raises(KdalabError, match="expects no state"):
        fall_back(e, r, "")
    sound(e)


def test_without_room_nothing_is_taken() -> None:
    e = engine(n_pages=16)
    r = expect(e, PROMPT, 4)
    sound(e)
    with pytest.raises(OutOfSlotsError):
        expect(e, PROMPT[::-1], 4)
    sound(e)
    e.abort(r.name)
    assert free(e) == (16, 3)
    with pytest.raises(KdalabError, match="at least one token"):
        expect(e, PROMPT, 0)


def test_one_token_is_all_that_was_asked_for() -> None:
    e = engine()
    latent, recurrent, conv, first = whole(PROMPT[:128])
    r = expect(e, PROMPT[:128], 1)
    land_latent(e, r, 0, latent)
    land_state(e, r, recurrent, conv, first)
    assert (r.generated, r.finish_reason) == ([first], "length")
    assert e.is_idle
    # The prompt ends on the grid, so its state stays for others.
    assert e.cache.lookup(r.key).token_match == 128
    sound(e)
