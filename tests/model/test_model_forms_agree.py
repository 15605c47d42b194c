"""In fp64 the chunk form, the token recurrence and every cut of a prompt are the same function."""

from __future__ import annotations

import pytest
import torch
from model_cases import cells, odd_config, prompt, relative

from kdalab.model import HybridModel, tiny_config
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build

N = 80


@pytest.fixture(scope="module", params=["tiny", "odd"])
def exact(request: pytest.FixtureRequest) -> HybridModel:
    config = tiny_config() if request.param == "tiny" else odd_config()
    return build(config, tiny_weights(2, config, torch.float64))


def test_every_tensor_of_an_fp64_model_is_fp64(exact: HybridModel) -> None:
    assert exact.state_dtype == torch.float64
    out = cells(exact, prompt(3))[0]
    assert {t.dtype for t in out if t is not None} == {torch.float64}


@pytest.mark.parametrize("pieces", [[1] * N, [2] * (N // 2), [63, 1, 13, 3], [20] * 4])
def test_pieces_of_any_length_equal_one_piece(exact: HybridModel, pieces: list[int]) -> None:
    tokens = prompt(N, seed=1)
    assert relative(exact.logits(tokens, pieces), exact.logits(tokens)) < 1e-10


@pytest.mark.parametrize("n", [1, 2, 3, 33, 63, 64, N])
def test_prefill_equals_decoding_the_prompt_token_by_token(exact: HybridModel, n: int) -> None:
    tokens = prompt(n, seed=1)
    outputs = cells(exact, tokens)
    logits = torch.cat([out.logits for out in outputs if out.logits is not None])
    recurrent, conv, latent = exact.zero_state()
    rows = []
    for i in range(n):
        step = exact.decode(tokens[i : i + 1], [i], recurrent[None], conv[None], [latent])
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        rows.append(step.logits[0])
    assert relative(torch.stack(rows), logits) < 1e-10
    assert relative(recurrent, outputs[-1].recurrent) < 1e-10
    assert relative(conv, outputs[-1].conv) < 1e-10
    assert relative(latent, torch.cat([out.latent for out in outputs], 1)) < 1e-10


def test_the_fp32_model_is_the_fp64_model_to_rounding(tiny: HybridModel) -> None:
    exact = build(tiny_config(), tiny_weights(0, dtype=torch.float64))
    tokens = prompt(N)
    assert relative(tiny.logits(tokens).double(), exact.logits(tokens)) < 1e-4


def test_greedy_follows_the_largest_logit_of_a_full_recomputation(exact: HybridModel) -> None:
    tokens = prompt(61, seed=3).tolist()
    generated = exact.greedy(tokens, 8)  # across the end of a cell
    for i, token in enumerate(generated):
        assert token == int(exact.logits(tokens + generated[:i])[-1].argmax())
    assert exact.greedy(tokens, 0) == []
