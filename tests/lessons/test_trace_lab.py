"""The lab on a page: the same replays as the command's, told and stopped on the way."""

import json
import shlex

import pytest

from kdalab.errors import KdalabError
from kdalab.lab.advise import advise
from kdalab.lab.generate import CHAT, generate, generated_trace, shape, write_jsonl
from kdalab.lab.readers import open_trace
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import Setup
from kdalab.lessons.trace_lab import advise_command, built_in, flag_lines, play_lab

GIB = 1 << 30
SETUP = Setup(model="kimi-linear-48b", memory=8 * GIB)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    file = tmp_path_factory.mktemp("lab") / "x.jsonl"
    write_jsonl(file, generate(40, CHAT), 512)
    return open_trace(file).load()


@pytest.fixture(scope="module")
def run(trace):
    return play_lab(trace, SETUP, "flops", ("SGLang", "vLLM"))


def test_the_account_and_the_advice_are_those_of_the_lab(run, trace):
    wanted = replay_setup(trace, run.setup)
    assert (run.requests, run.account.hit_tokens) == (40, wanted.hit_tokens)
    here = [r for r in run.rows if r["setup"] == str(run.setup)]
    assert [r["hit_tokens"] for r in here] == [wanted.hit_tokens]
    assert all(row in run.rows for row in run.best)
    found = advise(trace, SETUP, "flops")
    assert [(a.system, a.setup, a.flags) for a in run.advice] == [
        (a.system, a.setup, a.flags) for a in found
    ]


def test_nothing_that_was_replayed_passes_its_yardsticks(run):
    bounds = {y.memory: y.bound for y in run.yardsticks}
    assert set(bounds) == {r["memory"] for r in run.rows}
    for row in [*run.rows, *(a.after for a in run.advice), *(a.before for a in run.advice)]:
        assert row["error"] or row["hit_tokens"] <= bounds[row["memory"]] <= run.known
    assert run.here is not None
    assert run.here.memory == SETUP.memory


def test_the_objective_of_time_runs_by_the_clock(trace):
    run = play_lab(trace, SETUP, "ttft", ("SGLang",))
    assert run.setup.arrivals
    assert all(r["error"] or r["arrivals"] for r in run.rows)
    assert [a.system for a in run.advice] == ["SGLang"]


def test_a_run_tells_where_it_is_and_stops_where_it_is_told(trace):
    heard = []

    class EnoughError(Exception):
        pass

    def at(what, done, total):
        heard.append((what, done, total))
        if what == "vLLM" and done == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        play_lab(trace, SETUP, "flops", ("SGLang", "vLLM"), at)
    assert list(dict.fromkeys(what for what, _, _ in heard)) == [
        "account", "sweep", "bounds", "SGLang", "vLLM",
    ]  # fmt: skip
    assert ("sweep", 24, 24) in heard
    assert heard[-1][:2] == ("vLLM", 3)


def test_a_memory_without_room_for_a_request_names_the_smallest(trace):
    small = Setup(model="kimi-k3", memory=1 << 20)
    with pytest.raises(KdalabError, match="The smallest budget that works"):
        play_lab(trace, small, "flops", ("SGLang",))
    with pytest.raises(KdalabError, match="without a limit"):
        play_lab(trace, Setup(), "flops", ("SGLang",))
    with pytest.raises(KdalabError, match="use one of agent-like"):
        built_in("nothing")


def test_a_built_in_trace_is_the_command_s_made_up_one():
    trace = built_in("agent-like")
    wanted = generated_trace(60, shape("agent-like"), 0)
    assert trace.requests == wanted.requests


def test_the_command_gives_what_the_page_shows(run, trace, tmp_path):
    from typer.testing import CliRunner

    from kdalab.cli.lab import app

    file = tmp_path / "it's mine; rm.jsonl"
    write_jsonl(file, trace.requests, 512)
    command = advise_command(str(file), SETUP, "flops", ("vLLM",), 40)
    words = shlex.split(command)
    assert words[:3] == ["kdalab", "lab", "advise"]
    assert words[3] == str(file)
    done = CliRunner().invoke(app, [*words[2:], "--json"])
    assert done.exit_code == 0, done.output
    (answer,) = json.loads(done.output)
    wanted = run.advice[1]
    assert answer["flags"] == list(wanted.flags)
    assert answer["after"]["hit_tokens"] == wanted.after["hit_tokens"]


def test_a_command_names_what_is_not_the_default():
    setup = Setup(model="kimi-k3", memory=256 * GIB, hardware="b200x8", arrivals=True)
    command = advise_command("-x.csv", setup, "flops", ("SGLang", "vLLM"))
    assert command == (
        "kdalab lab advise ./-x.csv --model kimi-k3 --memory 256GiB --objective flops "
        "--system both --set 'hardware=b200x8 arrivals=on'"
    )
    assert "arrivals" not in advise_command("x", setup, "ttft", ("SGLang",))


def test_flags_are_copied_as_arguments_and_the_rest_as_comments(run):
    lines = flag_lines(run.advice[0]).split("\n")
    assert all(line.startswith(("--", "# ")) for line in lines)
    flags = [line.removesuffix(" \\") for line in lines if line.startswith("--")]
    assert flags == [f for f in run.advice[0].flags if f.startswith("--")]
