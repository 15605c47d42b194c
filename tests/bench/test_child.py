"""The peak memory of a measured command is its own."""

import sys

import pytest

from kdalab.bench.lab import _process


def _peak(code: str) -> int:
    return _process([sys.executable, "-S", "-c", f"{code}; print('{{}}')"]).peak_rss


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak as Linux counts it")
def test_a_large_parent_does_not_raise_a_commands_peak() -> None:
    held = bytearray(b"x" * (256 << 20))
    peak = _peak("pass")
    assert 4 << 20 < peak < 60 << 20
    assert len(held) == 256 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak as Linux counts it")
def test_what_a_command_holds_is_in_its_peak() -> None:
    assert 128 << 20 < _peak("x = b'x' * (128 << 20)") < 190 << 20
