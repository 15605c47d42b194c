"""Wrong arguments are named and nothing that is passed in is ever modified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_cases import assert_same_bits, prompt, states_after

from kdalab.errors import KdalabError
from kdalab.model import HybridModel, tiny_config, tiny_model
from kdalab.model.tiny import tiny_weights


def cell(model: HybridModel, **changes: Any) -> object:
    recurrent, conv, latent = model.zero_state()
    good: dict[str, Any] = {
        "tokens": prompt(3),
        "start": 0,
        "recurrent": recurrent,
        "conv": conv,
        "latent": latent,
    }
    return model.prefill_cell(**(good | changes))


def step(model: HybridModel, b: int = 2, **changes: Any) -> object:
    recurrent, conv, latent = model.zero_state()
    good: dict[str, Any] = {
        "tokens": prompt(b),
        "positions": [0] * b,
        "recurrent": torch.stack([recurrent] * b),
        "conv": torch.stack([conv] * b),
        "latents": [latent] * b,
    }
    return model.decode(**(good | changes))


@pytest.mark.parametrize("call", [cell, step])
@pytest.mark.parametrize("bad", [-1, 320, 10**9, -(10**12)])
def test_an_id_outside_the_vocabulary_is_named(
    tiny: HybridModel, call: Callable[..., object], bad: int
) -> None:
    with pytest.raises(KdalabError, match=rf"token id {bad} is outside the vocabulary 0\.\.319"):
        call(tiny, tokens=torch.tensor([5, bad]))
    for run in (lambda: tiny.logits([5, bad]), lambda: tiny.greedy([5, bad], 1)):
        with pytest.raises(KdalabError, match=f"token id {bad}"):
            run()


@pytest.mark.parametrize("start", [1, 63, 65, -1])
def test_a_cell_off_the_grid_is_refused(tiny: HybridModel, start: int) -> None:
    with pytest.raises(KdalabError, match=f"multiple of 64 tokens, not at {start}"):
        cell(tiny, start=start)


def test_a_cell_before_the_first_token_is_refused(tiny: HybridModel) -> None:
    with pytest.raises(KdalabError, match="-64"):
        cell(tiny, start=-64)


def test_a_cell_of_65_tokens_is_refused(tiny: HybridModel) -> None:
    with pytest.raises(KdalabError, match="1 to 64 tokens, not 65"):
        cell(tiny, tokens=prompt(65))


EMPTY = torch.zeros(0, dtype=torch.long)


@pytest.mark.parametrize("tokens", [EMPTY, torch.zeros(1, 3, dtype=torch.long), torch.ones(3)])
def test_tokens_must_be_one_axis_of_ids(tiny: HybridModel, tokens: torch.Tensor) -> None:
    for run in (
        lambda: cell(tiny, tokens=tokens),
        lambda: step(tiny, tokens=tokens),
        lambda: tiny.logits(tokens),
        lambda: tiny.greedy(tokens, 1),
    ):
        with pytest.raises(KdalabError, match="tokens must be at least one id"):
            run()


def test_no_tokens_and_broken_tokens_are_refused(tiny: HybridModel) -> None:
    for run in (lambda: tiny.logits([]), lambda: tiny.greedy([], 1)):
        with pytest.raises(KdalabError, match="at least one id"):
            run()
    with pytest.raises(KdalabError, match="whole numbers"):
        tiny.logits([1.5])  # type: ignore[list-item]
    with pytest.raises(KdalabError, match="cannot generate -1 tokens"):
        tiny.greedy([1], -1)


@pytest.mark.parametrize("pieces", [[], [0, 5], [-1, 6], [4], [6], [5, 1], [2, 2]])
def test_pieces_must_be_positive_and_add_up(tiny: HybridModel, pieces: list[int]) -> None:
    with pytest.raises(KdalabError, match="add up to 5 tokens"):
        tiny.logits(prompt(5), pieces)


def test_a_state_of_another_shape_or_dtype_is_named(tiny: HybridModel) -> None:
    recurrent, conv, latent = tiny.zero_state()
    late = latent.new_zeros(2, 64, 80)
    for name, bad in (
        ("recurrent", recurrent[:-1]),
        ("recurrent", recurrent.double()),
        ("conv", conv.transpose(1, 2)),
        ("conv", conv[:, :-1]),
        ("latent", late),  # of another boundary than start
        ("latent", latent[:1]),
    ):
        with pytest.raises(KdalabError, match=f"{name} .*{list(bad.shape)}".replace("[", r"\[")):
            cell(tiny, **{name: bad})
    with pytest.raises(KdalabError, match="latent"):
        cell(tiny, start=128, latent=late)
    with pytest.raises(KdalabError, match="recurrent"):
        step(tiny, recurrent=recurrent[None])
    with pytest.raises(KdalabError, match="conv"):
        step(tiny, conv=conv[None])
    with pytest.raises(KdalabError, match="latents"):
        step(tiny, positions=[0, 1])
    with pytest.raises(KdalabError, match="2 tokens, 1 positions, 2 latents"):
        step(tiny, positions=[0])


def test_more_requests_than_rows_are_refused() -> None:
    with pytest.raises(KdalabError, match="1 to 3 requests, not 4"):
        step(tiny_model(decode_rows=3), 4)
    with pytest.raises(KdalabError, match="decode_rows must be at least 1"):
        tiny_model(decode_rows=0)


@pytest.mark.parametrize("n", [1, 63, 64])
def test_prefill_modifies_nothing_that_is_passed_in(tiny: HybridModel, n: int) -> None:
    tokens, states = prompt(n), states_after(tiny, prompt(64, seed=1))
    kept = [t.clone() for t in (tokens, *states)]
    weights = [tiny.embed.clone(), tiny.head.clone()]
    tiny.prefill_cell(tokens, 64, *states, logits="all")
    assert_same_bits((tokens, *states), kept)
    assert_same_bits([tiny.embed, tiny.head], weights)


@pytest.mark.parametrize("b", [1, 3, 8])
def test_decode_modifies_nothing_that_is_passed_in(tiny: HybridModel, b: int) -> None:
    states = [states_after(tiny, prompt(5 + i, seed=i)) for i in range(b)]
    tokens, latents = prompt(b), [s.latent for s in states]
    recurrent = torch.stack([s.recurrent for s in states])
    conv = torch.stack([s.conv for s in states])
    inputs = [tokens, recurrent, conv, *latents]
    kept = [t.clone() for t in inputs]
    out = tiny.decode(tokens, [c.shape[1] for c in latents], recurrent, conv, latents)
    assert_same_bits(inputs, kept)
    assert not torch.equal(out.recurrent, recurrent)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    a, again, other = tiny_weights(4), tiny_weights(4), tiny_weights(5)
    assert a.keys() == other.keys()
    for name in a:
        assert torch.equal(a[name], again[name]), name
        assert not torch.equal(a[name], other[name]), name
    tokens = prompt(9)
    assert torch.equal(tiny_model(4).logits(tokens), tiny_model(4).logits(tokens))
    assert not torch.equal(tiny_model(4).logits(tokens), tiny_model(5).logits(tokens))


def test_the_tiny_model_is_hybrid_three_to_one() -> None:
    assert tiny_config().kda_layers == (0, 1, 2, 4, 5, 6)
    assert tiny_config().full_attn_layers == (3, 7)
