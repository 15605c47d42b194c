"""Every plot script runs alone, writes what it was asked for, and writes the same again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from kdalab import resources
from kdalab.cli.plot import command
from kdalab.errors import KdalabError
from kdalab.resources import load_script, plot_script_names, resource_dir
from kdalab.viz import export
from kdalab.viz.export import NoBrowserError, find_browser, require_browser, write_figure

app = typer.Typer()
app.command()(command)
runner = CliRunner()
NAMES = plot_script_names()


def test_state_vs_kv_is_there():
    assert "state_vs_kv" in NAMES
    assert resource_dir("plot_scripts").is_dir()


def test_json_is_the_same_in_two_processes(tmp_path):
    script = resource_dir("plot_scripts") / "plot_state_vs_kv.py"
    texts = []
    for seed in ("1", "2"):
        out = tmp_path / seed / "figure.json"
        done = subprocess.run(
            [sys.executable, str(script), "--out", str(out), "--models", "kimi-k3", "tiny"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == str(out)
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    figure = json.loads(texts[0])
    assert "bdata" not in texts[0]  # plain numbers, readable in a diff
    marks = [t for t in figure["data"] if t.get("name") == "kimi-k3: crossing"]
    assert marks[0]["x"] == [16_253]


def test_html_is_self_contained_and_has_the_table(tmp_path):
    main = load_script("state_vs_kv").main
    assert main(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "state_vs_kv.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert "Plotly.newPlot" in text
    assert len(text) > 1_000_000  # plotly.js is inline
    assert "449,372,160 B" in text
    assert "<td>16,253 tokens</td>" in text
    assert 'lang="en"' in text
    again = tmp_path / "again.html"
    assert main(["--out", str(again)]) == 0
    assert again.read_text() == text


def test_html_escapes_what_a_user_named(tmp_path):
    import plotly.graph_objects as go

    figure = export.attach_table(go.Figure(), ["<b>"], [["<script>alert(1)</script>"]])
    file = write_figure(figure, tmp_path / "x.html", title="<img src=x>")
    text = file.read_text()
    assert "<script>alert" not in text
    assert "<img src=x>" not in text


@pytest.mark.browser
def test_images_are_drawn_by_chromium(tmp_path):
    if find_browser() is None:
        pytest.skip("no Chromium found")
    main = load_script("state_vs_kv").main
    for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert main(["--out", str(tmp_path), "--format", kind, "--models", "tiny"]) == 0
        assert (tmp_path / f"state_vs_kv.{kind}").read_bytes().startswith(start)
    from PIL import Image

    with Image.open(tmp_path / "state_vs_kv.png") as picture:
        assert picture.size == (2240, 1260)
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50  # not an empty page


def test_without_a_browser_the_message_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "missing"))
    with pytest.raises(NoBrowserError, match="html or json"):
        require_browser()
    main = load_script("state_vs_kv").main
    assert main(["--out", str(tmp_path), "--format", "png"]) == 2
    assert "apt install chromium" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.png"))
    monkeypatch.delenv("BROWSER_PATH")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_browser() is None
    assert main(["--out", str(tmp_path), "--format", "json"]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--models", "nope"], "known models"),
        (["--models", "missing/config.json"], "no such file"),
        (["--tp", "7"], "96 / 7"),
        (["--from", "4k", "--to", "1k"], "first < last"),
        (["--kv-dtype", "int3"], "unknown dtype"),
        (["--height", "0"], "1 to 8,000"),
        (["--to", "far"], "number of tokens"),
    ],
)
def test_bad_options_are_told_and_nothing_is_written(argv, message, tmp_path, capsys):
    main = load_script("state_vs_kv").main
    assert main(["--out", str(tmp_path / "new"), "--format", "json", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_unwritable_target_is_told(tmp_path, capsys):
    blocker = tmp_path / "file"
    blocker.write_text("")
    main = load_script("state_vs_kv").main
    assert main(["--out", str(blocker / "x.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_cli_lists_and_draws(tmp_path):
    listed = runner.invoke(app, ["--list"])
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in NAMES)
    out = tmp_path / "figure.json"
    done = runner.invoke(app, ["state-vs-kv", "--out", str(out), "--", "--models", "tiny"])
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["layout"]["meta"]["table"]["rows"][0][0] == "tiny"


@pytest.mark.browser
def test_cli_draws_in_one_browser_session_without_noise(tmp_path):
    if find_browser() is None:
        pytest.skip("no Chromium found")
    done = runner.invoke(app, ["state_vs_kv", "--out", str(tmp_path), "--format", "svg"])
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(tmp_path / "state_vs_kv.svg")]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a figure or use --all"),
        (["nope"], "known figures: "),
        (["../../etc/passwd"], "unknown figure"),
        (["state_vs_kv", "--all"], "leave out"),
        (["state_vs_kv", "--format", "bmp"], "html, svg, png, pdf, json"),
        (["--all", "--out", "x.svg"], "must be a folder"),
        (["state_vs_kv", "--out", "x.gif"], ".gif, which is no figure format; use one of html"),
    ],
)
def test_cli_refuses_and_says_why(argv, message):
    done = runner.invoke(app, argv)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_an_unknown_ending_makes_no_folder(tmp_path):
    done = runner.invoke(app, ["state_vs_kv", "--out", str(tmp_path / "a.gif")])
    assert done.exit_code == 2
    assert not (tmp_path / "a.gif").exists()


def test_a_figures_own_options_need_no_dashes_and_a_strange_trace_is_told(tmp_path):
    from kdalab.cli.main import build_app

    out = tmp_path / "figure.json"
    words = ["plot", "state_vs_kv", "--models", "tiny", "--out", str(out)]
    done = runner.invoke(build_app(), words)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["layout"]["meta"]["table"]["rows"][0][0] == "tiny"
    strange = tmp_path / "strange.txt"
    strange.write_text("nothing that anybody reads\n")
    done = runner.invoke(build_app(), ["plot", "radix_tree", "--trace", str(strange)])
    assert done.exit_code == 2
    assert "name it with --format" not in done.output
    assert "the commands of `kdalab lab` take its name with --format" in " ".join(
        done.output.split()
    )


def test_bundled_folder_comes_before_the_checkout(tmp_path, monkeypatch):
    package = tmp_path / "kdalab"
    (package / "_bundled" / "plot_scripts").mkdir(parents=True)
    (tmp_path / "demos").mkdir()
    (package / "_bundled" / "plot_scripts" / "plot_other.py").write_text("X = 1\n")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resource_dir("plot_scripts") == package / "_bundled" / "plot_scripts"
    assert resource_dir("demos") == tmp_path / "demos"
    assert plot_script_names() == ["other"]
    with pytest.raises(KdalabError, match=r"defines main\(argv\)"):
        load_script("other")
    with pytest.raises(KdalabError, match="has no notebooks"):
        resource_dir("notebooks")
    with pytest.raises(KdalabError, match="unknown resource"):
        resource_dir("secrets")


def test_script_is_the_same_module_every_time():
    assert load_script("plot_state_vs_kv.py") is load_script("state-vs-kv")
    assert Path(load_script("state_vs_kv").__file__).name == "plot_state_vs_kv.py"
