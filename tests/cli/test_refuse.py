"""Every command refuses alike, and what is missing is said in one line with the way to get it."""

from __future__ import annotations

import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdalab.cli.main import build_app
from kdalab.cli.refuse import folded

BAD = [
    ["size", "no-such-model"],
    ["replay", "no-such-file.jsonl"],
    ["compare", "no-such-file.jsonl"],
    ["explain", "hello"],
    ["plot", "no-such-plot"],
    ["demo", "--port", "0"],
    ["recall", "--weights", "no-such-folder"],
    ["train", "recall", "--network", "no-such-network"],
    ["train", "recall", "--out", ""],
    ["train", "recall", "--out", "  "],
    ["bench", "kernels", "--shape", "1,2"],
    ["bench", "kernels", "--target", "sm_90"],
    ["bench", "kernels", "--compile", "--quick"],
]


@pytest.mark.parametrize("args", BAD, ids=" ".join)
def test_bad_input_is_one_line_from_kdalab_and_exit_code_2(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(build_app(), args)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("kdalab: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args", [["bench", "kernels", "--compile"], ["bench", "gpu", "--interpret"]], ids=" ".join
)
def test_without_triton_one_line_says_how_to_get_it(
    args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    done = CliRunner().invoke(build_app(), args)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("kdalab: this needs Triton")
    assert done.stderr.count("\n") == 1
    for hint in ("make setup", "pip install 'kdalab[bench]'"):
        assert hint in done.stderr


def test_the_tables_of_the_benchmarks_explain_their_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kdalab.bench import cache, engine
    from kdalab.bench.cache import CacheRow
    from kdalab.bench.engine import Figure

    rows = [CacheRow("lookup", 1, 1000, 4.0, 5.0, 1, 21.0, 5.0)]
    monkeypatch.setattr(cache, "bench_cache", lambda *_: rows)
    monkeypatch.setattr(engine, "bench_engine", lambda *_: [Figure("g", "n", 2.0, "x", 1.0)])
    shown = {
        name: CliRunner().invoke(build_app(), ["bench", name], env={"COLUMNS": "300"}).stdout
        for name in ("cache", "engine")
    }
    for column in ("us:", "limit, goal:", "meets:"):
        assert column in shown["cache"].splitlines()[-1]
    assert shown["engine"].splitlines()[-1].startswith("aim:")


def test_a_refusal_is_folded_at_the_width_and_keeps_commands_and_paths_whole() -> None:
    path = "/a/rather/long/folder/of/traces/that/has/more/characters/than/a/line/t.jsonl"
    text = (
        f"kdalab: {path} cannot be read; try `kdalab lab stats --limit 20` or `kdalab lab formats`"
    )
    lines = folded(text, 48).splitlines()
    assert " ".join(" ".join(lines).split()) == text
    assert [line for line in lines if len(line) > 48] == [f"  {path}"]
    for command in ("`kdalab lab stats --limit 20`", "`kdalab lab formats`"):
        assert sum(command in line for line in lines) == 1
    assert folded("kdalab: a\n\nb", 48) == "kdalab: a\n\nb"
    assert folded("kdalab: short", 300) == "kdalab: short"


@pytest.mark.parametrize("command", [["lab", "replay", "t"], ["bundle", "inspect", "t"]])
def test_on_a_terminal_every_command_folds_what_it_says(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "t").write_text("no,trace,at,all\n")
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, 60))
    words = [sys.executable, "-m", "kdalab", *command]
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    done = subprocess.run(words, cwd=tmp_path, stderr=slave, stdout=slave, stdin=slave, env=env)
    os.close(slave)
    said = os.read(master, 65536).decode()
    os.close(master)
    assert done.returncode == 2
    assert said.startswith("kdalab: ")
    assert max(map(len, said.splitlines())) <= 60
    plain = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert plain.stderr.count("\n") == 1
    assert " ".join(said.split()) == " ".join(plain.stderr.split())
