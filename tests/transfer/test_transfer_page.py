"""The Python of docs/transfer.md runs as it is printed, top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kdalab.cli.bundle import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transfer.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def test_the_examples_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    moved, shared, mooncake = BLOCKS
    exec(compile(moved, str(PAGE), "exec"), names)
    request = names["request"]
    said = capsys.readouterr().out
    assert f" bytes; True {list(request.generated)}" in said
    (resumed,) = names["decode"].requests.values()
    assert list(resumed.generated) == list(request.generated)
    done = CliRunner().invoke(app, ["inspect", "request.safetensors", "--verify"])
    assert "every checksum is right" in done.output
    exec(compile(shared, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == "192 of 200 tokens restored; True\n"
    (fetched,) = names["second"].requests.values()
    assert fetched.lookup.restore > 0
    assert list(fetched.generated) == list(request.generated)
    compile(mooncake, str(PAGE), "exec")  # its master runs elsewhere
