"""``kdalab lab``: every command runs, says what it read, and refuses with one line."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdalab.cli.lab_source import Source
from kdalab.cli.main import build_app
from kdalab.lab import Setup, write_synthetic

RUN = CliRunner()


def call(*words: object, code: int = 0, columns: int = 200) -> str:
    result = RUN.invoke(build_app(), ["lab", *map(str, words)], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_synthetic(tmp_path / "t.jsonl", 80)


def test_a_replay_prints_the_account_and_what_was_skipped(trace: Path) -> None:
    trace.write_text(trace.read_text() + "?\n")
    out = call("replay", trace, "--memory", "24GiB", "-s", "arrivals=on int8=on")
    assert "restored (honest hit rate)" in out
    assert "1 skipped; the first: line 81: not JSON" in out
    assert "int8=on arrivals=on" in out
    found = json.loads(call("replay", trace, "--memory", "24GiB", "--json"))
    assert found["requests"] == 80
    assert found["report"]["skipped"] == 1
    assert (
        found["hit_tokens"] + found["replayed_tokens"] + found["new_tokens"]
        == (found["input_tokens"])
    )
    made_up = json.loads(call("replay", "--made-up", "agent-like:50", "--json"))
    assert made_up["block_tokens"] == 64


def test_statistics_stand_side_by_side(trace: Path) -> None:
    out = call("stats", trace, "--against", "chat-like")
    assert "next turns of an earlier prompt" in out
    assert "chat-like, 80 requests" in out
    a, b = json.loads(call("stats", trace, "--against", trace, "--json"))
    assert a == b


def test_a_generated_file_is_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "g.jsonl"
    shape = '{"systems": 2, "first": [900, 0.5]}'
    said = call("generate", out, "--requests", 60, "--preset", "agent-like", "--shape", shape)
    assert "60 requests" in said
    assert "60" in call("replay", out)
    assert "is not a JSON object" in call("generate", out, "--shape", "[]", code=2)


def test_a_name_that_ends_in_gz_gets_a_compressed_trace(tmp_path: Path) -> None:
    plain, packed, again = (tmp_path / n for n in ("t.jsonl", "t.jsonl.gz", "u.jsonl.gz"))
    for file in (plain, packed, again):
        call("generate", file, "--requests", 20, "--seed", 3)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()
    assert json.loads(call("stats", packed, "--json"))[0]["requests"] == 20


def test_a_sweep_writes_its_table_and_figure(trace: Path, tmp_path: Path) -> None:
    table, figure = tmp_path / "s.csv", tmp_path / "s.json"
    out = call(
        "sweep", trace, "--budgets", "20GiB,60GiB", "--checkpoints", "leaf", "--interval", "2048",
        "--out", table, "--figure", figure, "--grid", "arrivals=on",
    )  # fmt: skip
    assert "8 replays" in out
    assert len(table.read_text().splitlines()) == 9
    drawn = json.loads(figure.read_text())
    assert sum(len(t["x"]) for t in drawn["data"] if t["mode"] == "markers") == 8
    assert "s.png: written as .html or .json" in call(
        "sweep", trace, "--budgets", "60GiB", "--figure", tmp_path / "s.png", code=2
    )


def test_advice_prints_flags_and_assumptions(trace: Path) -> None:
    out = call("advise", trace, "--memory", "60GiB", "--objective", "flops")
    for words in ("--chunked-prefill-size", "--mamba-cache-mode align", "One setting changed"):
        assert words in out
    assert "Assumed:" in out
    (a,) = json.loads(call("advise", trace, "--memory", "60GiB", "--system", "vllm", "--json"))
    assert a["system"] == "vLLM"
    assert "allowed: SGLang, vLLM, both" in call("advise", trace, "--system", "x", code=2)


def test_a_report_is_one_page_that_needs_no_network(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    call("report", trace, "--out", page, "--budgets", "40GiB,80GiB", "--memory", "60GiB")
    html = page.read_text()
    for words in ("One replay", "Memory over time", "Advice for SGLang", "What the replay assumed"):
        assert words in html
    assert "--mamba-radix-cache-strategy extra_buffer\n--chunked-prefill-size" in html
    assert html.count("<script") >= 2
    assert "<script src" not in html
    assert html.count("Plotly.newPlot") == 2
    assert html.count('"orientation":"h"') >= 2  # a legend at the side leaves no room to draw
    assert "Restored: the share of prompt tokens that need no prefill" in html
    assert "white-space:pre-wrap;overflow-wrap:anywhere" in html  # a long command stays in sight
    assert f"kdalab lab replay {page.parent / 't.jsonl'} -s " in html
    assert "e+1" not in html.rpartition("</script>")[2]


def test_a_report_says_what_its_advice_is_without(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    words = ("report", trace, "--out", page, "--budgets", "60GiB", "--memory", "60GiB")
    call(*words, "-s", "pd=recompute host=1GiB")
    html = page.read_text()
    said = "The replay above has host=1GiB, pd=recompute; the advice is made without"
    assert html.count(said) == 2  # once a system
    call(*words, "-s", "decoded=on")
    assert page.read_text().count("The replay above has decoded=on; the advice") == 1
    call(*words, "-s", "arrivals=off")
    assert page.read_text().count("The replay above has arrivals=off; the advice") == 2
    call(*words, "-s", "cache=block block=8192")
    assert page.read_text().count("The replay above has cache=block, block=8192; the advice") == 2
    call(*words)
    assert "the advice is made without" not in page.read_text()


def test_a_policy_goes_from_template_to_board(tmp_path: Path, trace: Path) -> None:
    file = tmp_path / "mine.py"
    call("policy-template", file)
    assert "exists; choose another name" in call("policy-template", file, code=2)
    out = call("leaderboard", trace, "--policy", f"{file}:TailAndHalf", "--memory", "24GiB")
    assert "mine.py:TailAndHalf" in out
    out = call("advise", trace, "--policy", f"{file}:TailAndHalf", "--system", "vllm",
               "--memory", "60GiB", "--objective", "flops")  # fmt: skip
    assert "own policy" in out
    assert "no flag of SGLang or vLLM" in out
    file.write_text("class Mine:\n    def boundaries(self, *_):\n        raise OSError('no')\n")
    out = call("replay", trace, "--policy", f"{file}:Mine", code=2)
    assert "boundaries(n_tokens=" in out
    assert "raised OSError: no, at the request on line 1" in out


def test_every_command_that_the_template_names_runs(tmp_path: Path, trace: Path) -> None:
    file = tmp_path / "my own.py"
    said = call("policy-template", file)
    lines = [line.strip() for line in file.read_text().splitlines()]
    lines += [said.strip().partition(": try ")[2]]
    commands = [line for line in lines if line.startswith("kdalab lab ")]
    assert len(commands) == 3
    for command in commands:
        words = [str(trace) if w == "TRACE" else w for w in shlex.split(command)[2:]]
        assert f"{file}:TailAndHalf" in words
        call(*words)
    out = call("policy-template", tmp_path / "mine", code=2)
    assert "a policy's file ends in .py" in out


def test_formats_and_settings_are_listed() -> None:
    assert "agentic" in call("formats")
    out = call("settings")
    assert "checkpoints=leaf+branch" in out
    assert "Assumed: prefill reaches 40 %" in out


@pytest.mark.parametrize("columns", [80, 120])
def test_settings_fit_the_terminal_and_name_every_placement(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = call("settings", columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert "chunk:N, branch-first, tail-first, both" in " ".join(" ".join(lines).split())


def test_a_line_that_is_no_object_is_named_in_the_words_of_json(tmp_path: Path) -> None:
    file = write_synthetic(tmp_path / "t.jsonl", 5)
    for text, kind in (("null", "null"), ("true", "true or false"), ("3", "a number")):
        file.write_text(file.read_text() + text + "\n")
        assert f"{kind}, not an object" in call("stats", file)
    file.write_text("[1]\n" + write_synthetic(tmp_path / "u.jsonl", 5).read_text() + '{"a" 1}\n')
    said = call("stats", file, "--format", "mooncake").replace("\n", " ")
    assert "line 1: an array, not an object" in said
    assert "line 7: not JSON (Expecting ':' delimiter, character 6)" in said


def test_settings_explains_each_in_the_words_that_it_takes() -> None:
    from kdalab.cli.lab_replay import _MEANINGS

    out = call("settings")
    assert "None" not in out
    assert "``" not in out
    explained = [name for names, _ in _MEANINGS for name in names.split(", ")]
    assert explained == [f.name for f in fields(Setup)]


def test_rates_need_no_exponent_and_say_whose_they_are() -> None:
    assumed = " ".join(call("replay", "--made-up", "chat-like:5").split())
    assert "all devices together: prefill 6.33 PFLOP/s, restore 38.4 TB/s" in assumed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a trace, or --made-up N or PRESET:N"),
        (["--made-up", "chat-like"], "use N or PRESET:N"),
        (["--made-up", "x:3"], "unknown preset 'x'"),
        (["none.jsonl"], "cannot read the trace"),
        (["--made-up", "chat-like:5", "-s", "int9=on"], "is no setting"),
        (["--made-up", "chat-like:5", "--memory", "1MiB"], "alone needs"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], message: str) -> None:
    out = call("replay", *words, code=2)
    assert message in out
    assert out.startswith("kdalab: ")


@pytest.mark.parametrize("jobs", ["0", "-2", "100000"])
@pytest.mark.parametrize("command", ["sweep", "advise", "report", "leaderboard"])
def test_processes_that_cannot_be_are_refused_before_the_trace_is_read(
    command: str, jobs: str
) -> None:
    out = call(command, "none.jsonl", "--jobs", jobs, code=2)
    assert "use 1 to 1,024, or -1 for one a core" in out
    assert "none.jsonl" not in out


def test_a_split_that_leaves_no_room_for_kv_is_refused() -> None:
    words = ("replay", "--made-up", "chat-like:5", "-s")
    assert "split = 1e+300; use 1,000 or less" in call(*words, "split=1e300 memory=9GiB", code=2)
    assert "split=1000.0" in call(*words, "split=1000 memory=9TiB")


@pytest.mark.parametrize("gain", ["nope", "setup", "error"])
def test_a_gain_that_is_no_figure_is_refused_before_any_work(gain: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    out = call("sweep", "none.jsonl", "--gain", gain, "--out", table, code=2)
    assert f"gain {gain!r}; allowed: hit_rate, flops_saved_share, ttft_mean, ttft_p95" in out
    assert not table.exists()


def test_a_memory_that_lacks_one_byte_is_told_to_the_byte(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    row = {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [0, 1]}
    file.write_text(json.dumps(row) + "\n")
    asked = ("replay", file, "-s", "checkpoints=leaf", "--memory")
    out = " ".join(call(*asked, "1", code=2).split())
    need = out.partition("alone needs ")[2].partition(" of memory")[0]
    assert need == "442.05 MiB"
    out = " ".join(call(*asked, "463527935", code=2).split())
    assert "needs 463,527,936 B of memory" in out
    assert "There are 463,527,935 B" in out
    assert "restored" in call(*asked, "463527936")


def test_a_table_and_a_figure_are_two_files(trace: Path, tmp_path: Path) -> None:
    both = tmp_path / "a.json"
    out = call("sweep", trace, "--out", both, "--figure", f"{tmp_path}/./a.json", code=2)
    assert "name one file; give two" in " ".join(out.split())
    assert not both.exists()


def test_a_sweep_in_which_nothing_fits_fails(trace: Path) -> None:
    words = ("sweep", trace, "--checkpoints", "leaf,every:4096", "--int8", "off", "--budgets", "1")
    assert "kdalab: none of 2 replays could run; the first: the request on" in call(*words, code=1)
    call(*words, "--json", code=1)


def test_a_sweep_in_json_names_what_it_left_out_and_why(trace: Path) -> None:
    words = ("sweep", trace, "--budgets", "1MiB,60GiB", "--checkpoints", "leaf", "--int8", "off")
    found = json.loads(call(*words, "--grid", "unit=auto,64", "--json"))
    assert [bool(r["error"]) for r in found["rows"]] == [True, False]
    assert found["best"] == [found["rows"][1]["setup"]]
    why = "unit is a setting of cache=block; add cache=block"
    assert found["left_out"] == [
        f"memory={m} checkpoints=leaf retention=lru int8=off unit=64: {why}"
        for m in ("1MiB", "60GiB")
    ]


def test_settings_and_options_are_merged_before_they_are_judged(trace: Path) -> None:
    for words in (("--memory", "60GiB", "-s", "split=0.5"), ("-s", "split=0.5 memory=60GiB"),
                  ("-s", "split=0.5", "-s", "memory=60GiB")):  # fmt: skip
        found = json.loads(call("replay", trace, *words, "--json"))
        assert found["setup"] == "model=kimi-k3 memory=60GiB split=0.5"
    out = call("replay", trace, "-s", "memory=8GiB", "--memory", "4GiB", code=2)
    assert out == "kdalab: memory is given twice, as 8GiB and as 4GiB; give one of them\n"
    call("replay", trace, "-s", "memory=60GiB", "--memory", "61440MiB")


def test_a_sweep_varies_what_it_is_not_told(trace: Path) -> None:
    words = ("sweep", trace, "--budgets", "60GiB", "--checkpoints", "leaf", "--json")
    rows = json.loads(call(*words, "-s", "split=0.5 int8=on"))["rows"]
    assert [(r["memory"], r["split"], r["int8"]) for r in rows] == [(60 << 30, 0.5, True)]
    assert "memory is given twice" in call(*words, "-s", "memory=8GiB", code=2)


@pytest.mark.parametrize(
    "words", [("--budgets", "8GiB,x"), ("--checkpoints", "leaf,bad"), ("--grid", "chunk=1,2,x")]
)
def test_a_mistyped_value_in_a_list_is_refused_at_once(words: tuple[str, str]) -> None:
    assert call("sweep", "none.jsonl", *words, code=2).startswith("kdalab: ")
    assert "none.jsonl" not in call("sweep", "none.jsonl", *words, code=2)


@pytest.mark.parametrize("words", [("sweep", "--out"), ("sweep", "--figure"), ("report", "--out")])
def test_what_cannot_be_written_is_refused_before_the_trace_is_read(
    words: tuple[str, str], tmp_path: Path
) -> None:
    command, option = words
    for name in ("none/x.json", "folder.json"):
        (tmp_path / "folder.json").mkdir(exist_ok=True)
        out = call(command, "none.jsonl", option, tmp_path / name, code=2)
        assert f"cannot write {str(tmp_path / name)!r}" in out
    out = call(command, "none.jsonl", option, tmp_path / "new.json", code=2)
    assert "cannot read the trace" in out
    assert not (tmp_path / "new.json").exists()
    (tmp_path / "old.json").write_text("kept")
    call(command, "none.jsonl", option, tmp_path / "old.json", code=2)
    assert (tmp_path / "old.json").read_text() == "kept"


def test_why_a_row_of_a_sweep_failed_stands_on_a_line_of_its_own(trace: Path) -> None:
    words = ("sweep", trace, "--budgets", "1MiB,60GiB", "--checkpoints", "leaf", "--int8", "off")
    lines = call(*words).splitlines()
    (why,) = [line for line in lines if "alone needs" in line]
    assert why.startswith("1MiB failed: the request on line 1 (")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_sweep_fits_the_terminal_and_names_rows_by_what_differs(
    trace: Path, columns: int
) -> None:
    words = ("sweep", trace, "--memory", "1MiB,60GiB", "--checkpoints", "leaf,branch-first:8192")
    lines = call(*words, "-s", "arrivals=on", columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert "In common: model=kimi-k3 arrivals=on" in lines
    (head,) = [line for line in lines if "restored" in line]
    assert head.split()[0] == "setup"
    assert "p95, s" in " ".join(lines)
    for name in ("memory=1MiB", "memory=60GiB", "checkpoints=leaf int8=on"):
        assert any(name in line for line in lines), name
    wide = [line for line in lines if "checkpoints=leaf int8=on" in line and "%" in line]
    assert len(wide[0].replace("*", "").split()) == 9  # two words of setup, seven figures


def test_advice_names_units_memory_and_what_each_change_costs(trace: Path) -> None:
    for objective, unit in (("ttft", "mean TTFT, s"), ("flops", "saved, PFLOP")):
        words = ("--memory", "60GiB", "--system", "SGLang", "--objective", objective)
        out = call("advise", trace, *words)
        assert unit in out
        assert "memory: 60GiB" in out
        assert "the defaults" in out
        assert "memory has no limit" not in out
    free = call("advise", trace, "--system", "vLLM", "--objective", "flops")
    assert "Warning: memory has no limit here" in free.replace("\n", " ")


def test_figures_for_people_have_no_exponent_and_keep_their_digits() -> None:
    from kdalab.lab.cells import significant

    shown = [significant(v) for v in (0, 0.000123, 0.1234, 36.0, 123.4, 123456.7)]
    assert shown == ["0", "0.000123", "0.123", "36.0", "123", "123,457"]


def test_a_class_that_a_policy_file_lacks_is_refused_before_the_board_runs(
    trace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    call("policy-template", file)
    out = call("leaderboard", trace, "--policy", f"{file}:Nope", code=2)
    assert "has no class 'Nope'; it has ShortestFirst, TailAndHalf" in out.replace("\n", " ")


def test_a_policy_that_fails_is_marked_on_the_board_and_says_why(
    trace: Path, tmp_path: Path
) -> None:
    file = tmp_path / "ends.py"
    file.write_text("import sys\nclass Mine:\n    def boundaries(self, *_):\n        sys.exit(3)\n")
    out = call("leaderboard", trace, "--policy", f"{file}:Mine", code=1)
    assert "Mine failed; the table says on which trace" in out
    assert "raised SystemExit: 3" in out.partition("failed on t.jsonl: ")[2].replace("\n", " ")
    assert out.index("leaf+branch, lru") < out.index("failed")


@pytest.mark.parametrize("name", ["--memory", "--budget"])
@pytest.mark.parametrize(
    "command",
    ["replay --made-up 5", "compare --made-up 5", "lab replay --made-up chat-like:5"],
)
def test_memory_has_one_name_in_every_command_and_the_other_still_works(
    command: str, name: str
) -> None:
    small = CliRunner().invoke(build_app(), [*command.split(), name, "1KiB", "--json"])
    assert small.exit_code == 2
    assert "No such option" not in small.output
    enough = CliRunner().invoke(build_app(), [*command.split(), name, "512GiB", "--json"])
    assert enough.exit_code == 0, enough.output


@pytest.mark.parametrize(
    "command",
    [
        "replay", "compare", "lab replay", "lab stats", "lab agree", "lab bounds --memory 8GiB",
        "lab leaderboard", "lab sweep --budgets 40GiB --checkpoints leaf",
    ],
)  # fmt: skip
def test_requests_are_made_up_by_one_name_in_every_command(command: str) -> None:
    def said(*words: str) -> str:
        done = CliRunner().invoke(build_app(), [*command.split(), *words, "--json"])
        assert done.exit_code == 0, done.output
        text = re.sub(r'"(\w*seconds|time)": [^,\n]*', "", done.output)
        return re.sub(r"chat-like, ", "", text)

    plain = said("--made-up", "30")
    assert plain == said("--synthetic", "30")
    assert plain != said("--made-up", "chat-like:30")


@pytest.mark.parametrize("text", ["0", "-5", "chat-like", "chat-like:", "x y", "9" * 30, "\u00b2"])
def test_a_number_of_requests_that_there_cannot_be_is_refused(text: str) -> None:
    for command in (["replay"], ["compare"], ["lab", "bounds"]):
        done = CliRunner().invoke(build_app(), [*command, f"--made-up={text}"])
        assert done.exit_code == 2
        assert "use N or PRESET:N" in done.output
        assert done.output.count("\n") == 1


def test_the_board_says_what_it_skipped_and_reads_what_the_others_read(
    trace: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "b.jsonl"
    broken.write_text(trace.read_text() + "null\n")
    out = call("leaderboard", trace, broken, "--memory", "24GiB", columns=80)
    assert "1 skipped; the first: line 81: null, not an object" in out
    assert "the mean over 2 traces ranks" in " ".join(out.split())
    assert "unusable" in call("leaderboard", broken, "--max-bad-lines", 0, code=2)
    assert "give a trace, or --made-up" in call("leaderboard", code=2)


def test_the_command_that_advice_prints_gives_what_it_promised(tmp_path: Path) -> None:
    file = write_synthetic(tmp_path / "a b.jsonl", 80)
    for words in (
        [str(file), "--limit", "60", "--block-tokens", "512"],
        ["--made-up", "chat-like:60", "--seed", "3"],
    ):
        asked = (*words, "--memory", "60GiB", "--system", "SGLang", "-s", "speed=2 decoded=on")
        (promised,) = json.loads(call("advise", *asked, "--json"))
        (line,) = [x for x in call("advise", *asked).splitlines() if "in the lab:" in x]
        command = line.partition(": ")[2]
        assert command == promised["command"]
        typed = shlex.split(command)
        assert typed[:3] == ["kdalab", "lab", "replay"]
        replayed = json.loads(call(*typed[2:], "--json"))
        assert replayed["requests"] == 60
        assert replayed["hit_tokens"] == promised["after"]["hit_tokens"]
        assert replayed["flops_saved"] == promised["after"]["flops_saved"]
        assert replayed["ttft_p95"] == promised["after"]["ttft_p95"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pd=recompute", "pd=recompute: advise is for one deployment"),
        ("arrivals=off", "arrivals=off: the objective ttft counts waiting"),
        ("cache=block", "cache=block: advise chooses it itself"),
        (
            "layout=packed",
            "layout=packed: advise chooses it itself; leave it out. To see what it "
            'does: lab replay ... -s "cache=block layout=packed"',
        ),
        ("chunk=4096", "chunk=4096: for SGLang advise chooses it itself"),
        ("write_through=1", "write_through=1 is of a host tier; add --host SIZE"),
        ("int8=off", "int8=off: advise chooses it itself"),
        ("checkpoints=leaf speed=2", "checkpoints=leaf: advise chooses it itself"),
        ("host=1GiB", "host=1GiB: advise takes it as --host"),
        ("decoded=on", "decoded=on is a setting of the radix cache; add --system SGLang"),
    ],
)
def test_advise_drops_no_setting_silently(trace: Path, words: str, said: str) -> None:
    out = call("advise", trace, "--memory", "60GiB", "-s", words, code=2)
    assert said in " ".join(out.split())


def test_settings_of_one_system_go_to_its_advice(trace: Path) -> None:
    words = ("advise", trace, "--memory", "60GiB", "--objective", "flops")
    out = call(*words, "--system", "vLLM", "--host", "1GiB", code=2)
    assert "--host: only SGLang's advice has a host tier; add --system SGLang" in out
    out = call(*words, "--system", "vLLM", "-s", "decoded=on", code=2)
    assert "decoded=on is a setting of the radix cache; add --system SGLang" in out
    (a,) = json.loads(call(*words, "--system", "vLLM", "-s", "chunk=4096", "--json"))
    assert "--max-num-batched-tokens 4096" in a["flags"]
    assert "chunk=4096" in a["command"]


@pytest.mark.parametrize("word", ["pd=off", "policy=none", "host=off"])
def test_advise_takes_a_setting_that_is_as_it_has_it(trace: Path, word: str) -> None:
    call("advise", trace, "--memory", "60GiB", "--system", "SGLang", "-s", f"{word} speed=2")


def own_policies(folder: Path) -> tuple[str, str]:
    """A placement and an eviction order of the template."""
    call("policy-template", folder / "mine.py")
    return f"{folder / 'mine.py'}:TailAndHalf", f"{folder / 'mine.py'}:ShortestFirst"


def test_a_policy_of_ones_own_stands_in_the_place_of_a_setting(tmp_path: Path, trace: Path) -> None:
    place, order = own_policies(tmp_path)
    for command in ("replay", "sweep", "report"):
        words = (command, trace, "-s", f"memory=60GiB policy={place} checkpoints=leaf")
        assert "TailAndHalf is the placement; leave checkpoints out" in call(*words, code=2)
    words = ("sweep", trace, "--memory", "60GiB", "--policy")
    for option in (
        ("--checkpoints", "leaf"),
        ("--interval", "4096"),
        ("--grid", "checkpoints=all"),
    ):
        assert "is the placement; leave checkpoints out" in call(*words, place, *option, code=2)
    assert "is the eviction order; use retention=lru" in call(
        *words, order, "--retention", "lru,marconi:1", code=2
    )
    found = json.loads(call(*words, place, "--json"))["rows"]
    assert [r["int8"] for r in found] == [False, True]  # and no placement beside one's own
    assert len(json.loads(call(*words, order, "--json"))["rows"]) == 8


def test_a_sweep_of_blocks_takes_what_blocks_have(trace: Path) -> None:
    words = ("sweep", trace, "--memory", "90GiB", "-s", "cache=block")
    for option in (("--checkpoints", "leaf"), ("--int8", "on")):
        assert f"{option[0]} is for cache=radix; leave it out here" in call(*words, *option, code=2)
    rows = json.loads(
        call(*words, "--interval", "6144,12288", "--retention", "lru,marconi:1", "--json")
    )["rows"]
    assert [(r["retention"], r["interval"]) for r in rows] == [
        ("lru", 6144), ("lru", 12288), ("marconi:1", 6144), ("marconi:1", 12288)
    ]  # fmt: skip
    assert len(json.loads(call(*words, "--json"))["rows"]) == 1


def test_a_placement_is_swept_once_however_it_is_spelt(trace: Path) -> None:
    words = ("--memory", "60GiB", "--int8", "off", "--json")
    rows = json.loads(call("sweep", trace, "--checkpoints", "leaf,LEAF,every:4096,every:4_096",
                           *words))["rows"]  # fmt: skip
    assert [r["checkpoints"] for r in rows] == ["leaf", "every:4096"]


def test_the_trace_is_never_written_over(tmp_path: Path, trace: Path) -> None:
    text = trace.read_text()
    for name, command, option in [
        ("t.json", "sweep", "--out"), ("t.json", "sweep", "--figure"), ("t.html", "report", "--out")
    ]:  # fmt: skip
        file = tmp_path / name
        file.write_text(text)
        link = tmp_path / f"{option[2:]}-{command}{file.suffix}"
        link.symlink_to(file)
        for out in (file, link):
            assert "is the trace itself; write to another" in call(
                command, file, option, out, code=2
            )
        assert file.read_text() == text


def test_the_board_has_its_own_policies_and_fails_if_none_runs(tmp_path: Path, trace: Path) -> None:
    place, _ = own_policies(tmp_path)
    words = ("leaderboard", trace, "--memory", "24GiB", "-s")
    assert "-s policy: use --policy" in call(*words, f"policy={place}", code=2)
    assert "-s cache: the rows of the board are of cache=radix" in call(
        *words, "cache=block", code=2
    )
    for word in ("checkpoints=leaf", "retention=marconi"):
        assert "each row of the board has its own" in call(*words, word, code=2)
    for more in ((), ("--json",)):
        out = call("leaderboard", trace, "--memory", "1MiB", *more, code=1)
        assert "no policy could be replayed; leaf, lru: the request on line 1" in out


def test_settings_that_a_replay_would_not_use_are_refused() -> None:
    words = ("replay", "--made-up", "chat-like:5", "-s")
    assert "chunk is a setting of cache=block; add" in call(*words, "chunk=17", code=2)
    assert "write_through is of a host tier" in call(*words, "write_through=1", code=2)
    call(*words, "write_through=1 host=1GiB memory=60GiB")


def test_a_grid_that_cannot_be_says_what_is_wrong_and_what_is_allowed(trace: Path) -> None:
    out = call("sweep", trace, "--grid", "speed=0", code=2)
    assert out == "kdalab: speed = 0; use 1e-06 or more\n"
    assert "use KEY=A,B,C, as speed=0.5,1" in call("sweep", trace, "--grid", "speed", code=2)
    assert "no value for speed; give one" in call("sweep", trace, "--grid", "speed=", code=2)


@pytest.mark.parametrize(
    "command", ["stats", "replay", "sweep", "advise", "report", "leaderboard", "agree", "bounds"]
)
def test_every_command_reads_its_trace_by_the_same_options(command: str) -> None:
    out = call(command, "--help")
    shown = [line.split()[1] for line in out.splitlines() if re.match(r"[|\u2502] --", line)]
    want = ["--made-up", "--seed", "--format", "--limit", "--max-bad-lines", "--block-tokens",
            "--share", "--gap", "--sort"]  # fmt: skip
    begin = [name.split(",")[0] for name in shown].index(want[0])
    assert [name.split(",")[0] for name in shown][begin : begin + len(want)] == want


def test_a_source_says_how_it_is_typed() -> None:
    assert Source("a b.jsonl", limit=7, sort=True, gap=2.5).words == (
        "'a b.jsonl' --limit 7 --gap 2.5 --sort"
    )
    assert Source(made_up="chat-like:9", seed=3).words == "--made-up chat-like:9 --seed 3"
    assert Source("t").words == "t"
    assert Source("-dash.jsonl").words == "./-dash.jsonl"
    assert Source("-").words == "-"
