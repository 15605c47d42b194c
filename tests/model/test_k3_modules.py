"""Each part of Kimi K3 against an independent module: transformers' and fla-core's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_cases import odd_k3_config, relative

from kdalab.model import KimiLinearConfig, tiny_k3_config
from kdalab.model.attn_res import AttnRes, BlockStream, mix
from kdalab.model.kda import KDALayer
from kdalab.model.latent_moe import LatentMoE
from kdalab.model.mla import MLALayer
from kdalab.model.moe import Router
from kdalab.model.situ import situ_glu
from kdalab.model.tiny import tiny_weights
from kdalab_kernels import tanh

CONFIGS = pytest.mark.parametrize("c", [tiny_k3_config(), odd_k3_config()], ids=["tiny", "odd"])
N = 64


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(c: KimiLinearConfig, layer: int, part: str) -> dict[str, torch.Tensor]:
    """Random weights of one part of a layer, by their short names."""
    prefix = f"model.layers.{layer}.{part}."
    drawn = tiny_weights(7, c)
    return {k.removeprefix(prefix): w for k, w in drawn.items() if k.startswith(prefix)}


def fill(module: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Every parameter of ``module`` and no other."""
    module.load_state_dict(values, strict=True)
    module.eval()


def softcapped(c: KimiLinearConfig) -> Any:
    module = pytest.importorskip("transformers.models.inkling2.modeling_inkling2")
    return module.Inkling2SoftcappedSwiGLU(
        SimpleNamespace(
            mlp_gate_softcap=c.activation_situ_beta,
            mlp_up_softcap=c.activation_situ_linear_beta,
        )
    )


# -- SiTU ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1e4])
def test_situ_equals_the_softcapped_swiglu_of_transformers(scale: float) -> None:
    gate, up = rand(50, 37, scale=scale), rand(50, 37, seed=1, scale=scale)
    expected = softcapped(tiny_k3_config())(gate, up)
    got = situ_glu(gate, up, 4.0, 25.0)
    assert relative(got, expected) < 1e-5
    assert float(got.abs().max()) <= 100


def test_situ_without_a_bound_on_up_is_swiglu_for_a_wide_gate() -> None:
    gate, up = rand(50, 37), rand(50, 37, seed=1)
    swiglu = torch.nn.functional.silu(gate) * up
    assert relative(situ_glu(gate, up, 1e4, None), swiglu) < 1e-5
    assert relative(situ_glu(gate, up, 4.0, None), swiglu) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanh_gives_an_element_the_same_bits_wherever_it_stands(dtype: torch.dtype) -> None:
    x = rand(300, scale=3).to(dtype)
    alone = torch.cat([tanh(x[i : i + 1].clone()) for i in range(len(x))])
    for start in range(20):
        for n in (1, 3, 7, 8, 9, 17, 64, 255):
            assert torch.equal(tanh(x[start : start + n]), alone[start : start + n])


# -- attention residuals ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 9])
def test_the_mix_equals_attention_residuals_of_fla(n: int) -> None:
    naive = pytest.importorskip("fla.ops.attnres.naive").naive_attnres
    sources = [rand(N, 60, seed=i, scale=10.0 ** (i % 3 - 1)) for i in range(n)]
    gamma, w = 1 + 0.3 * rand(60, seed=20), rand(60, seed=21, scale=0.3)
    expected = naive(w, sources, gamma, rms_eps=1e-5)
    assert relative(mix(sources, gamma * w, 1e-5), expected) < 1e-5


def test_the_weights_of_the_mix_equal_those_of_transformers() -> None:
    module = pytest.importorskip("transformers.models.inkling2.modeling_inkling2")
    hidden, n = 60, 4
    peer = module.Inkling2BlockAttentionResidual(
        SimpleNamespace(hidden_size=hidden, _attn_implementation="eager")
    )
    peer.norm.eps = 1e-5
    query = rand(hidden, seed=3, scale=0.3)
    peer.query.data = query * hidden**0.5  # it divides scores by this
    # It normalises the values too, so it is given sources for which that changes nothing.
    sources = [torch.nn.functional.rms_norm(rand(N, hidden, seed=i), (hidden,)) for i in range(n)]
    with torch.no_grad():
        (expected,) = peer(torch.stack(sources[:-1], -2)[None], sources[-1][None])
    assert relative(mix(sources, query, 1e-5), expected[0]) < 1e-4


