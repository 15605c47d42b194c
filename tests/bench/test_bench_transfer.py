"""The bench of transfers: its arithmetic by hand, its measurements on small inputs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from kdalab.bench.transfer import break_even, bytes_by_kind, first_tokens, modelled, throughput
from kdalab.errors import KdalabError
from kdalab.spec import preset


def test_a_state_of_k3_is_as_large_as_16k_tokens_of_latent_kv() -> None:
    (row,) = bytes_by_kind(preset("kimi-k3"), [16_253])
    assert row.recurrent + row.conv == 449_372_160
    assert row.latent == 16_253 * 27_648
    assert abs(row.latent - row.recurrent - row.conv) < 27_648
    assert row.share == pytest.approx(0.5, abs=1e-4)
    assert row.total == row.latent + row.recurrent + row.conv


def test_at_the_break_even_both_take_as_long() -> None:
    fixed, token, wire = 449e6, 27_648.0, 1e9
    n = break_even(fixed, token, wire, 1e-4, 0.01, 1e-6, 0.002)
    shipped = 0.01 + fixed / wire + n * (1e-6 + token / wire)
    assert shipped == pytest.approx(0.002 + n * 1e-4)
    assert break_even(fixed, token, 1e8, 1e-4) == float("inf"), "the wire is slower than prefill"
    assert break_even(0, 1, 1e9, 1e-4) == 0


def test_a_faster_wire_pays_sooner() -> None:
    slow, fast = modelled(preset("kimi-k3"), [1e9, 1e10], 10_000)
    assert 0 < fast.value < slow.value
    with pytest.raises(KdalabError, match="above 0"):
        modelled(preset("kimi-k3"), [0.0])


def test_shipping_and_replaying_are_both_timed() -> None:
    figures = first_tokens((64, 128), (1e9,), 1)
    times = [f.value for f in figures if f.unit == "ms"]
    assert len(times) == 6
    assert all(t > 0 for t in times)
    assert any(f.group.startswith("break-even") for f in figures)


def test_bundles_are_measured_beside_a_copy() -> None:
    figures = {f.name: f for f in throughput((1,), 1)}
    assert figures["a copy of its bytes"].value > 0
    assert figures["read from memory, against the copy's time"].limit == 2.0
    assert figures["write a file, synced"].limit is None


def test_the_command_prints_json(monkeypatch: pytest.MonkeyPatch) -> None:
    from kdalab.bench import transfer as bench
    from kdalab.cli.bench import app

    monkeypatch.setattr(bench, "mooncake", lambda *_: [])
    done = CliRunner().invoke(app, ["transfer", "--quick", "--repeats", "1", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert set(data) == {"machine", "bytes_by_kind", "figures"}
    assert {"model", "tokens", "latent", "recurrent", "conv", "total", "share"} == set(
        data["bytes_by_kind"][0]
    )
