"""A replay under a setup: against the plain replays, against arithmetic, and within its memory."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from kdalab.cache import (
    BlockConfig,
    PrefillFlops,
    parse_block_retention,
    parse_placement,
    parse_retention,
)
from kdalab.errors import KdalabError
from kdalab.lab import Setup, Trace, TraceRequest, open_trace, replay, replay_setup, synthetic_trace
from kdalab.lab.block_replay import replay_blocks
from kdalab.lab.block_run import layout_for
from kdalab.lab.radix_run import RadixRun
from kdalab.spec import preset, state_sizes

SPEC = preset("kimi-k3")
SIZES = state_sizes(SPEC)
FLOPS = PrefillFlops.of(SPEC)
TRACE = synthetic_trace(200)
GIB = 1 << 30


def run(text: str = "", trace: Trace = TRACE, check_every: int = 10, **fields: Any):  # type: ignore[no-untyped-def]
    return replay_setup(trace, Setup.parse(text, Setup(**fields)), check_every=check_every)


@pytest.mark.parametrize("placement", ["leaf", "leaf+branch", "every:2048", "branch-first:4096"])
@pytest.mark.parametrize("retention", ["lru", "lru-path+cap:2"])
@pytest.mark.parametrize("memory", [None, 24 * GIB])
def test_without_a_clock_it_finds_what_the_plain_replay_finds(
    placement: str, retention: str, memory: int | None
) -> None:
    a = run(checkpoints=placement, retention=retention, memory=memory)
    kept = parse_retention(retention)
    b = replay(TRACE, SPEC, parse_placement(placement), memory, retention=kept)
    assert (a.hit_tokens, a.known_tokens, a.replayed_tokens) == (
        b.hit_tokens,
        b.known_tokens,
        b.replayed_tokens,
    )
    assert (a.states_written, a.reads, a.states_read_at_least_once) == (
        b.states_written,
        b.reads,
        b.states_read_at_least_once,
    )
    assert (a.evicted_kv_bytes, a.evicted_states, a.peak_bytes) == (
        b.evicted_kv_bytes,
        b.evicted_states,
        b.peak_bytes,
    )
    assert a.flops_saved > 0
    assert a.hit_tokens + a.replayed_tokens + a.new_tokens == a.input_tokens


@pytest.mark.parametrize("order", ["lru", "marconi:1.5"])
def test_blocks_find_what_the_plain_replay_of_blocks_finds(order: str) -> None:
    setup = Setup(cache="block", memory=60 * GIB, unit=512, retention=order)
    layout = layout_for(setup, 512)
    assert layout.groups[0].block_tokens % 512 == 0
    n = setup.memory // layout.stride  # type: ignore[operator]
    a = replay_setup(TRACE, setup, check_every=10)
    kept = parse_block_retention(order).bound(PrefillFlops.of(setup.spec), layout.stride)
    config = BlockConfig(layout.groups, n, unit=512, retention=kept, block_bytes=layout.stride)
    b = replay_blocks(TRACE, config, layout=layout)
    assert (a.hit_tokens, a.known_tokens, a.reads) == (b.hit_tokens, b.known_tokens, b.reads)
    groups = len(layout.groups) - 1  # one block in each state group is one checkpoint
    assert groups > 1
    assert a.states_written == -(-b.states_written // groups)
    assert a.evicted_states == -(-b.evicted_state_blocks // groups) > 0
    assert a.peak_bytes == b.peak_bytes
    assert a.kv_bytes + a.state_bytes == b.held_bytes


def test_bytes_of_states_in_blocks_come_in_stay_or_go() -> None:
    for memory in (None, 60 * GIB):
        a = run(cache="block", memory=memory, unit=512)
        left = a.state_bytes + a.evicted_state_bytes
        assert left <= a.state_bytes_written < left + a.checkpoint_bytes
        assert (
            a.assumptions[0] == f"hits are whole units of 512 tokens, in blocks of {block_tokens()}"
        )


def block_tokens() -> str:
    return f"{layout_for(Setup(cache='block', unit=512), 512).groups[0].block_tokens:,} tokens"


@pytest.mark.parametrize("interval", [0, None])
def test_a_memory_beyond_what_the_trace_can_fill_is_an_unlimited_one(interval: int | None) -> None:
    free, huge = (run(cache="block", memory=m, interval=interval) for m in (None, 10**33))
    assert huge.hit_tokens == free.hit_tokens > 0
    assert (huge.evicted_states, huge.evicted_kv_bytes) == (0, 0)
    assert (huge.peak_bytes, huge.states_written) == (free.peak_bytes, free.states_written)


def alone(n: int, gap_ms: float, tokens: int = 2_000, output: int = 100) -> Trace:
    """Requests that share nothing, ``gap_ms`` apart."""
    count = -(-tokens // 512)
    rows = [
        TraceRequest(
            i + 1, i * gap_ms, tokens, output, array("q", range(i * count, i * count + count))
        )
        for i in range(n)
    ]
    return Trace("alone", rows)


@pytest.mark.parametrize("gap_ms", [1.0, 50.0, 100.0])
def test_waits_are_those_of_a_single_queue(gap_ms: float) -> None:
    """Nothing is shared, so every wait follows from the arrivals and one service time."""
    setup = Setup(arrivals=True)
    a = run(trace=alone(40, gap_ms), arrivals=True)
    service = FLOPS.between(0, 2_000) / setup.rates.prefill_flops
    free, waits = 0.0, []
    for i in range(40):
        start = max(free, i * gap_ms / 1000)
        waits.append(start - i * gap_ms / 1000)
        free = start + service
    assert a.queue.mean == pytest.approx(sum(waits) / 40)
    assert a.queue.max == pytest.approx(max(waits))
    assert a.ttft.mean == pytest.approx(sum(waits) / 40 + service)
    assert a.busy == pytest.approx(40 * service)
    decode = setup.rates.decode_s * 99
    assert a.makespan == pytest.approx(free + decode)
    assert (a.hit_tokens, a.flops_saved, a.waited) == (0, 0, 0)
    # As many run at once as start while the first still decodes.
    starts = [i * gap_ms / 1000 + w for i, w in enumerate(waits)]
    ends = [s + service + decode for s in starts]
    most = max(sum(1 for e in ends[: i + 1] if e > s) for i, s in enumerate(starts))
    assert a.peak_in_flight == most


def test_what_runs_takes_room_and_waits_for_it() -> None:
    """Room for three requests at once: the fourth starts when the first has ended."""
    trace = alone(8, 1.0, tokens=1_024, output=512)
    pages = 3 * SIZES.latent_bytes(512)
    each = pages + SIZES.checkpoint_bytes
    a = run(trace=trace, arrivals=True, memory=3 * each + 1, check_every=1)
    assert a.peak_in_flight == 3
    assert a.waited >= 2  # the fourth and the seventh, for the first and the fourth
    assert a.peak_bytes <= 3 * each + 1
    assert a.skipped_commits > 0  # no room for checkpoints beside what runs
    free = run(trace=trace, arrivals=True)
    assert free.waited == 0
    decode = Setup().rates.decode_s * 511
    assert a.makespan == pytest.approx(3 * decode, rel=0.1)  # three rounds of three
    assert free.makespan == pytest.approx(decode, rel=0.2)
    assert free.peak_in_flight == 8
    with pytest.raises(
        KdalabError, match=r"the request on line 1 .1,024 tokens in, 512 out. alone"
    ):
        run(trace=trace, arrivals=True, memory=each - 1)


@pytest.mark.parametrize(
    "text",
    [
        "memory=24GiB arrivals=on",
        "memory=24GiB arrivals=on int8=on",
        "memory=40GiB arrivals=on split=0.9",
        "memory=40GiB arrivals=on split=2 int8=on retention=lru+cap:2",
        "memory=24GiB arrivals=on host=64GiB",
        "memory=24GiB host=8GiB write_through=1 checkpoints=every:2048",
        "memory=24GiB arrivals=on pd=ship",
        "memory=24GiB pd=recompute",
        "memory=24GiB retention=marconi:1",
        "memory=24GiB retention=marconi",
    ],
)
def test_every_setup_keeps_its_memory_and_its_sums(text: str) -> None:
    setup = Setup.parse(text)
    a = replay_setup(TRACE, setup, check_every=1)
    assert setup.memory is not None
    assert 0 < a.peak_bytes <= setup.memory
    assert 0 < a.hit_tokens <= a.known_tokens + a.host_bytes_read <= a.input_tokens + 2**60
    assert a.requests == 200
    assert 0 <= a.states_read_at_least_once <= a.states_written
    assert all(s.kv + s.state + s.private <= setup.memory for s in a.over_time)
    assert all(s.host <= setup.host for s in a.over_time)
    assert a.ttft.p50 <= a.ttft.p95 <= a.ttft.p99 <= a.ttft.max
    again = replay_setup(TRACE, setup)
    assert again.row() | {"seconds": 0} == a.row() | {"seconds": 0}


@pytest.mark.parametrize("memory", [None, 1.0, 1.3, 4.0, 20.0])
@pytest.mark.parametrize("text", ["checkpoints=all", "checkpoints=every:1024 arrivals=on speed=9"])
def test_checkpoints_left_in_one_go_are_those_left_one_by_one(
    memory: float | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every figure of the account, the peak and the course over time too."""
    if memory is not None:
        longest = max(r.input_tokens + r.output_tokens for r in TRACE) + 512
        need = SIZES.latent_bytes(longest) + 2 * SIZES.checkpoint_bytes
        text += f" memory={int(need * memory)}"
    together = run(text).as_dict()
    monkeypatch.setattr(RadixRun, "_commit_rest", lambda *_: False)
    single = run(text).as_dict()
    assert {**together, "seconds": 0} == {**single, "seconds": 0}


