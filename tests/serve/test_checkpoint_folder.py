"""A checkpoint folder is served by processes that load it each by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve.plan import Picture
from serve.serving import in_thread
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kdalab.engine import Engine, EngineConfig
from kdalab.engine.media import Media, media_ids
from kdalab.model import HybridModel, load_pretrained, save_pretrained, tiny_config
from kdalab.model.tiny import tiny_weights
from kdalab.serve.limits import Limits
from kdalab.serve.loading import load
from kdalab.serve.processes import Cluster, start_cluster
from kdalab.serve.roles import ModelOptions, decode_app, prefill_app
from kdalab.serve.router import router_app

LIMITS = Limits(retries=0)
PROMPT = "A checkpoint from a folder. " * 6
SEED = 3


def write(folder: Path, change: str = "") -> Path:
    """A small checkpoint in Kimi Linear's layout, with a tokenizer; ``change`` one thing in it."""
    weights = tiny_weights(SEED, tiny_config())
    if change == "a weight":
        weights["lm_head.weight"][0, 0] += 2**-10
    save_pretrained(weights, tiny_config(), folder)
    if change == "the config":
        config = folder / "config.json"
        text = config.read_text()
        config.write_text(text.replace('"rms_norm_eps": 1e-05', '"rms_norm_eps": 2e-05'))
        assert config.read_text() != text
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=change == "the tokenizer")
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("checkpoint") / "little-kimi")


def encoded(folder: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def single(model: HybridModel, tokens: list[int], new: int, media: Media | None = None) -> Any:
    engine = Engine(model, EngineConfig(reuse=False))
    request = engine.submit(tokens, new, media=media)
    engine.run()
    return request.generated


def identity(cluster: Cluster, role: str) -> dict[str, Any]:
    url = f"{cluster.children[role].url}/v1/identity"
    found: dict[str, Any] = httpx.get(url, trust_env=False, timeout=60).json()
    return found


def test_four_processes_serve_a_folder_as_one_engine_would(folder: Path) -> None:
    model = load_pretrained(folder)
    of = ["--model", str(folder), "--port", "0"]
    picture = Picture(bytes(range(256)) * 3, 16, 16)
    with start_cluster(of, router=["--port", "0"], encode=of) as cluster:
        assert list(cluster.children) == ["encode", "prefill", "decode", "router"]
        prefill, decode = identity(cluster, "prefill"), identity(cluster, "decode")
        assert prefill["identity"] == decode["identity"]
        assert prefill["model"] == "little-kimi"
        url = f"{cluster.url}/v1/completions"
        body = {"prompt": PROMPT, "max_tokens": 5, "model": "little-kimi"}
        answer = httpx.post(url, json=body, trust_env=False, timeout=60).json()
        ids = answer["choices"][0]["token_ids"]
        assert ids == single(model, encoded(folder, PROMPT), 5)
        text = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids)
        assert answer["choices"][0]["text"] == text
        assert "fallback" not in answer["kdalab"]
        image = {k: v for k, v in picture.body(0, False).items() if k != "at"}
        body = {"prompt": f"<image>{PROMPT}", "images": [image], "max_tokens": 5}
        answer = httpx.post(url, json=body, trust_env=False, timeout=60).json()
        assert "fallback" not in answer["kdalab"]
        span = picture.span(0)
        tokens = [*media_ids(span.digest, span.n, model.vocab_size), *encoded(folder, PROMPT)]
        assert answer["choices"][0]["token_ids"] == single(model, tokens, 5, Media((span,)))


@pytest.mark.parametrize("change", ["a weight", "the config", "the tokenizer"])
def test_states_of_another_checkpoint_are_refused_by_name(
    folder: Path, tmp_path: Path, change: str
) -> None:
    other = write(tmp_path / "little-kimi", change)
    field = "tokenizer" if change == "the tokenizer" else "model_version"
    theirs = ModelOptions(str(other), limits=LIMITS)
    ours = ModelOptions(str(folder), limits=LIMITS)
    with (
        in_thread(lambda: prefill_app(theirs), "prefill", LIMITS) as prefill,
        in_thread(lambda: decode_app(ours, [prefill], False), "decode", LIMITS) as decode,
        in_thread(lambda: router_app([decode], [], LIMITS), "router", LIMITS) as router,
    ):
        body = {"prompt": PROMPT, "max_tokens": 2}
        answer = httpx.post(f"{router}/v1/completions", json=body, trust_env=False, timeout=60)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (502, "transfer_failed")
        assert "another identity" in error["message"]
        assert field in error["message"]
        found = httpx.get(f"{decode}/v1/conservation", trust_env=False, timeout=60).json()
        assert found["active_states"]["free"] == found["active_states"]["total"]


def test_the_same_files_in_a_folder_of_another_name_are_the_same_model(
    folder: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(folder, tmp_path / "a-copy")
    ours, theirs = load(str(folder)), load(str(copy))
    assert ours.identity == theirs.identity
    assert (ours.name, theirs.name) == ("little-kimi", "a-copy")
    assert load(str(folder), dtype="bf16").identity != ours.identity
