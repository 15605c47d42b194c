"""Policies of one's own: they work as written, and what goes wrong is named."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kdalab.errors import KdalabError
from kdalab.lab import Setup, replay_setup, synthetic_trace
from kdalab.lab.board import leaderboard
from kdalab.lab.policies import TEMPLATE, PolicyError

TRACE = synthetic_trace(120)
MEMORY = 16 << 30

SAME_AS_LEAF = """
class Mine:
    def boundaries(self, n_tokens, restore, branching, grid):
        end = n_tokens // grid * grid
        return (end,) if end > restore else ()
"""
SAME_AS_LRU = """
class Mine:
    def leaf(self, nodes):
        return next(iter(nodes.values()), None)
    state = leaf
    def leaf_first(self, leaf, state):
        return leaf.kv_used < state.state_used
"""


def policy(tmp_path: Path, text: str, name: str = "Mine") -> str:
    file = tmp_path / "policy.py"
    file.write_text(text)
    return f"{file}:{name}"


def test_a_policy_written_like_a_built_in_one_does_the_same(tmp_path: Path) -> None:
    leaf = replay_setup(TRACE, Setup(memory=MEMORY, checkpoints="leaf"))
    mine = Setup(memory=MEMORY, policy=policy(tmp_path, SAME_AS_LEAF))
    assert replay_setup(TRACE, mine).hit_tokens == leaf.hit_tokens
    lru = replay_setup(TRACE, Setup(memory=MEMORY))
    mine = Setup(memory=MEMORY, policy=policy(tmp_path, SAME_AS_LRU))
    found = replay_setup(TRACE, mine, check_every=5)
    assert (found.hit_tokens, found.evicted_states) == (lru.hit_tokens, lru.evicted_states)
    assert found.evicted_states > 0


@pytest.mark.parametrize("name", ["TailAndHalf", "ShortestFirst"])
def test_the_template_runs_as_it_is(tmp_path: Path, name: str) -> None:
    text = policy(tmp_path, TEMPLATE.format(file="f.py"), name)
    account = replay_setup(TRACE, Setup(memory=MEMORY, policy=text), check_every=5)
    assert account.hit_tokens > 0


RAISES = """
class Mine:
    def boundaries(self, n_tokens, *_):
        return [] if 1 // (n_tokens < {}) else ()
"""
WRONG = [
    (
        RAISES.format(8_000),
        r"policy.py:Mine: boundaries\(n_tokens=.* raised ZeroDivisionError: .*, at the request on "
        r"line \d+",
    ),
    (
        "class Mine:\n    def boundaries(self, n, *_):\n        return [100]",
        "answered 100; allowed: ascending multiples of grid",
    ),
    (
        SAME_AS_LRU.replace("next(iter(nodes.values()), None)", "list(nodes.values())[-1]"),
        "which has descendants|answered",
    ),
    (SAME_AS_LRU.replace("next(iter(nodes.values()), None)", "7"), "answered 7; allowed: one of"),
    (
        SAME_AS_LRU.replace("leaf.kv_used < state.state_used", "leaf.age"),
        r"leaf_first\(.*raised AttributeError",
    ),
]


ODD = """
import sys
class Odd:
    def __bool__(self): raise ValueError("no truth")
    def __repr__(self): raise ValueError("no repr")
    def __str__(self): raise ValueError("no text")
    @property
    def id(self): raise ValueError("no id")
class Unsaid(Exception):
    def __str__(self): raise ValueError
class Mine:
    def boundaries(self, n_tokens, restore, branching, grid):
