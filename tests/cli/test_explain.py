"""``kdalab explain``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kdalab.cache import Checkpoint, PrefixKey, RadixStateCache, save_cache
from kdalab.cli.main import build_app


def run(*args: str) -> Result:
    return CliRunner().invoke(build_app(), ["explain", *args])


def test_a_scenario_explains_its_own_prompts_and_its_cache_explains_others(tmp_path: Path) -> None:
    path = tmp_path / "cache.json"
    own = run("--scenario", "fan-out", "--save", str(path))
    assert own.exit_code == 0, own.output
    assert own.output.startswith("A:\n  text known to 0 of ")
    assert "\nB:\n  text known to " in own.output
    assert "binding constraint: recurrent and conv state" in own.output
    prompt = "You are the support agent of a train company. Answer in two sentences. Bye."
    live = run(prompt, "--scenario", "fan-out", "--json")
    read = run(prompt, "--cache", str(path), "--json")
    assert live.output == read.output
    found = json.loads(read.output)["prompt"]
    assert found["token_match"] == 64
    assert (found["restore"], found["binding"]) == (0, "no checkpoint on the path")
    assert found["why"][0] == "text known to 64 of 75 tokens"
    ids = tmp_path / "ids.json"
    for written in (json.dumps(list(prompt.encode())), " ".join(map(str, prompt.encode()))):
        ids.write_text(written)
        assert run("--tokens", str(ids), "--cache", str(path), "--json").output == read.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("hello",), "give a cache: --cache FILE, or --scenario NAME"),
        (("--tokens", "/nope"), "or --scenario NAME. Also: cannot read the tokens '/nope'"),
        (("hello", "--scenario", "x", "--cache", "y"), "two caches; give one of them"),
        (("hello", "--scenario", "nope"), "unknown scenario 'nope'"),
        (("hello", "--cache", "missing.json"), "cannot read the snapshot"),
        (("--cache", "missing.json"), "give a prompt"),
        (("a", "--tokens", "t", "--cache", "missing.json"), "not both"),
        (("--tokens", "missing.txt", "--cache", "c"), "cannot read the tokens"),
        (("a", "--cache", "c", "--save", "d"), "--save writes the cache of a --scenario"),
        (("", "--scenario", "again"), "an empty prompt"),
    ],
)
def test_what_cannot_be_explained_is_refused(args: tuple[str, ...], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("content", ["a b", "[1, 2.5]", "[[1]]", '{"a": 1}', "[1"])
def test_a_file_without_token_ids_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    result = run("--tokens", str(path), "--cache", "c")
    assert result.exit_code == 2
    assert "must hold whole numbers" in result.output


def block_cache(path: Path) -> str:
    """A snapshot of a trace's cache: one prompt of two blocks of 512 tokens."""
    cache = RadixStateCache(512, 512)
    key = PrefixKey.from_blocks([7, 8], 512, 1024)
    lease = cache.acquire(cache.lookup(key))
    cache.release(cache.commit(lease, key, (0, 1), Checkpoint(0, 1024)).lease)
    save_cache(cache, path)
    return str(path)


def test_a_cache_of_blocks_is_asked_by_block_ids(tmp_path: Path) -> None:
    snapshot = block_cache(tmp_path / "cache.json")
    ids = tmp_path / "ids"
    ids.write_text("\ufeff7 8 9", encoding="utf-8")  # with a byte order mark
    found = json.loads(run("--tokens", str(ids), "--cache", snapshot, "--json").output)["prompt"]
    assert (found["token_match"], found["restore"]) == (1024, 1024)
    by_text = run("hello", "--cache", snapshot)
    assert by_text.exit_code == 2
    assert "by the ids of blocks of 512 tokens" in by_text.output
    ids.write_text(f"[7, {2**70}]")
    too_large = run("--tokens", str(ids), "--cache", snapshot)
    assert too_large.exit_code == 2
    assert "whole numbers below 2**63" in too_large.output


@pytest.mark.parametrize("content", ["", " \n", "\ufeff"])
def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t"
    path.write_text(content, encoding="utf-8")
    result = run("--tokens", str(path), "--scenario", "again")
    assert result.exit_code == 2
    assert "is empty; give token ids" in result.output
    path.write_text("[]")
    assert "an empty prompt" in run("--tokens", str(path), "--cache", "c").output
