"""Logits and greedy tokens of transformers' own Kimi-Linear, with its weights and with ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from model_cases import odd_config, prompt, relative

from kdalab.model import KimiLinearConfig, load_pretrained, save_pretrained, tiny_config
from kdalab.model.network import HybridModel
from kdalab.model.tiny import tiny_weights
from kdalab.verify.peers import TransformersPeer, transformers_missing

pytestmark = pytest.mark.skipif(bool(transformers_missing()), reason=transformers_missing())

LENGTHS = (1, 3, 63, 64, 65, 200)
CUTS = {
    1: [[1]],
    3: [[3], [1, 2], [1, 1, 1]],
    63: [[63], [1, 2, 60], [62, 1]],
    64: [[64], [63, 1], [2, 62], [32, 32]],
    65: [[65], [64, 1], [1, 64], [2, 61, 2]],
    200: [[200], [64, 64, 64, 8], [1, 2, 60, 7, 64, 66], [100, 100], [199, 1], [65, 2, 1, 132]],
}


class Pair(NamedTuple):
    ours: HybridModel
    theirs: TransformersPeer


def random_transformers_model(config: KimiLinearConfig) -> Any:
    """A ``KimiLinearForCausalLM`` with no weight at a value that hides it: norms are not one,
    correction biases not zero, and attention spreads over more than one token."""
    import transformers

    raw = config.to_hf()
    torch.manual_seed(3)
    network = transformers.KimiLinearForCausalLM(transformers.KimiLinearConfig(**raw))
    with torch.no_grad():
        for name, p in [*network.named_parameters(), *network.named_buffers()]:
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
            elif name.endswith("e_score_correction_bias"):
                p.copy_(0.3 * torch.randn_like(p))
            elif name.endswith("conv1d.weight"):
                p.copy_(0.6 * torch.randn_like(p))
            elif "A_log" not in name and "dt_bias" not in name:
                p.copy_(torch.randn_like(p) * p.shape[-1] ** -0.5)
            # So small that the epsilon of the norm after it counts.
            if "kv_a_proj" in name or "q_a_proj" in name:
                p.mul_(0.01)
    return network


@pytest.fixture(scope="module", params=["ours saved", "theirs saved", "theirs in shards", "odd"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The same checkpoint in both, written by one of them."""
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    if request.param == "ours saved":
        save_pretrained(tiny_weights(0), tiny_config(), folder)
    else:
        config = odd_config() if request.param == "odd" else tiny_config()
        shard = "400KB" if request.param == "theirs in shards" else "1GB"
        random_transformers_model(config).save_pretrained(folder, max_shard_size=shard)
        sharded = len(list(folder.glob("*.safetensors"))) > 1
        assert sharded == (request.param == "theirs in shards")
    return Pair(load_pretrained(folder), TransformersPeer(folder))


@pytest.mark.parametrize("n", LENGTHS)
def test_logits_equal_those_of_transformers_however_the_prompt_is_cut(pair: Pair, n: int) -> None:
    tokens = prompt(n, seed=n)
    expected = pair.theirs.logits(tokens.tolist())
    for pieces in CUTS[n]:
        assert relative(pair.ours.logits(tokens, pieces), expected) < 1e-4, pieces


@pytest.mark.parametrize("n", LENGTHS)
def test_32_greedy_tokens_equal_those_of_transformers(pair: Pair, n: int) -> None:
    tokens = prompt(n, seed=n).tolist()
    assert pair.ours.greedy(tokens, 32) == pair.theirs.greedy(tokens, 32)


def test_the_config_that_transformers_writes_reads_as_the_one_it_was_made_from(
    tmp_path: Path,
) -> None:
    import json

    import transformers

    for config in (tiny_config(), odd_config()):
        transformers.KimiLinearConfig(**config.to_hf()).save_pretrained(tmp_path)
        raw = json.loads((tmp_path / "config.json").read_text())
        assert "linear_attn_config" not in raw or raw["layer_types"]  # the other form
        assert KimiLinearConfig.from_hf(raw) == config
