"""One setup, one text form: what is written is what is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.lab import Setup

RADIX = {
    "checkpoints": st.sampled_from(["leaf", "every:4096", "leaf+branch", "branch-first:8192"]),
    "retention": st.sampled_from(["lru", "lru-path+cap:3", "marconi", "marconi:0.5+cap:2"]),
    "memory": st.integers(1, 2**45),
    "split": st.none() | st.floats(0.01, 50),
    "int8": st.booleans(),
    "host": st.integers(0, 2**45),
    "decoded": st.booleans(),
    "pd": st.sampled_from(["off", "ship", "recompute"]),
    "policy": st.none() | st.just("my file.py:Mine"),
}
BLOCK = {
    "cache": st.just("block"),
    "retention": st.sampled_from(["lru", "marconi", "marconi:0.5"]),
    "memory": st.none() | st.integers(1, 2**45),
    "interval": st.none() | st.integers(0, 2**20),
    "unit": st.none() | st.integers(1, 4096),
    "mode": st.sampled_from(["align", "all", "none"]),
    "chunk": st.integers(1, 65536),
}
TIME = {
    "model": st.sampled_from(["kimi-k3", "tiny"]),
    "kv_dtype": st.none() | st.just("fp8"),
    "arrivals": st.booleans(),
    "speed": st.floats(0.01, 100),
    "hardware": st.sampled_from(["h200x16", "b200x8"]),
    "decode_seconds": st.none() | st.floats(0, 1),
    "prefill_flops": st.none() | st.floats(1e9, 1e18),
}


@given(st.fixed_dictionaries(RADIX | TIME) | st.fixed_dictionaries(BLOCK | TIME))
def test_the_text_form_gives_the_same_setup(fields: dict[str, Any]) -> None:
    setup = Setup(**fields)
    assert Setup.parse(str(setup)) == setup


def test_the_default_is_short_and_changes_stand_on_it() -> None:
    assert str(Setup()) == "model=kimi-k3"
    base = Setup.parse("memory=256GiB int8=on")
    assert base.memory == 256 << 30
    assert Setup.parse(["checkpoints=leaf"], base) == Setup(
        memory=256 << 30, int8=True, checkpoints="leaf"
    )
    assert Setup.parse("memory=unlimited", base).memory is None
    assert Setup.parse("cache=block interval=dense") == Setup(cache="block", interval=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory", "'memory' is no setting; use KEY=VALUE with model"),
        ("memroy=1GiB", "'memroy=1GiB' is no setting"),
        ("memory=lots", "is not a number of bytes"),
        ("int8=maybe", "int8=maybe; use on or off"),
        ("cache=tree", "cache = 'tree'; allowed: radix, block"),
        ("checkpoints=sometimes", "unknown checkpoint placement"),
        ("retention=fifo", "unknown retention 'fifo'; allowed: lru, lru-path, marconi"),
        ("retention=marconi:-1", "unknown retention"),
        ("retention=marconi+cap:0", "unknown retention"),
        ("cache=block int8=on", "int8 is a setting of cache=radix"),
        ("cache=block retention=lru-path", "use lru, marconi or marconi:ALPHA here"),
        ("cache=block retention=marconi+cap:2", "use lru, marconi or marconi:ALPHA here"),
        ("interval=4096", "interval is a setting of cache=block; add cache=block"),
        ("split=0.9", "give memory="),
        ("split=nan memory=1GiB", "split=nan; use a number of 0.001 to 1,000"),
        ("prefill_flops=inf", "prefill_flops=inf; use a number of 1e+06 to 1e+24"),
        ("interval=x", "interval=x; use a whole number, 0 or more"),
        ("host=x", "host=x: 'x' is not a number of bytes"),
        ("network_bandwidth=x", "network_bandwidth=x: 'x' is not a number of bytes"),
        ("kv_dtype=", "kv_dtype= has no value; leave it out for model"),
        ("speed=0", "speed = 0; use 1e-06 or more"),
        ("speed=1e-308", "speed = 1e-308; use 1e-06 or more"),
        ("prefill_flops=1e-300", "prefill_flops = 1e-300; use 1e+06 or more"),
        ("arrivals=on arrivals=off", "arrivals is given twice, as on and as off"),
        ("hardware=abacus", "unknown hardware 'abacus'; allowed: h100x8"),
        ("write_through=0", "write_through = 0; use 1 or more"),
        ("'memory=1", "No closing quotation"),
    ],
)
def test_what_a_setup_cannot_be_is_said(text: str, message: str) -> None:
    with pytest.raises(KdalabError) as error:
        Setup.parse(text)
    assert message in str(error.value)
