"""The weights that ship: small, of one size, with a history, and the networks they claim to be."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kdalab.errors import KdalabError
from kdalab.recall import NETWORKS, Plan, load, read_metadata, task
from kdalab.recall.files import FIXED, METADATA, SHIPPED
from kdalab.recall.networks import config_of
from kdalab.recall.training import fresh_network
from kdalab.verify.peers import TransformersPeer, transformers_missing


def file_of(name: str) -> Path:
    return SHIPPED / name / "model.safetensors"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_is_under_two_megabytes(name: str) -> None:
    assert file_of(name).stat().st_size < 2_000_000


@pytest.mark.parametrize("name", NETWORKS)
def test_the_metadata_says_what_made_the_file(name: str) -> None:
    found = read_metadata(name)
    assert set(METADATA) == set(found)
    command = shlex.split(found["command"])
    assert command[:5] == ["kdalab", "train", "recall", "--network", name]
    options = dict(zip(command[3::2], command[4::2], strict=True))
    assert options["--seed"] == found["seed"] == str(Plan().seed)
    assert options["--steps"] == found["steps"] == str(Plan().steps)
    assert 0 < float(found["seconds"]) < 15 * 60
    trained = sum(x.numel() for k, x in load_file(file_of(name)).items() if k not in FIXED)
    assert found["parameters"] == str(trained)


def test_the_three_are_of_one_size_and_one_training() -> None:
    found = [read_metadata(name) for name in NETWORKS]
    sizes = [int(f["parameters"]) for f in found]
    assert max(sizes) / min(sizes) < 1.05
    assert len({(f["seed"], f["steps"]) for f in found}) == 1


@pytest.mark.parametrize("name", NETWORKS)
def test_embedding_and_head_are_those_of_the_task(name: str) -> None:
    tensors = load_file(file_of(name))
    table = task.embedding(torch.Generator().manual_seed(int(read_metadata(name)["seed"])))
    assert torch.equal(tensors["model.embed_tokens.weight"].float(), table)
    assert torch.equal(tensors["lm_head.weight"].float(), task.head())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_served_network_gives_the_trained_logits(name: str) -> None:
    served = load(name)
    assert served.config == config_of(name)
    net = fresh_network(name, 0)
    net.load_state_dict(load_file(file_of(name)))
    batch = task.episodes(2, 100, None, torch.Generator().manual_seed(4))
    with torch.no_grad():
        trained = net(batch.tokens)
    for row, tokens in zip(trained, batch.tokens, strict=True):
        torch.testing.assert_close(served.logits(tokens), row, rtol=0, atol=1e-4)


@pytest.mark.skipif(bool(transformers_missing()), reason=transformers_missing())
@pytest.mark.parametrize("name", ["hybrid", "mla"])
def test_transformers_gives_the_same_logits(name: str) -> None:
    """Not for KDA alone: transformers 5.24 wants at least one layer of attention in its cache."""
    tokens = task.episodes(1, 100, None, torch.Generator().manual_seed(6)).tokens[0]
    peer = TransformersPeer(SHIPPED / name).logits(tokens.tolist())
    torch.testing.assert_close(load(name).logits(tokens), peer, rtol=0, atol=2e-4)


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(KdalabError, match="make them with `kdalab train recall --network kda"):
        load("kda", tmp_path)
    with pytest.raises(KdalabError, match="use one of kda, hybrid, mla"):
        load("gdn")


def test_damaged_or_exchanged_weights_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kda"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(KdalabError, match="cannot be read as safetensors"):
        load("kda", tmp_path)
    (folder / "model.safetensors").write_bytes(file_of("mla").read_bytes())
    (folder / "config.json").write_bytes((SHIPPED / "mla" / "config.json").read_bytes())
    with pytest.raises(KdalabError, match="is of network 'mla'"):
        load("kda", tmp_path)
    (folder / "model.safetensors").write_bytes(file_of("kda").read_bytes())
    raw = json.loads((SHIPPED / "kda" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"rms_norm_eps": 1e-3}))
    with pytest.raises(KdalabError, match="is not that of KDA only"):
        load("kda", tmp_path)
