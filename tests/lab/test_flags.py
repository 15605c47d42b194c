"""Flags of one recommendation go together: SGLang starts with what is printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kdalab.errors import KdalabError
from kdalab.lab import Setup
from kdalab.lab.advise import Advice, advise, at_an_end
from kdalab.lab.flags import describe, own_policy, sglang, sglang_flags, vllm
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
    assert both[-3:-1] == [
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


@pytest.mark.parametrize(
    ("text", "sglang_says", "vllm_says"),
    [
        ("kv_dtype=fp8", "--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype fp8_e4m3"),
        ("state_dtype=bf16", "--mamba-ssm-dtype bfloat16", "--mamba-ssm-cache-dtype bfloat16"),
        ("kv_dtype=int8", "(no flag of SGLang for kv_dtype=int8", "(no flag of vLLM for kv_dtype"),
    ],
)
def test_a_type_that_is_not_the_models_has_its_flag(
    text: str, sglang_says: str, vllm_says: str
) -> None:
    base = Setup.parse(f"memory=80GiB {text}")
    assert sglang_says in " ".join(describe(base, 512))
    assert vllm_says in " ".join(describe(vllm(base, 512).default, 512))
    none = Setup.parse("memory=80GiB")
    assert "dtype" not in " ".join([*describe(none, 512), *describe(vllm(none, 512).default, 512)])


def test_uses_before_a_copy_to_the_host_are_a_write_policy_where_sglang_has_one() -> None:
    def said(text: str) -> str:
        return " ".join(sglang_flags(Setup.parse(f"memory=80GiB {text}")))

    assert "--hicache-write-policy write_through_selective" in said("host=80GiB")
    assert said("host=80GiB write_through=1").endswith("--hicache-write-policy write_through")
    assert "(no flag of SGLang for write_through=3" in said("host=80GiB write_through=3")
    assert "write-policy" not in said("")


def test_advice_starts_from_a_setup_of_either_cache() -> None:
    blocks = Setup.parse("cache=block block=8192 mode=all chunk=4096 memory=80GiB speed=2")
    radix = Setup.parse("memory=80GiB speed=2 int8=on host=1GiB write_through=1")
    for host in (0, 1 << 30):
        assert sglang(blocks, host).default == sglang(Setup.parse("memory=80GiB speed=2")).default
        assert vllm(radix, 512, host).default == vllm(replace(blocks, chunk=8192), 512).default
    assert vllm(blocks, 512).default.chunk == 4096
    assert own_policy(blocks, "a.py:B").default.speed == 2
    assert "blocks have no host tier" in " ".join(vllm(radix, 512, 1).limits)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("checkpoints=branch-first:32768", "checkpoints=branch-first:32768 is the largest that"),
        ("checkpoints=branch-first:2048 split=0.5 memory=1GiB", "branch-first:2048 is the smalle"),
        ("checkpoints=branch-first:8192 split=4 memory=1GiB", "split=4.0 is the largest that was"),
        ("checkpoints=branch-first:8192", ""),
        ("checkpoints=leaf", ""),
    ],
)
def test_a_value_at_the_end_of_those_tried_is_named(text: str, said: str) -> None:
    found = at_an_end(Setup.parse(text), sglang(Setup(memory=1 << 30)).knobs)
    assert said in "; ".join(found)
    assert len(found) == bool(said)
