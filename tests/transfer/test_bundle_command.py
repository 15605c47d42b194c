"""``kdalab bundle inspect`` and ``kdalab mooncake`` on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from transfer_cases import small_bundle, small_identity
from typer.testing import CliRunner

from kdalab.cli.bundle import app
from kdalab.transfer import BundleFormatError, BundleRefusedError, load_bundle, save_bundle

GOLDEN = Path(__file__).parent / "golden" / "bundle_v1.safetensors"


def test_it_says_whose_state_a_file_holds() -> None:
    done = CliRunner().invoke(app, ["inspect", str(GOLDEN), "--verify"])
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    for text in (
        "boundary 10 tokens",
        "model_version v1",
        "recurrent_layout v_first",
        "rank 0 of 1",
        "page 4 tokens",
        "hint writable",
        "latent KV float16 [3, 3, 4, 7] 504 B",
        "every checksum is right",
    ):
        assert text in words, text


def test_it_prints_json_with_shapes_and_stamps() -> None:
    done = CliRunner().invoke(app, ["inspect", str(GOLDEN), "--json"])
    data = json.loads(done.output)
    assert data["prefix"]["boundary"] == 10
    assert data["tensors"]["recurrent"]["shape"] == [2, 4, 6, 5]
    assert data["tensors"]["recurrent"]["dtype"] == "float32"
    assert data["identity"]["kv_dtype"] == "fp16"
    assert (data["verified"], data["refused"]) == (False, [])


def test_it_reads_tensors_only_when_asked_to(tmp_path: Path) -> None:
    file = save_bundle(small_bundle(), tmp_path / "b.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert CliRunner().invoke(app, ["inspect", str(file)]).exit_code == 0
    asked = CliRunner().invoke(app, ["inspect", str(file), "--verify"])
    assert isinstance(asked.exception, BundleFormatError)
    assert "b.safetensors: conv: checksum" in str(asked.exception)


HOSTILE = "[red]x[/red] [/] \x1b[2J\x9b1m\r\n\u202eabc"


def test_text_of_a_stranger_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    who = small_identity(model=HOSTILE, extra=((HOSTILE, "[bold]y"),))
    file = save_bundle(small_bundle(identity=who), tmp_path / "b.safetensors")
    shown = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app, ["inspect", str(file)])
    assert shown.exit_code == 0, shown.output
    assert r"[red]x[/red] [/] \x1b[2J\x9b1m\r\n\u202eabc" in shown.output
    assert "[bold]y" in shown.output
    assert not [c for c in shown.output if c != "\n" and not c.isprintable()]
    as_json = CliRunner().invoke(app, ["inspect", str(file), "--json"])
    assert json.loads(as_json.output)["identity"]["model"] == HOSTILE
    assert not [c for c in as_json.output if c != "\n" and not c.isprintable()]
    with pytest.raises(BundleRefusedError) as caught:
        small_bundle().require(who)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("more", [[], ["--verify"]])
def test_what_is_no_regular_file_is_not_waited_for(
    kind: str, more: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    done = CliRunner().invoke(app, ["inspect", str(path), *more])
    assert done.exit_code == 2
    assert "no regular file" in done.output
    with pytest.raises(OSError, match="no regular file"):
        load_bundle(path)


@pytest.mark.parametrize("content", [b"", b"not a bundle, but longer than eight bytes"])
def test_what_is_no_bundle_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    done = CliRunner().invoke(app, ["inspect", str(file)])
    assert isinstance(done.exception, BundleFormatError)
    assert str(done.exception).startswith("x: this is no bundle: ")
    assert str(done.exception).count("no bundle") == 1
    gone = CliRunner().invoke(app, ["inspect", str(tmp_path / "gone")])
    assert gone.exit_code == 2
    assert "cannot read the bundle" in gone.output
    assert "No such file or directory" in " ".join(gone.output.split())