def test_int8_checkpoints_weigh_less_and_so_more_of_them_stay() -> None:
    native, packed = run(memory=24 * GIB), run(memory=24 * GIB, int8=True)
    assert native.checkpoint_bytes == SIZES.checkpoint_bytes
    assert packed.checkpoint_bytes == SIZES.checkpoint_int8_bytes
    assert packed.hit_tokens > native.hit_tokens
    assert run(int8=True).hit_tokens == run().hit_tokens  # without a limit it is the same


def test_a_host_tier_gives_back_what_left_the_device() -> None:
    without = run(memory=12 * GIB)
    with_host = run(memory=12 * GIB, host=200 * GIB, write_through=1)
    assert with_host.hit_tokens > without.hit_tokens
    assert with_host.host_hits > 0
    assert with_host.host_bytes_read > 0
    assert with_host.host_bytes <= 200 * GIB
    slow = run(memory=12 * GIB, host=200 * GIB, write_through=1, host_bandwidth=10**9)
    assert slow.ttft.mean > with_host.ttft.mean
    moved = with_host.host_bytes_read / 200 * (1 / 1e9 - 1 / Setup().rates.host_bytes)
    assert slow.ttft.mean - with_host.ttft.mean == pytest.approx(moved)


def test_a_decode_side_gets_one_state_a_request_or_computes_again() -> None:
    trace = alone(10, 100.0)
    ship, recompute = run(trace=trace, pd="ship"), run(trace=trace, pd="recompute")
    assert ship.sent_state_bytes == 10 * SIZES.checkpoint_bytes
    assert ship.sent_kv_bytes == 10 * SIZES.latent_bytes(2_000)
    assert recompute.decode_side_flops == 10 * FLOPS.between(0, 2_000)
    assert recompute.sent_state_bytes == 0
    own = run(trace=trace)
    sent = (SIZES.checkpoint_bytes + SIZES.latent_bytes(2_000)) / Setup().rates.network_bytes
    assert ship.ttft.mean == pytest.approx(own.ttft.mean + sent)
    assert recompute.ttft.mean == pytest.approx(2 * own.ttft.mean)


