"""What holds for every plot script: same data, same figure; three languages; bad input is told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kdalab.resources import load_script, plot_script_names, resource_dir
from kdalab.viz.export import browser_session, find_browser
from kdalab.viz.figure_words import figure_words
from kdalab.words import LANGUAGES, catalogue

NAMES = plot_script_names()

# Smaller than what people draw, so that all of them can be drawn again and again.
QUICK: dict[str, list[str]] = {
    "chunk_algorithm": ["--tokens", "48", "--pieces", "3"],
    "density": ["--requests", "100"],
    "hit_rate_vs_budget": ["--requests", "100", "--budget-to", "8GiB"],
    "int8_error": ["--tokens", "6"],
    "partial_hit_gain": ["--requests", "40"],
    "recall_capacity": ["--pairs", "4", "8", "--episodes", "1"],
    "retention": ["--requests", "40", "--memory", "4GiB"],
}
DRAW_ALL = """
import sys
from kdalab.resources import load_script
names, out = sys.argv[1].split(","), sys.argv[2]
quick = eval(sys.argv[3])
for name in names:
    if load_script(name).main(["--out", out, "--format", "json", *quick.get(name, [])]):
        sys.exit(name)
"""
CJK = {"zh": re.compile("[\u4e00-\u9fff]"), "ko": re.compile("[\uac00-\ud7af]")}


def drawn(folder: Path, name: str, *argv: str) -> dict:
    """The script's figure as data, drawn into ``folder``."""
    file = folder / f"{name}.json"
    assert load_script(name).main(["--out", str(file), *QUICK.get(name, []), *argv]) == 0
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Every figure in English."""
    folder = tmp_path_factory.mktemp("en")
    return {name: drawn(folder, name) for name in NAMES}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Every figure, drawn by another process with another order of hashes."""
    folder = tmp_path_factory.mktemp("other")
    argv = [sys.executable, "-c", DRAW_ALL, ",".join(NAMES), str(folder), repr(QUICK)]
    env = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in NAMES}


def texts(figure: dict) -> dict[str, str]:
    """Title, subtitle, axes and table heads of a figure or a drawing, by place."""
    if "pictures" in figure:
        found = {f"caption {i}": p["caption"] for i, p in enumerate(figure["pictures"])}
        found |= {f"column {i}": c for i, c in enumerate(figure["table"]["columns"])}
        return {"title": figure["title"], **{k: v for k, v in found.items() if v}}
    layout = figure["layout"]
    found = {"title": layout["title"]["text"], "subtitle": layout["title"]["subtitle"]["text"]}
    for key, axis in layout.items():
        if re.fullmatch(r"[xy]axis\d*", key) and axis.get("title", {}).get("text"):
            found[key] = axis["title"]["text"]
    columns = layout["meta"]["table"]["columns"]
    return found | {f"column {i}": c for i, c in enumerate(columns)}


