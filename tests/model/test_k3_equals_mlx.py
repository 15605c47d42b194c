"""Logits and states of mlx-lm's own Kimi K3, with our weights."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
import torch
from model_cases import half_k3_config, odd_k3_config, prompt, relative
from safetensors.torch import load_file

from kdalab.model import HybridModel, save_pretrained, tiny_k3_config
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build
from kdalab.verify.mlx_peer import MlxPeer, mlx_missing

pytestmark = pytest.mark.skipif(bool(mlx_missing()), reason=mlx_missing() or "installed")

CONFIGS = {"tiny": tiny_k3_config(), "odd": odd_k3_config(), "half on": half_k3_config()}
CUTS = {
    1: [[1]],
    3: [[3], [1, 2], [1, 1, 1]],
    64: [[64], [63, 1], [2, 62]],
    65: [[65], [64, 1], [1, 64]],
    200: [[1, 2, 60, 7, 64, 66], [190, *[1] * 10]],
}


@lru_cache
def weights_of(name: str) -> dict[str, torch.Tensor]:
    """Random weights in which nothing hides: the correction biases change who is chosen, and what
    the norms of MLA read is so small that their epsilon counts."""
    weights = tiny_weights(5, CONFIGS[name])
    for key, w in weights.items():
        if "kv_a_proj" in key or "q_a_proj" in key:
            w.mul_(0.01)
        if key.endswith("e_score_correction_bias"):
            w.mul_(6)
    return weights


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request: pytest.FixtureRequest) -> tuple[HybridModel, MlxPeer]:
    weights, config = weights_of(request.param), CONFIGS[request.param]
    return build(config, weights), MlxPeer(weights, config)


@pytest.mark.parametrize("n", CUTS)
def test_logits_equal_those_of_mlx_however_the_prompt_is_cut(
    pair: tuple[HybridModel, MlxPeer], n: int
) -> None:
    ours, theirs = pair
    tokens = prompt(n, seed=n)
    whole = theirs.logits(tokens.tolist())
    assert 0.5 < float(whole.std()) < 4
    for pieces in CUTS[n]:
        got, expected = ours.logits(tokens, pieces), theirs.logits(tokens.tolist(), pieces)
        assert float((got - expected).abs().max()) < 1e-3, pieces
        assert float((got - whole).abs().max()) < 1e-3, pieces


def test_states_and_latents_equal_those_of_mlx(pair: tuple[HybridModel, MlxPeer]) -> None:
    ours, theirs = pair
    tokens = prompt(130, seed=2)
    for a, b in zip(ours.states(tokens), theirs.states(tokens.tolist()), strict=True):
        assert relative(a, b) < 1e-4


def test_decoded_logits_equal_those_of_mlx(pair: tuple[HybridModel, MlxPeer]) -> None:
    ours, theirs = pair
    tokens = prompt(75, seed=3)
    expected = theirs.logits(tokens.tolist())
    recurrent, conv, latent = ours.states(tokens[:70])
    for at in range(70, 75):
        step = ours.decode(tokens[at : at + 1], [at], recurrent[None], conv[None], [latent])
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        assert float((step.logits[0] - expected[at]).abs().max()) < 1e-3


def test_mlx_loads_the_tensors_of_a_saved_folder(tmp_path: Path) -> None:
    weights, config = weights_of("odd"), CONFIGS["odd"]
    save_pretrained(weights, config, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert all(name.startswith("language_model.") for name in saved)
    tokens = prompt(20)
    expected = MlxPeer(saved, config).logits(tokens.tolist())
    assert float((build(config, weights).logits(tokens) - expected).abs().max()) < 1e-3
