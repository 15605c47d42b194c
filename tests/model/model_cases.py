"""Configs, prompts and comparisons that several model tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from kdalab.model import (
    CELL,
    CellOutput,
    HybridModel,
    KimiLinearConfig,
    tiny_config,
    tiny_k3_config,
)


class States(NamedTuple):
    """What a sequence keeps: see ``HybridModel.zero_state``."""

    recurrent: torch.Tensor
    conv: torch.Tensor
    latent: torch.Tensor


def odd_config() -> KimiLinearConfig:
    """Every switch away from the tiny model's: a low-rank query, groups of experts, two shared
    experts, and sizes that neither agree with each other nor fill a vector register."""
    return replace(
        tiny_config(),
        vocab_size=97,
        hidden_size=60,
        num_hidden_layers=5,
        full_attn_layers=(1, 4),
        dense_layers=(0, 1),
        intermediate_size=50,
        rms_norm_eps=1e-3,
        linear_num_heads=3,
        linear_head_dim=20,
        linear_conv_kernel_dim=3,
        num_attention_heads=5,
        kv_lora_rank=24,
        qk_nope_head_dim=12,
        qk_rope_head_dim=6,
        v_head_dim=10,
        q_lora_rank=18,
        num_experts=6,
        num_shared_experts=2,
        moe_intermediate_size=20,
        num_expert_group=2,
        topk_group=1,
        routed_scaling_factor=2.446,
    )


def odd_k3_config() -> KimiLinearConfig:
    """Every switch of Kimi K3 on, with other numbers than the tiny one's, activations bounded so
    closely that both bounds are felt, and a block size that leaves a block of one layer."""
    return replace(
        odd_config(),
        num_expert_group=1,
        gate_lower_bound=-3.0,
        use_full_rank_gate=True,
        mla_use_output_gate=True,
        attn_res_block_size=2,
        routed_expert_hidden_size=28,
        latent_moe_use_norm=True,
        hidden_act="situ",
        activation_situ_beta=1.5,
        activation_situ_linear_beta=2.0,
    )


def half_k3_config() -> KimiLinearConfig:
    """Half of the switches on: each is one of its own."""
    return replace(
        tiny_k3_config(),
        q_lora_rank=None,
        num_shared_experts=0,
        gate_lower_bound=None,
        use_full_rank_gate=False,
        mla_use_output_gate=False,
        latent_moe_use_norm=False,
        attn_res_block_size=None,
        activation_situ_linear_beta=None,
    )


def prompt(n: int, seed: int = 0, vocab: int = 97) -> torch.Tensor:
    """[n] ids."""
    return torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(seed))


def cells(
    model: HybridModel, tokens: torch.Tensor, start: int = 0, states: States | None = None
) -> list[CellOutput]:
    """Prefill ``tokens``, which follow ``start`` others, and return every cell's output."""
    recurrent, conv, latent = model.zero_state() if states is None else states
    outputs = []
    for at in range(0, len(tokens), CELL):
        out = model.prefill_cell(
            tokens[at : at + CELL], start + at, recurrent, conv, latent, logits="all"
        )
        recurrent, conv = out.recurrent, out.conv
        latent = torch.cat([latent, out.latent], 1)
        outputs.append(out)
    return outputs


def states_after(model: HybridModel, tokens: torch.Tensor) -> States:
    """The states after ``tokens``; zeros after none."""
    outputs = cells(model, tokens)
    if not outputs:
        return States(*model.zero_state())
    latent = torch.cat([out.latent for out in outputs], 1)
    return States(outputs[-1].recurrent, outputs[-1].conv, latent)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected number."""
    assert got.shape == expected.shape
    return float((got - expected).abs().max() / expected.abs().max())


def assert_same_bits(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """No number differs at all; NaN is never the same."""
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.shape == b.shape
        if a.numel():
            assert float((a - b).abs().max()) == 0, f"tensor {i}"
