"""``kdalab size`` prints the figures, keeps its JSON keys, and says what is wrong."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from kdalab.cli.size import command
from kdalab.spec import PRESETS

app = typer.Typer()
app.command()(command)
runner = CliRunner()

KEYS = {
    "model", "source", "notes", "linear_attention", "full_attention", "num_layers",
    "num_linear_layers", "num_full_layers", "tp_size", "state_dtype", "conv_dtype", "kv_dtype",
    "recurrent_bytes_per_layer", "recurrent_bytes", "conv_bytes_per_layer", "conv_bytes",
    "latent_bytes_per_token_per_layer", "latent_bytes_per_token", "checkpoint_bytes",
    "checkpoint_int8_bytes", "checkpoint_equals_tokens", "checkpoint_int8_equals_tokens",
    "context_tokens", "interval_tokens", "latent_bytes", "num_checkpoints",
    "checkpoint_store_bytes", "checkpoint_store_int8_bytes", "per_rank",
}  # fmt: skip


def run(*argv):
    return runner.invoke(app, list(argv))


def test_json_has_stable_keys_and_exact_bytes():
    report = json.loads(run("kimi-k3", "--tp", "8", "--interval", "128", "--json").stdout)
    assert set(report) == KEYS
    assert report["recurrent_bytes"] == 434_110_464
    assert report["conv_bytes"] == 15_261_696
    assert report["latent_bytes_per_token"] == 27_648
    assert report["checkpoint_store_bytes"] == 8192 * 449_372_160
    assert report["tp_size"] == report["per_rank"]["tp_size"] == 8
    assert report["per_rank"]["checkpoint_bytes"] == 449_372_160 // 8
    assert report["per_rank"]["latent_bytes_per_token"] == 27_648


@pytest.mark.parametrize("name", PRESETS)
def test_table_fits_a_terminal_and_shows_every_figure(name):
    done = run(name, "--tp", "2")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    report = json.loads(run(name, "--tp", "2", "--json").stdout)
    for key in ("recurrent_bytes", "conv_bytes", "checkpoint_int8_bytes", "latent_bytes_per_token"):
        assert f"{report['per_rank'][key]:,}" in done.stdout
    assert f"{report['per_rank']['checkpoint_equals_tokens']:,} tokens" in done.stdout
    assert "…" not in done.stdout


def test_dtypes_and_context_change_the_figures():
    report = json.loads(
        run(
            "kimi-linear-48b", "--kv-dtype", "fp8", "--state-dtype", "bf16", "--conv-dtype", "fp32",
            "--context", "128k", "--json",
        ).stdout
    )  # fmt: skip
    assert report["latent_bytes_per_token"] == 4_032
    assert report["recurrent_bytes"] == 20 * 2**20
    assert report["conv_bytes"] == 2 * 1_474_560
    assert report["latent_bytes"] == 4_032 * 131_072


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["kimi-k33"], "known models: kimi-k3, kimi-linear-48b"),
        (["kimi-k3", "--tp", "7"], "96 / 7 = 13.71"),
        (["kimi-k3", "--tp", "0"], "integer >= 1"),
        (["kimi-k3", "--kv-dtype", "int3"], "unknown dtype"),
        (["kimi-k3", "--interval", "0"], "use 1 or more"),
        (["kimi-k3", "--context", "-1"], "number of tokens"),
        (["missing/config.json"], "no such file"),
    ],
)
def test_bad_input_is_told(argv, message):
    done = run(*argv)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_config_without_a_field_says_which(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "qwen3_next", "hidden_size": 8}')
    done = run(str(file))
    assert done.exit_code == 2
    assert "linear_num_key_heads" in " ".join(done.output.split())


@pytest.mark.parametrize(("heads", "allowed"), [(10**12, "1, 2, 4, 5, 8"), (10**12 + 39, "1")])
def test_absurd_counts_of_heads_are_answered_at_once(tmp_path, heads, allowed):
    config = {
        "model_type": "kimi_linear", "hidden_size": 8, "vocab_size": 8, "num_hidden_layers": 4,
        "max_position_embeddings": 64, "num_attention_heads": heads, "kv_lora_rank": 8,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_num_heads": heads,
        "linear_head_dim": 8, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    done = run(str(file), "--tp", "7")
    assert done.exit_code == 2
    assert f"sizes that work: {allowed}" in " ".join(done.output.split())
    assert run(str(file)).exit_code == 0
    assert run(str(file), "--tp", str(10**30)).exit_code == 2
    file.write_text(json.dumps(config | {"linear_num_heads": 10**400}))
    done = run(str(file), "--tp", "7")
    assert done.exit_code == 2
    assert "num_k_heads is over" in " ".join(done.output.split())
