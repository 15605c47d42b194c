"""Every figure that the articles and the engines quote comes out to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdalab.errors import KdalabError
from kdalab.spec import (
    PRESETS,
    StateKind,
    checkpoints_over,
    itemsize,
    preset,
    state_sizes,
)

LINEAR, K3 = "kimi-linear-48b", "kimi-k3"
MIB, GIB, TIB = 2**20, 2**30, 2**40


@pytest.mark.parametrize(
    ("name", "layers", "kda", "full_one_based"),
    [
        (LINEAR, 27, 20, [4, 8, 12, 16, 20, 24, 27]),
        (K3, 93, 69, [*range(4, 93, 4), 93]),
        ("glm-5.3-flash", 45, 34, [*range(4, 45, 4)]),
        ("qwen3-next-80b", 48, 36, [*range(4, 49, 4)]),
        ("tiny", 8, 6, [4, 8]),
    ],
)
def test_layers_follow_the_published_pattern(name, layers, kda, full_one_based):
    spec = preset(name)
    assert spec.num_layers == layers
    assert spec.num_linear_layers == kda
    assert [i + 1 for i in spec.full_layers] == full_one_based
    assert sorted(spec.linear_layers + spec.full_layers) == list(range(layers))


# Columns: Kimi-Linear-48B-A3B, Kimi K3.
PUBLISHED = {
    "recurrent_bytes_per_layer": (2_097_152, 6_291_456),
    "recurrent_bytes": (41_943_040, 434_110_464),
    "conv_bytes_per_layer": (73_728, 221_184),
    "conv_bytes": (1_474_560, 15_261_696),
    "checkpoint_bytes": (43_417_600, 449_372_160),
    "int8_bytes_per_layer": (524_288, 1_572_864),
    "int8_scale_bytes_per_layer": (16_384, 49_152),
    "checkpoint_int8_bytes": (12_288_000, 127_180_800),
    "latent_bytes_per_token": (8_064, 27_648),
    "checkpoint_equals_tokens": (5_384, 16_253),
}


@pytest.mark.parametrize("figure", PUBLISHED)
@pytest.mark.parametrize("column", [0, 1])
def test_published_bytes_are_met_exactly(figure, column):
    sizes = state_sizes(preset((LINEAR, K3)[column]))
    assert getattr(sizes, figure) == PUBLISHED[figure][column]


@pytest.mark.parametrize(("name", "mib"), [(LINEAR, 20), (K3, 207)])
def test_bf16_recurrent_state_is_half_of_fp32(name, mib):
    assert state_sizes(preset(name).with_dtypes(state="bf16")).recurrent_bytes == mib * MIB


@pytest.mark.parametrize(
    ("name", "latent", "equals"), [(LINEAR, 4_032, 10_768), (K3, 13_824, 32_507)]
)
def test_fp8_latent_halves_the_bytes_and_doubles_the_crossing(name, latent, equals):
    sizes = state_sizes(preset(name).with_dtypes(kv="fp8"))
    assert sizes.latent_bytes_per_token == latent
    assert sizes.checkpoint_equals_tokens == equals


@pytest.mark.parametrize("name", [LINEAR, K3])
def test_int8_checkpoint_is_3_53_times_smaller_than_fp32(name):
    sizes = state_sizes(preset(name))
    assert round(sizes.checkpoint_bytes / sizes.checkpoint_int8_bytes, 2) == 3.53


@pytest.mark.parametrize(("name", "tib", "gib"), [(LINEAR, 0.32, 7.875), (K3, 3.35, 27.0)])
def test_a_million_tokens(name, tib, gib):
    sizes = state_sizes(preset(name))
    assert round(sizes.checkpoint_store_bytes(2**20, 128) / TIB, 2) == tib
    assert sizes.latent_bytes(2**20) == int(gib * GIB)


def test_articles_rounded_figures_agree():
    k3 = state_sizes(preset(K3))
    assert round(k3.checkpoint_bytes / GIB, 1) == 0.4  # "about 0.4 GiB per checkpoint"
    # "31 checkpoints (every 32 K of 1 M) = 13.46 GB fp32", recurrent state only
    assert round(checkpoints_over(10**6, 32_000) * k3.recurrent_bytes / 1e9, 2) == 13.46
    assert round(k3.checkpoint_store_bytes(10**6, 10_000) / 1e9) == 45  # "about 40 GB"


def _vllm_block(page_bytes: int, bytes_per_token: int, align: int) -> int:
    """vLLM's rule: the smallest aligned block whose KV page holds one state page."""
    return align * -(-page_bytes // (align * bytes_per_token))


@pytest.mark.parametrize(
    ("name", "tp", "state", "kv", "align", "block"),
    [
        # K3 with fp8 KV, as vLLM's own tests and recipes print them.
        (K3, 8, "fp32", "fp8", 512, 1536),
        (K3, 1, "fp32", "fp8", 128, 11_392),
        # GLM-5.3-Flash: 1,152 tokens per block at TP4 (LMCache pull request 5042) and 640 at TP8
        # (vLLM pull request 53906); its indexer's pages make 128 the alignment.
        ("glm-5.3-flash", 4, "fp32", "bf16", 128, 1152),
        ("glm-5.3-flash", 8, "fp32", "bf16", 128, 640),
    ],
)
def test_block_sizes_that_engines_print_follow_from_these_bytes(name, tp, state, kv, align, block):
    sizes = state_sizes(preset(name).with_dtypes(state=state, kv=kv), tp_size=tp)
    page = sizes.recurrent_bytes_per_layer + sizes.conv_bytes_per_layer
    assert _vllm_block(page, sizes.latent_bytes_per_token_per_layer, align) == block


def test_k3_state_page_under_tp8_is_what_vllm_reports():
    sizes = state_sizes(preset(K3), tp_size=8)
    assert sizes.recurrent_bytes_per_layer + sizes.conv_bytes_per_layer == 814_080


@pytest.mark.parametrize("name", PRESETS)
def test_ranks_add_up_to_the_whole_state_and_each_holds_the_whole_latent(name):
    spec = preset(name)
    whole = state_sizes(spec)
    for tp in (1, 2, 4):
        rank = state_sizes(spec, tp_size=tp)
        assert rank.recurrent_bytes * tp == whole.recurrent_bytes
        assert rank.conv_bytes * tp == whole.conv_bytes
        assert rank.checkpoint_int8_bytes * tp == whole.checkpoint_int8_bytes
        if spec.is_latent:
            assert rank.latent_bytes_per_token == whole.latent_bytes_per_token


def test_grouped_kv_heads_are_split_and_then_replicated():
    spec = preset("qwen3-next-80b")  # 2 KV heads
    whole = state_sizes(spec).latent_bytes_per_token
    assert whole == 12 * 2 * 2 * 256 * 2  # layers, K and V, heads, width, bf16
    assert state_sizes(spec, tp_size=2).latent_bytes_per_token == whole // 2
    assert state_sizes(spec, tp_size=8).latent_bytes_per_token == whole // 2


def test_tp_that_does_not_divide_the_heads_shows_the_arithmetic():
    with pytest.raises(KdalabError, match=r"96 KDA heads: 96 / 7 = 13\.71 per rank"):
        state_sizes(preset(K3), tp_size=7)
    with pytest.raises(KdalabError, match="32, 48, 96"):
        state_sizes(preset(K3), tp_size=5)
    with pytest.raises(KdalabError, match="16 GDN key heads"):
        state_sizes(preset("qwen3-next-80b"), tp_size=32)
    for bad in (0, -1, 2.0, True):
        with pytest.raises(KdalabError, match="integer >= 1"):
            state_sizes(preset(K3), tp_size=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PRESETS)
def test_sizes_equal_the_bytes_of_real_arrays(name):
    """Independent of the arithmetic: count the elements of arrays of the documented shapes."""
    np = pytest.importorskip("numpy")
    spec, sizes = preset(name), state_sizes(preset(name))
    lin = spec.linear
    state = np.broadcast_to(
        np.float32(0), (spec.num_linear_layers, lin.num_v_heads, lin.head_k_dim, lin.head_v_dim)
    )
    assert state.size * itemsize(spec.state_dtype) == sizes.recurrent_bytes
    widths = [lin.num_k_heads * lin.head_k_dim] * 2 + [lin.num_v_heads * lin.head_v_dim]
    conv = sum(
        np.broadcast_to(np.float32(0), (spec.num_linear_layers, w, lin.conv_kernel - 1)).size
        for w in widths
    )
    assert conv * itemsize(spec.conv_dtype) == sizes.conv_bytes
    scales = state.max(axis=-1)  # one per layer, head and key channel
    assert state.size + 4 * scales.size + sizes.conv_bytes == sizes.checkpoint_int8_bytes


def test_bytes_of_a_kind():
    sizes = state_sizes(preset("tiny"))
    assert sizes.bytes_of(StateKind.MLA_KV, 10) == 10 * sizes.latent_bytes_per_token
    both = sizes.bytes_of(StateKind.KDA_RECURRENT) + sizes.bytes_of(StateKind.KDA_CONV)
    assert both == sizes.checkpoint_bytes
    with pytest.raises(KdalabError, match="encoder"):
        sizes.bytes_of(StateKind.EMBEDDING)


def test_checkpoints_lie_within_the_context():
    assert checkpoints_over(0, 64) == 0
    assert checkpoints_over(63, 64) == 0
    assert checkpoints_over(64, 64) == 1
    assert checkpoints_over(2**20, 128) == 8192
    for context, interval in ((1, 0), (-1, 1)):
        with pytest.raises(KdalabError):
            checkpoints_over(context, interval)


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(KdalabError, match=r"known models: kimi-k3.*Did you mean 'kimi-k3'"):
        preset("kimi-k33")


def test_specs_are_plain_data():
    for spec in PRESETS.values():
        assert json.loads(json.dumps(spec.to_dict()))["name"] == spec.name
        assert spec.source


def test_importing_spec_loads_no_tensor_library():
    import subprocess
    import sys

    code = (
        "import sys, kdalab.spec, kdalab.units, kdalab.viz.palette;"
        "print([m for m in ('torch','numpy','plotly','gradio','transformers') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert out.stdout.strip() == "[]"