@pytest.mark.parametrize("block", [1, 2, 3, 12])
def test_each_site_mixes_the_sources_of_the_report(block: int) -> None:
    """With a query of zero all sources weigh the same: the mean says which they were."""
    layers, hidden = 9, 8
    zero = torch.zeros(hidden)
    stream = BlockStream(AttnRes(block, [zero] * layers, [zero] * layers, zero, 1e-5), rand(1, 8))
    outputs = [rand(1, hidden, seed=10 + i) for i in range(2 * layers)]  # attention, mlp, ...

    def blocks_before(i: int) -> list[torch.Tensor]:
        """Embedding and the sums of the blocks that ended before sub-layer ``i``, in any order."""
        found, start = [rand(1, 8)], 0
        for layer in range(block, layers + 1, block):
            if 2 * layer <= i:
                found.append(sum(outputs[start : 2 * layer], torch.zeros(1, hidden)))
                start = 2 * layer
        return found if start == i else [*found, sum(outputs[start:i], torch.zeros(1, hidden))]

    for layer in range(layers):
        for site, half in ((stream.attention_input, 0), (stream.mlp_input, 1)):
            expected = torch.stack(blocks_before(2 * layer + half)).mean(0)
            assert relative(site(layer), expected) < 1e-5, (layer, half)
            stream.add(outputs[2 * layer + half])
    assert relative(stream.output(), torch.stack(blocks_before(2 * layers)).mean(0)) < 1e-5
    assert len(stream.bank) == (layers - 1) // block + 1


# -- KDA -------------------------------------------------------------------------------------


@CONFIGS
def test_the_forget_gate_equals_the_lower_bound_gate_of_fla(c: KimiLinearConfig) -> None:
    naive = pytest.importorskip("fla.ops.kda.gate").naive_kda_lowerbound_gate
    w = weights(c, 0, "self_attn")
    x = rand(N, c.hidden_size, scale=3)
    _, g, _, _ = KDALayer(c, w)._project(x)
    z = (x @ w["f_a_proj.weight"].T @ w["f_b_proj.weight"].T).view(
        1, N, c.linear_num_heads, c.linear_head_dim
    )
    assert c.gate_lower_bound is not None
    expected = naive(z, w["A_log"], w["dt_bias"], c.gate_lower_bound)
    assert relative(g, expected[0]) < 1e-5
    assert c.gate_lower_bound <= float(g.min()) < 0.9 * c.gate_lower_bound
    assert float(g.max()) <= 0


