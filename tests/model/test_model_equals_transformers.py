"""Logits and greedy tokens of transformers' own Kimi-Linear, with its weights and with ours."""

from __future__ import annotations

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


@pytest.fixture(scope="module", params=["ours saved", "theirs saved", "theirs saved, odd"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same checkpoint in both, written by one of them."""
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    if request.param == "ours saved":
        save_pretrained(tiny_weights(0), tiny_config(), folder)
    else:
        config = odd_config() if "odd" in request.param else tiny_config()
        random_transformers_model(config).save_pretrained(folder)
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


def test_a_checkpoint_in_shards_loads_as_the_same_network(tmp_path: Path) -> None:
    network = random_transformers_model(tiny_config())
    network.save_pretrained(tmp_path / "whole")
    network.save_pretrained(tmp_path / "shards", max_shard_size="400KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    whole, shards = (load_pretrained(tmp_path / name) for name in ("whole", "shards"))
    assert torch.equal(whole.logits(prompt(70)), shards.logits(prompt(70)))


def test_the_config_that_transformers_writes_reads_as_the_one_it_was_made_from(
    tmp_path: Path,
) -> None:
    import json

    import transformers

    for config in (tiny_config(), odd_config()):
        transformers.KimiLinearConfig(**config.to_hf()).save_pretrained(tmp_path)
        raw = json.loads((tmp_path / "config.json").read_text())
        assert raw["layer_types"]  # transformers' own form, next to or instead of Moonshot's
        assert KimiLinearConfig.from_hf(raw) == config