"""
ODD_ORDER = ODD[: ODD.index("class Mine")] + SAME_AS_LRU
NEXT = "next(iter(nodes.values()), None)"
WRONG += [
    (
        ODD + "        sys.exit(3)",
        r"boundaries\(n_tokens=.* raised SystemExit: 3, at the request on",
    ),
    (ODD + "        raise Unsaid", r"boundaries\(.* raised Unsaid, at the request on line \d"),
    (ODD + "        return [Odd()]", "answered a Odd without a repr; allowed: ascending"),
    (
        ODD + "        while True: yield (restore := restore + grid)",
        r"boundaries\(.* answered \d+; a",
    ),
    (ODD + "        while True: yield grid", r"boundaries\(.* answered \d+; allowed: ascending"),
    (ODD_ORDER.replace(NEXT, "Odd()"), r"leaf\(.* raised ValueError: no id, at the request on"),
    (
        ODD_ORDER.replace(NEXT, "nodes.clear()"),
        r"leaf\(\S+ nodes\) raised AttributeError: 'NodesView",
    ),
    (
        ODD_ORDER.replace("leaf.kv_used < state.state_used", "Odd()"),
        r"leaf_first\(.* answered a Odd without a repr; allowed: True or False",
    ),
]


FIRST = "leaf.kv_used < state.state_used"
WRONG += [
    (SAME_AS_LRU.replace(FIRST, "'x'"), r"leaf_first\(.* answered 'x'; allowed: True or False, at"),
    (SAME_AS_LRU.replace(FIRST, "None"), r"answered None \(NoneType\); allowed: True or False"),
    (SAME_AS_LRU.replace(FIRST, "1"), r"answered 1; allowed: True or False"),
    (
        SAME_AS_LEAF.replace("(end,)", "(float(end),)"),
        r"answered \d+\.0 \(float\); .*whole numbers",
    ),
    (SAME_AS_LEAF.replace("(end,)", "(True,)"), r"answered True; allowed: ascending"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_a_policy_does_wrong_names_call_and_request(
    tmp_path: Path, text: str, message: str
) -> None:
    setup = Setup(memory=MEMORY, policy=policy(tmp_path, text))
    with pytest.raises(PolicyError, match=message):
        replay_setup(TRACE, setup)


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    for text, name, message in [
        ("class Mine: pass", "Mine", "is no policy; a placement has boundaries"),
        ("class Mine:\n    def __init__(self, x): pass", "Mine", "cannot be made without"),
        ("1 // 0", "Mine", "cannot be loaded: ZeroDivisionError"),
        ("raise SystemExit(3)", "Mine", "cannot be loaded: SystemExit: 3"),
        ("", "Mine", "has no class 'Mine'; it has none"),
    ]:
        with pytest.raises(KdalabError, match=message):
            replay_setup(TRACE, Setup(policy=policy(tmp_path, text, name)))
    with pytest.raises(KdalabError, match=r"use FILE.py:Class"):
        replay_setup(TRACE, Setup(policy="os.system"))
    with pytest.raises(KdalabError, match="there is no file"):
        replay_setup(TRACE, Setup(policy="none.py:Mine"))


@pytest.mark.parametrize(
    "change",
    [
        "node.pages = ()", "node.state = None", "node.parent = node", "node.children.clear()",
        "node.children[b''] = node", "node.parent.children.popitem()", "del node.children",
    ],
)  # fmt: skip
def test_a_policy_that_changes_nodes_is_named(tmp_path: Path, change: str) -> None:
    text = SAME_AS_LRU.replace(
        "return next", f"for node in nodes.values(): {change}\n        return next"
    )
    setup = Setup(memory=MEMORY, policy=policy(tmp_path, text))
    with pytest.raises(PolicyError, match=r"Mine: (leaf|state)\(.* raised .*line \d"):
        replay_setup(TRACE, setup)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    for plain, text in (
        (SAME_AS_LEAF, "import numpy\n" + SAME_AS_LEAF.replace("(end,)", "numpy.array([end])")),
        (SAME_AS_LRU, "import numpy\n" + SAME_AS_LRU.replace(FIRST, f"numpy.bool_({FIRST})")),
    ):
        want = replay_setup(TRACE, Setup(memory=MEMORY, policy=policy(tmp_path, plain)))
        got = replay_setup(TRACE, Setup(memory=MEMORY, policy=policy(tmp_path, text)))
        assert (got.hit_tokens, got.evicted_states) == (want.hit_tokens, want.evicted_states)


def test_a_policy_that_never_answers_ends_with_an_interrupt(tmp_path: Path) -> None:
    text = policy(
        tmp_path,
        SAME_AS_LEAF.replace(
            "end =", "print('on', flush=True)\n        while 1: pass\n        end ="
        ),
    )
    # A process started in the background of a shell has the interrupt ignored: take it back.
    begin = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kdalab.cli.main import run; run()"
    )
    words = [sys.executable, "-c", begin, "lab", "replay", "--made-up", "20", "--policy", text]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            assert run.stderr.readline() == "on\n"
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode not in (0, None)
    assert "Traceback" not in said


def test_what_a_policy_prints_leaves_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "print('loaded')\n" + SAME_AS_LEAF.replace(
        "        end =", "        print(1)\n        end ="
    )
    replay_setup(synthetic_trace(5), Setup(policy=policy(tmp_path, text)))
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "loaded\n" + "1\n" * 5)


def test_the_board_ranks_by_work_saved_and_keeps_who_failed(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(SAME_AS_LEAF)
    bad.write_text(RAISES.format(0))
    ends = tmp_path / "ends.py"
    ends.write_text(ODD + "        sys.exit(3)")
    names = [f"{good}:Mine", f"{bad}:Mine", f"{ends}:Mine"]
    entries = leaderboard([TRACE, synthetic_trace(60, 1)], Setup(memory=MEMORY), names)
    means = [e.mean for e in entries]
    assert means == sorted(means, reverse=True)
    by_name = {e.name: e for e in entries}
    assert by_name[names[0]].saved == by_name["leaf, lru"].saved
    assert by_name[names[1]].mean == 0.0
    assert "ZeroDivisionError" in by_name[names[1]].errors[0]
    assert "raised SystemExit: 3" in by_name[names[2]].errors[1]
