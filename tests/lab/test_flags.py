"""Flags of one recommendation go together: SGLang starts with what is printed."""

from __future__ import annotations

import pytest

from kdalab.errors import KdalabError
from kdalab.lab import Setup
from kdalab.lab.advise import Advice, advise
from kdalab.lab.flags import describe, sglang_flags, vllm
from kdalab.lab.generate import PRESETS, generated_trace

INT8 = "--enable-int8-mamba-checkpoint"
TRACE = generated_trace(150, PRESETS["chat-like"], 0)


@pytest.fixture(scope="module")
def advice() -> Advice:
    # Without the restriction this trace is served best by INT8 in one pool, with a host tier.
    base = Setup(memory=20 << 30)
    return advise(TRACE, base, "flops", host=64 << 30, systems=["SGLang"])[0]


def test_no_recommendation_combines_what_sglang_refuses(advice: Advice) -> None:
    setup = Setup.parse(advice.setup)
    assert not (setup.int8 and (setup.split is None or setup.host))
    text = " ".join(advice.flags)
    assert (INT8 in text) is setup.int8
    assert not (INT8 in text and "--enable-unified-memory" in text)
    assert not (INT8 in text and "--enable-hierarchical-cache" in text)
    assert any("INT8 checkpoints go with a fixed split" in line for line in advice.assumptions)


def test_a_value_that_does_not_go_with_the_rest_says_what_else_it_changes(advice: Advice) -> None:
    setup = Setup.parse(advice.setup)
    changed = {(n.setting, n.value) for n in advice.neighbours}
    if setup.int8:
        assert ("host", f"{64 << 30} with int8=off") in changed
        assert ("split", "off with int8=off") in changed
    else:
        also = [v for s, v in changed if s == "int8" and v.startswith("on")]
        wanted = ["split=0.9"] if setup.split is None else []
        wanted += ["host=off"] if setup.host else []
        assert also == [f"on with {' '.join(wanted)}" if wanted else "on"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("memory=80GiB int8=on", "no INT8 checkpoints under unified memory"),
        ("memory=80GiB int8=on host=1TiB", "no INT8 checkpoints under unified memory"),
        ("memory=80GiB int8=on split=0.9 host=1TiB", "--enable-hierarchical-cache together"),
        ("int8=on host=1TiB", "--enable-hierarchical-cache together"),
    ],
)
def test_settings_that_sglang_does_not_start_with_have_no_flags(text: str, why: str) -> None:
    with pytest.raises(KdalabError, match=why):
        sglang_flags(Setup.parse(text))


def test_settings_that_go_together_keep_their_flags() -> None:
    assert INT8 in sglang_flags(Setup.parse("memory=80GiB int8=on split=0.9"))
    assert "--enable-unified-memory" in sglang_flags(Setup.parse("memory=80GiB"))
    both = sglang_flags(Setup.parse("memory=80GiB host=80GiB"))
    assert both[-2:] == [
        "--enable-unified-memory",
        "--enable-hierarchical-cache --hicache-ratio 1.00",
    ]


def test_no_flag_of_vllm_is_made_up_for_an_order_that_it_does_not_have() -> None:
    blocks = Setup.parse("memory=20GiB cache=block retention=marconi:0.5 interval=0")
    told = describe(blocks, 512)
    assert told[-1] == "(no flag of vLLM for marconi:0.5: its one queue is least recent use)"
    assert not any("marconi" in flag for flag in told[:-1])
    assert [*told[:-1]] == describe(Setup.parse("retention=lru", blocks), 512)
    system = vllm(blocks, 512)
    assert system.default.retention == "lru"
    assert "retention" not in system.knobs