def test_the_figures_that_are_promised_are_there() -> None:
    assert set(NAMES) >= {
        "state_vs_kv", "checkpoint_capacity", "density", "hit_rate_vs_budget", "restore_path",
        "radix_tree", "slot_ownership", "int8_error", "unified_frontiers", "padding_waste",
        "partial_hit_gain", "retention", "marconi_score", "transfer_break_even",
        "recall_capacity", "chunk_algorithm", "kernel_roofline", "engine_ttft", "event_timeline",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_draw_the_same(name: str, english: dict, elsewhere: dict) -> None:
    assert english[name] == elsewhere[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_title_and_its_numbers(name: str, english: dict) -> None:
    figure = english[name]
    assert texts(figure)["title"]
    table = figure.get("table") or figure["layout"]["meta"]["table"]
    assert table["rows"]
    assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    script = load_script(name)
    assert name == script.SCRIPT.name
    assert script.main is not None


@pytest.mark.parametrize("lang", ["zh", "ko"])
def test_no_title_stays_english(lang: str, english: dict, tmp_path: Path) -> None:
    for name in NAMES:
        before, after = texts(english[name]), texts(drawn(tmp_path, name, "--lang", lang))
        assert before.keys() == after.keys(), name
        for place in ("title", "subtitle"):
            if place in before:
                assert CJK[lang].search(after[place]), (name, place, after[place])
        # What people of the field write in English everywhere may stay; the rest may not.
        kept = {t for p, t in after.items() if before[p] == t and re.search("[a-z]{3}", t)}
        kept = {t for t in kept if not re.fullmatch(r"(leaf|branch|every|\+|:\d+)+", t)}
        allowed = {"recurrent state", "conv state", "latent KV", "alpha", "token match", "max |M|",
                   "max |b|"}  # fmt: skip
        assert kept <= allowed, (name, kept - allowed)


def test_every_word_is_used_and_has_a_script() -> None:
    words = catalogue(resource_dir("plot_scripts") / "text")
    assert {key.split(".")[0] for key in words.entries} == {*NAMES, "common"}
    for name in NAMES:
        assert set(figure_words(name)) == set(figure_words(name, "ko"))
        assert set(figure_words(name, "zh")) > set()


def trace_file(folder: Path) -> Path:
    """Six requests in Mooncake's form; every second one goes on from the one before."""
    rows = []
    for i in range(6):
        ids = [0, *range(100 * (i // 2), 100 * (i // 2) + 8 + 4 * (i % 2))]
        rows.append(
            {"timestamp": 1000 * i, "input_length": 512 * len(ids), "output_length": 8,
             "hash_ids": ids}
        )  # fmt: skip
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_figures_of_a_trace_take_any_and_name_it(tmp_path: Path) -> None:
    of_traces = [n for n in NAMES if load_script(n).SCRIPT.requests is not None]
    assert set(of_traces) >= {"density", "hit_rate_vs_budget", "radix_tree", "retention"}
    file = trace_file(tmp_path)
    for name in of_traces:
        figure = drawn(tmp_path, name, "--trace", str(file), "--requests", "5")
        said = " ".join(texts(figure).values())
        assert "the first 5 requests of mine.jsonl" in said, name


def test_the_drawn_tree_is_the_one_that_the_trace_leaves(tmp_path: Path) -> None:
    file = str(trace_file(tmp_path))
    rows = drawn(tmp_path, "radix_tree", "--trace", file)["table"]["rows"]
    # Odd requests know all blocks of the one before, and its state stands at the last of them.
    assert [row[2:4] for row in rows[1::2]] == [["4,608", "4,608"]] * 3
    assert [row[2:4] for row in rows[2::2]] == [["512", "0"]] * 2


def test_budgets_and_densities_agree_with_blocks_counted_by_hand(tmp_path: Path) -> None:
    argv = ["--trace", str(trace_file(tmp_path)), "--budget-to", "4GiB"]
    table = drawn(tmp_path, "hit_rate_vs_budget", *argv)["layout"]["meta"]["table"]
    blocks = [9, 13, 9, 13, 9, 13]
    known = [0, 9, 1, 9, 1, 9]  # of each prompt, seen before
    assert table["rows"][-1][1] == f"{sum(known) / sum(blocks):.1%}"
    restored = [0, 9, 0, 9, 1, 9]  # the shared first block gets a state when two prompts part
    at = table["columns"].index("leaf+branch")
    assert table["rows"][-1][at] == f"{sum(restored) / sum(blocks):.1%}"
    trades = drawn(tmp_path, "density", "--trace", argv[1])["layout"]["meta"]["table"]["rows"]
    assert trades[0][:2] == ["every:512", f"{sum(known) / sum(blocks):.1%}"]


def test_as_many_checkpoints_fit_as_division_says(english: dict) -> None:
    rows = english["checkpoint_capacity"]["layout"]["meta"]["table"]["rows"]
    k3 = {row[1]: (row[2], row[3]) for row in rows if row[0] == "kimi-k3"}
    assert k3["fp32"] == ("449,372,160 B", f"{2**36 // 449_372_160}")
    assert k3["bf16"][1] == f"{2**36 // (434_110_464 // 2 + 15_261_696)}"


def test_padding_is_what_a_block_of_two_groups_loses(english: dict) -> None:
    rows = english["padding_waste"]["layout"]["meta"]["table"]["rows"]
    found = {row[1]: row for row in rows if row[0] == "kimi-linear-48b"}
    # 20 KDA layers in three groups of 7 places, 7 MLA layers in one; 1,152 B a token and layer.
    state, token, block = 43_417_600 // 20, 1152, 1888
    taken = 7 * token * block * (-(-32768 // block) + 3 * 3)
    needed = 32768 * token * 7 + 3 * 20 * state
    assert found["1,888"][2] == f"{(taken - needed) / taken:.1%}"
    assert found["1,792"][2] == ""  # no state in such an attention page


def test_measured_figures_draw_the_file_that_they_name(tmp_path: Path) -> None:
    for name, file in (("engine_ttft", "engine.json"), ("kernel_roofline", "kernels.json")):
        data = json.loads((resource_dir("plot_scripts") / "data" / file).read_text())
        assert data["command"].startswith("kdalab bench ")
        figure = drawn(tmp_path, name)
        assert data["command"] in figure["layout"]["title"]["subtitle"]["text"]
        data["machine"]["cpu"] = "Abacus"
        own = tmp_path / file
        own.write_text(json.dumps(data))
        figure = drawn(tmp_path, name, "--data", str(own))
        assert "Abacus" in figure["layout"]["title"]["subtitle"]["text"]


@pytest.mark.parametrize(
    ("name", "argv", "message"),
    [
        ("density", ["--trace", "missing.jsonl"], "missing.jsonl"),
        ("density", ["--requests", "0"], "1 to 100,000"),
        ("density", ["--from", "4k", "--to", "1k"], "first < last"),
        ("radix_tree", ["--requests", "25"], "1 to 24"),
        ("checkpoint_capacity", ["--memory", "much"], "much"),
        ("hit_rate_vs_budget", ["--checkpoints", "often"], "often"),
        ("slot_ownership", ["--slots", "1"], "state slots"),
        ("int8_error", ["--tokens", "65"], "1 to 64"),
        ("partial_hit_gain", ["--block", "1000"], "use a multiple"),
        ("padding_waste", ["--to", "64"], "256 tokens or more"),
        ("marconi_score", ["--choice", "9"], "eviction 9"),
        ("recall_capacity", ["--similarity", "0.33"], "0.33"),
        ("chunk_algorithm", ["--pieces", "9"], "2 to 6 chunks"),
        ("kernel_roofline", ["--data", "missing.json"], "cannot be read"),
        ("kernel_roofline", ["--ops", "nothing"], "no row of it was measured"),
        ("event_timeline", ["--request", "Z"], "no request 'Z'"),
        ("transfer_break_even", ["--rate", "0"], "above 0"),
    ],
)
def test_bad_input_is_told_and_nothing_is_written(
    name: str, argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    assert load_script(name).main(["--out", str(out), "--format", "json", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_measurements_of_another_shape_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    for text in ("{", "[]", '{"rows": []}', '{"rates": {"flop": 1, "nbytes": 1}, "rows": []}'):
        file.write_text(text)
        assert load_script("kernel_roofline").main(["--data", str(file), "--out", str(file)]) == 2
        assert "--json printed" in (said := capsys.readouterr().err) or "measured" in said
        assert file.read_text() == text


@pytest.mark.browser
def test_a_dark_figure_in_korean_is_drawn_by_chromium(tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium found")
    from PIL import Image

    argv = ["--out", str(tmp_path), "--format", "png", "--lang", "ko", "--theme", "dark"]
    with browser_session(["png"]):
        assert load_script("padding_waste").main(argv) == 0
        with Image.open(tmp_path / "padding_waste.png") as picture:
            assert picture.size == (2240, 1260)
            assert len(picture.convert("RGB").getcolors(1 << 20)) > 50


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("kind", ["svg", "png", "html"])
def test_every_figure_comes_out_as(kind: str, tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium found")
    starts = {"svg": b"<svg", "png": b"\x89PNG", "html": b"<!DOCTYPE html>"}
    with browser_session([kind]):
        for name in NAMES:
            for lang in LANGUAGES if kind == "html" else ["en"]:
                argv = ["--out", str(tmp_path), "--format", kind, "--lang", lang]
                assert load_script(name).main([*argv, *QUICK.get(name, [])]) == 0
                assert (tmp_path / f"{name}.{kind}").read_bytes().startswith(starts[kind]), name
