"""The module that is trained and the network that is served are the same function."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdalab.errors import KdalabError
from kdalab.model import KimiLinearConfig
from kdalab.model.weights import build
from kdalab.recall import NETWORKS, task
from kdalab.recall.model import TrainableNetwork
from kdalab.recall.networks import config_of


def scattered(config: KimiLinearConfig, seed: int = 0) -> TrainableNetwork:
    """A network none of whose tensors is at its tidy initial value (norms of 1, A of 1, ...)."""
    r = torch.Generator().manual_seed(seed)
    table = torch.randn(config.vocab_size, config.hidden_size, generator=r)
    net = TrainableNetwork(config, table, table.flip(0), r)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=r))
    return net


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", ["shipped", "two-heads"])
def test_logits_equal_those_of_the_inference_network_in_fp64(name: str, shape: str) -> None:
    config = replace(config_of(name), vocab_size=97)
    if shape == "two-heads":
        config = replace(
            config,
            hidden_size=48,
            linear_num_heads=2,
            linear_head_dim=12,
            linear_conv_kernel_dim=3,
            num_attention_heads=3,
            qk_rope_head_dim=6,
            v_head_dim=10,
        )
    net = scattered(config).double()
    served = build(config, net.state_dict())
    tokens = torch.randint(97, (2, 150), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        trained = net(tokens)
    assert float(trained.std()) > 0.5  # the comparison is about something
    for row, sequence in zip(trained, tokens, strict=True):
        torch.testing.assert_close(served.logits(sequence), row, rtol=0, atol=1e-9)


def test_part_of_the_vocabulary_is_that_part_of_the_logits() -> None:
    net = scattered(config_of("kda"))
    tokens = torch.randint(task.VOCAB, (1, 9), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        some = net(tokens, slice(task.ANSWER, None))
        torch.testing.assert_close(some, net(tokens)[..., task.ANSWER :])


def test_the_three_are_of_one_size() -> None:
    counts = []
    for name in NETWORKS:
        net = scattered(config_of(name))
        counts.append(sum(p.numel() for p in net.parameters() if p.requires_grad))
    assert max(counts) / min(counts) < 1.005


def test_embedding_and_head_are_not_trained() -> None:
    net = scattered(config_of("mla"))
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert frozen == {"model.embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize("change", [{"dense_layers": (0,)}, {"q_lora_rank": 8}])
def test_a_config_it_has_no_modules_for_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(KdalabError, match="dense layers and a full-rank query only"):
        scattered(replace(config_of("mla"), **change))  # type: ignore[arg-type]
