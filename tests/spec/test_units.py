"""Sizes are read and written the way people do, to the exact byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.spec import canonical_dtype, itemsize
from kdalab.units import (
    format_bytes,
    format_exact_bytes,
    format_seconds,
    format_tokens,
    parse_bytes,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("256GiB", 256 * 2**30),
        ("256 gib", 256 * 2**30),
        ("1.5MB", 1_500_000),
        ("0.5KiB", 512),
        ("4096", 4096),
        ("1,024 B", 1024),
        (7, 7),
        ("1.01MiB", 1_059_062),
        ("0.1TiB", 109_951_162_778),
        ("5 parsecs", None),
        ("-1", None),
        (-1, None),
        ("", None),
        ("1.2.3", None),
        ("0.3B", None),
    ],
)
def test_bytes_are_parsed_exactly_or_refused(text, count):
    if count is None:
        with pytest.raises(KdalabError):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [("4k", 4096), ("4096", 4096), ("1M", 2**20), ("1_000", 1000), ("0.5k", 512), (64, 64)],
)
def test_tokens_are_parsed(text, count):
    assert parse_tokens(text) == count


def test_token_error_names_what_is_allowed():
    with pytest.raises(KdalabError, match="4k \\(4,096\\)"):
        parse_tokens("four")


def test_formats():
    assert format_bytes(434_110_464) == "414.00 MiB"
    assert format_bytes(768) == "768 B"
    assert format_bytes(3_681_256_734_720) == "3.35 TiB"
    assert format_bytes(-2048) == "-2.00 KiB"
    assert format_exact_bytes(434_110_464) == "434,110,464 B"
    assert format_tokens(16_253) == "16,253 tokens"
    assert format_tokens(1) == "1 token"
    assert [format_seconds(s) for s in (2, 0.0125, 3e-6)] == ["2.00 s", "12.50 ms", "3.00 µs"]


@given(st.integers(0, 2**20), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_what_is_written_can_be_read_back(count, unit):
    size = parse_bytes(f"{count}{unit}")
    shown = parse_bytes(format_bytes(size))
    assert abs(shown - size) <= size * 0.01


def test_dtypes_by_every_spelling():
    assert itemsize("torch.bfloat16") == itemsize("bf16") == 2
    assert canonical_dtype("FP8") == "fp8_e4m3"
    assert [itemsize(d) for d in ("fp32", "fp16", "int8", "fp64")] == [4, 2, 1, 8]
    with pytest.raises(KdalabError, match="use one of fp64, fp32"):
        itemsize("int3")
