"""The tiny model is one whose states matter, and what a checkpoint keeps in fp32."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import assert_same_bits, prompt, states_after

from kdalab.errors import KdalabError
from kdalab.model import HybridModel, load_pretrained, save_pretrained, tiny_config, tiny_model
from kdalab.model.tiny import tiny_weights


@pytest.mark.parametrize("lost", ["recurrent", "conv", "latent"])
def test_a_lost_state_is_seen_in_every_logit_row_of_the_next_cell(
    tiny: HybridModel, lost: str
) -> None:
    tokens = prompt(128, seed=5)
    right = states_after(tiny, tokens[:64])
    wrong = right._replace(**{lost: torch.zeros_like(getattr(right, lost))})
    expected, got = (
        tiny.prefill_cell(tokens[64:], 64, *states, logits="all").logits
        for states in (right, wrong)
    )
    assert expected is not None
    assert got is not None
    assert 1 < float(expected.std()) < 4
    assert float((got - expected).abs().amax(-1).min()) > 0.1


def test_some_channels_forget_within_a_cell_and_others_keep_it(tiny: HybridModel) -> None:
    """Two pasts, one cell of the same tokens: the states come closer and stay apart."""
    shared = prompt(64, seed=1)
    a, b = (torch.cat([prompt(64, seed=seed), shared]) for seed in (2, 3))
    early = [states_after(tiny, t[:64]).recurrent for t in (a, b)]
    late = [states_after(tiny, t).recurrent for t in (a, b)]
    kept = (late[0] - late[1]).flatten(1).norm(dim=1) / (early[0] - early[1]).flatten(1).norm(dim=1)
    assert bool((kept < 0.9).all())
    assert bool((kept > 0.05).all())


def test_bfloat16_keeps_decay_rates_and_the_router_in_fp32(tmp_path: Path) -> None:
    save_pretrained(tiny_weights(0), tiny_config(), tmp_path)
    low, same = load_pretrained(tmp_path, torch.bfloat16), tiny_model(0, torch.bfloat16)
    assert low.dtype == torch.bfloat16
    assert low.state_dtype == torch.float32
    tokens = prompt(70)
    assert_same_bits([low.logits(tokens).float()], [same.logits(tokens).float()])
    weights = tiny_weights(0, dtype=torch.bfloat16)
    assert {name.split(".", 3)[-1] for name, t in weights.items() if t.dtype == torch.float32} == {
        "self_attn.A_log",
        "self_attn.dt_bias",
        "block_sparse_moe.gate.weight",
        "block_sparse_moe.gate.e_score_correction_bias",
    }


class _Ran:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a pickle in the checkpoint was run",))


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    save_pretrained(tiny_weights(0), tiny_config(), tmp_path)
    blob = pickle.dumps(_Ran())
    (tmp_path / "pytorch_model.bin").write_bytes(blob)
    load_pretrained(tmp_path)  # does not look at it
    (tmp_path / "model.safetensors").write_bytes(blob)
    with pytest.raises(KdalabError, match="cannot be read as safetensors"):
        load_pretrained(tmp_path)