@CONFIGS
def test_a_kda_layer_equals_the_delta_attention_of_transformers(
    c: KimiLinearConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("transformers.models.bailing_hybrid.modeling_bailing_hybrid")
    glm = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
    for name in ("chunk_kimi_delta_attention", "causal_conv1d_fn"):  # their torch forms
        function = getattr(module, name)
        monkeypatch.setattr(module, name, getattr(function, "__wrapped__", function))
    sizes = {
        "hidden_size": c.hidden_size,
        "linear_num_heads": c.linear_num_heads,
        "linear_head_dim": c.linear_head_dim,
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim,
        "linear_lower_bound": c.gate_lower_bound,
        "kda_safe_gate": True,
        "kda_lower_bound": c.gate_lower_bound,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps,
    }
    peer = module.BailingHybridDeltaAttention(SimpleNamespace(**sizes), 0)
    peer.forget_gate = glm.Glm5NextTextForgetGate(SimpleNamespace(**sizes))
    w = weights(c, 0, "self_attn")
    theirs = {
        (f"forget_gate.{k}" if k[:2] in ("f_", "A_", "dt") else k): v
        for k, v in w.items()
        if "conv1d" not in k
    }
    conv = torch.cat([w[f"{x}_conv1d.weight"] for x in "qkv"])
    fill(peer, theirs | {"conv1d.weight": conv})
    x = rand(N, c.hidden_size)
    with torch.no_grad():
        expected = peer(x[None])[0]
    layer = KDALayer(c, w)
    heads, dim = c.linear_num_heads, c.linear_head_dim
    states = torch.zeros(heads, dim, dim), torch.zeros(len(conv[0, 0]) - 1, 3 * c.kda_width)
    y, recurrent, _ = layer.prefill(x, N, *states)
    assert relative(y, expected) < 1e-4
    assert bool(recurrent.any())


# -- MLA -------------------------------------------------------------------------------------


@CONFIGS
def test_a_gated_mla_layer_equals_those_of_transformers(c: KimiLinearConfig) -> None:
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    inkling = pytest.importorskip("transformers.models.inkling2.modeling_inkling2")
    peer = kimi.KimiLinearAttention(
        SimpleNamespace(
            attention_dropout=0.0,
            attention_bias=False,
            hidden_size=c.hidden_size,
            num_attention_heads=c.num_attention_heads,
            num_key_value_heads=c.num_attention_heads,
            q_lora_rank=c.q_lora_rank,
            kv_lora_rank=c.kv_lora_rank,
            qk_nope_head_dim=c.qk_nope_head_dim,
            qk_rope_head_dim=c.qk_rope_head_dim,
            v_head_dim=c.v_head_dim,
            _attn_implementation="eager",
        ),
        0,
    )
    gated = inkling.Inkling2GatedOutputProjection(
        SimpleNamespace(hidden_size=c.hidden_size), c.num_attention_heads, c.v_head_dim
    )
    w = weights(c, c.full_attn_layers[0], "self_attn")
    for key in ("q_a_proj.weight", "kv_a_proj_with_mqa.weight"):
        w[key] = 0.01 * w[key]  # so small that the norms' epsilon counts
    peer.o_proj = torch.nn.Identity()
    fill(peer, {k: v for k, v in w.items() if k not in ("o_proj.weight", "g_proj.weight")})
    fill(gated, {"gate_proj.weight": w["g_proj.weight"], "linear.weight": w["o_proj.weight"]})
    x = rand(N, c.hidden_size)
    mask = torch.full((N, N), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        expected = gated(peer(x[None], mask)[0], x[None])[0]
    y, _ = MLALayer(c, w).prefill(x, N, torch.zeros(0, c.latent_dim))
    assert relative(y, expected) < 1e-5


# -- experts ---------------------------------------------------------------------------------


def router_of(c: KimiLinearConfig, w: dict[str, torch.Tensor]) -> Any:
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    peer = kimi.KimiLinearTopkRouter(
        SimpleNamespace(
            num_experts_per_tok=c.num_experts_per_token,
            num_local_experts=c.num_experts,
            hidden_size=c.hidden_size,
            routed_scaling_factor=c.routed_scaling_factor,
            n_group=c.num_expert_group,
            topk_group=c.topk_group,
            norm_topk_prob=c.moe_renormalize,
        )
    )
    names = {"weight": "gate.weight", "e_score_correction_bias": "gate.e_score_correction_bias"}
    fill(peer, {k: w[v] for k, v in names.items()})
    return peer


@CONFIGS
def test_the_router_equals_that_of_transformers(c: KimiLinearConfig) -> None:
    w = weights(c, c.num_hidden_layers - 1, "block_sparse_moe")
    w["gate.e_score_correction_bias"] = rand(c.num_experts, scale=0.3)
    x = rand(N, c.hidden_size)
    with torch.no_grad():
        _, picked, chosen = router_of(c, w)(x)
    expected = torch.zeros(N, c.num_experts).scatter_(1, chosen, picked)
    assert relative(Router(c, w)(x), expected) < 1e-5


@CONFIGS
def test_the_latent_experts_equal_a_loop_over_the_chosen_ones(c: KimiLinearConfig) -> None:
    w = weights(c, c.num_hidden_layers - 1, "block_sparse_moe")
    x = rand(N, c.hidden_size)
    act = softcapped(c)

    def mlp(z: torch.Tensor, prefix: str, names: tuple[str, str, str]) -> torch.Tensor:
        gate, up, down = (w[f"{prefix}{name}.weight"] for name in names)
        out: torch.Tensor = act(z @ gate.T, z @ up.T) @ down.T
        return out

    with torch.no_grad():
        _, picked, chosen = router_of(c, w)(x)
    z = x @ w["routed_expert_down_proj.weight"].T
    mixed = torch.stack([
        sum(
            (
                p * mlp(z[row], f"experts.{int(e)}.", ("w1", "w3", "w2"))
                for p, e in zip(picked[row], chosen[row], strict=True)
            ),
            torch.zeros(z.shape[1]),
        )
        for row in range(N)
    ])  # fmt: skip
    normed = torch.nn.functional.rms_norm(
        mixed, mixed.shape[-1:], w["routed_expert_norm.weight"], c.rms_norm_eps
    )
    shared = mlp(x, "shared_experts.", ("gate_proj", "up_proj", "down_proj"))
    expected = normed @ w["routed_expert_up_proj.weight"].T + shared
    assert relative(LatentMoE(c, w)(x), expected) < 1e-5