def test_output_enters_the_cache_where_its_ids_are_known(tmp_path: Path) -> None:
    first, answer = list(range(200)), list(range(900, 1000))
    rows = [
        {"session_id": 0, "turn_id": i, "ts": i, "input_tokens": p, "output_tokens": answer}
        for i, p in enumerate([first, first + answer + [5] * 40])
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    trace = open_trace(path).load()
    assert run(trace=trace).hit_tokens == 192  # whole blocks of the first prompt
    a = run(trace=trace, decoded=True, check_every=1)
    assert a.hit_tokens == 256  # and of its output: 300 tokens in blocks of 64
    assert a.states_written == run(trace=trace).states_written + 2


def test_settings_that_this_trace_rules_out_are_refused() -> None:
    for text, message in [
        ("checkpoints=every:700", "checkpoint interval 700"),
        (
            "cache=block block=700",
            r"for 512 tokens each.* from 6,144 up \(near here: 6,144; l",
        ),
        (
            "cache=block block=1024",
            r"state of 6.21 MiB; .* from 6,144 up .*packed takes 512",
        ),
        ("cache=block block=7000", r"stand for 512 tokens each.*\(near here: 7,168; "),
        ("cache=block block=700 layout=packed", r"each; use .* from 512 up \(near here: 512\)"),
        ("cache=block unit=128", "a match unit of 128 tokens"),
        ("cache=block memory=200MiB", "use smaller blocks"),
        ("cache=block memory=1GiB", "does not fit 6 blocks of 6,144 tokens; give more"),
        ("cache=block interval=100 memory=600GiB", "retention interval 100"),
        ("memory=1MiB", r"the request on line 1 \(.* alone needs"),
    ]:
        with pytest.raises(KdalabError, match=message):
            run(text)


@pytest.mark.parametrize("words", ["block=6144", "block=7168", "block=512 layout=packed"])
def test_a_block_that_a_refusal_names_is_taken(words: str) -> None:
    assert run(f"cache=block memory=600GiB {words}").requests
