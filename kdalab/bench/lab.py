"""The lab's speed: KV-only sweeps beside kvcache-simulator, agents at the size of a day, live use.

Sweeps and replays run as whole processes, ours and the peer's in turn, so that starting Python and
reading the trace count for both; time and peak memory are what the system reports of them. The
live replay is timed inside this process, where a page has read its trace long before.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from kdalab.bench.lab_trace import AgentTrace
from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lab import read_mooncake, write_synthetic
from kdalab.lab.live import LiveReplay
from kdalab.spec import preset

DEFAULT_REQUESTS, DEFAULT_TOKENS = 46_000, 118_000
TARGET_TIMES_PYTHON = 4.0
TARGET_AGENT_SWEEP_S, TARGET_AGENT_REPLAY_S, TARGET_RSS = 100.0, 60.0, 2 << 30
TARGET_LIVE_S = 0.3
LIVE_BUDGETS_GIB = (None, 64, 256, 1024)
LIVE_PLACEMENTS = ("leaf+branch", "every:16384", "every:4096", "every:2048", "every:1024", "all")
READ_SAMPLE = 1_000
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True, slots=True)
class LabRow:
    """One measurement: seconds (median of ``runs``), peak resident bytes (0: not of a process of
    its own), and what was promised. ``target`` is in words, ``met`` None where nothing was."""

    what: str
    seconds: float
    peak_rss: int = 0
    runs: int = 1
    target: str = ""
    met: bool | None = None


def bench_conversation(trace: Path, repeats: int) -> Iterator[LabRow]:
    """Three policies and 15 budgets on a trace of Mooncake's form, ours and the peer's."""
    ours = [sys.executable, "-m", "kdalab.bench.lab_job", "sweep_file", str(trace)]
    commands = {"sweep, ours, jobs=2": [*ours, "2"], "sweep, ours, one job": [*ours, "1"]}
    if find_spec("kvcache_sim") is not None:
        peer = [sys.executable, "-m", "kvcache_sim", "run", "--trace", str(trace)]
        peer += ["--model", "kimi-k3", "--block-size", "512", "--no-progress", "--format", "json"]
        if shutil.which("c++"):  # it compiles itself
            commands["sweep, kvcache-simulator C++"] = [*peer, "--backend", "cpp"]
        commands["sweep, kvcache-simulator Python, 2 jobs"] = [
            *peer,
            *("--backend", "python", "--jobs", "2"),
        ]
    found = _in_turns(commands, repeats)
    rows = {name: _row(name, runs) for name, runs in found.items()}
    python = rows.get("sweep, kvcache-simulator Python, 2 jobs")
    first = rows["sweep, ours, jobs=2"]
    if python is not None:
        times = python.seconds / first.seconds
        target = f"4 x the peer's Python: {times:.1f} x"
        if native := rows.get("sweep, kvcache-simulator C++"):
            target += f"; its C++: {native.seconds / first.seconds:.2f} x"
        met = times >= TARGET_TIMES_PYTHON
        rows[first.what] = LabRow(first.what, first.seconds, first.peak_rss, repeats, target, met)
    yield from rows.values()


def bench_agents(requests: int, tokens: int) -> Iterator[LabRow]:
    """A day of agents: making them, the sweep, one replay, and reading some of them as JSON."""
    job = [sys.executable, "-m", "kdalab.bench.lab_job"]
    size = [str(requests), str(tokens)]
    yield _row("agents: making them up only", [_process([*job, "make_agents", *size])])
    sweep = _process([*job, "sweep_agents", *size, "2"])
    name = f"agents: sweep, jobs=2, {sweep.out['blocks']:,} blocks in {requests:,} requests"
    yield _row(name, [sweep], f"{TARGET_AGENT_SWEEP_S:.0f} s, 2 GiB", TARGET_AGENT_SWEEP_S)
    for budget in ("1TiB", "8TiB"):
        run = _process([*job, "replay_agents", *size, "every:4096", budget])
        name = f"agents: hybrid replay, every:4096, {budget}"
        yield _row(name, [run], f"{TARGET_AGENT_REPLAY_S:.0f} s, 2 GiB", TARGET_AGENT_REPLAY_S)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agents.jsonl"
        sample = min(READ_SAMPLE, requests)
        _write_wide(AgentTrace(requests, tokens), file, sample)
        read = _process([*job, "read_agents", str(file)])
        size_mb = file.stat().st_size / 1e6
        yield LabRow(
            f"agents: reading {sample:,} of them as JSON, {size_mb:.0f} MB",
            read.out["seconds"],
            read.peak_rss,
        )


def _write_wide(trace: AgentTrace, file: Path, sample: int) -> None:
    """The last requests of a trace in Mooncake's form. The reader wants 512 tokens a block, so
    lengths are scaled; the ids, which are what reading costs, are the same."""
    with file.open("w") as out:
        for r in islice(trace, trace.requests - sample, None):
            row = {
                "timestamp": r.timestamp_ms,
                "input_length": len(r.blocks) * 512,
                "output_length": r.output_tokens,
                "hash_ids": r.blocks.tolist(),
            }
            out.write(json.dumps(row) + "\n")


def bench_live(trace: Path, repeats: int) -> Iterator[LabRow]:
    """A trace that has been read once, and another interval or budget."""
    live = LiveReplay(read_mooncake(trace), preset("kimi-k3"))
    for placement in LIVE_PLACEMENTS:
        for gib in LIVE_BUDGETS_GIB:
            budget = None if gib is None else max(gib << 30, live.smallest_budget)
            wanted = parse_placement(placement)
            seconds = statistics.median(
                live.run(wanted, budget).seconds for _ in range(max(1, repeats))
            )
            name = f"live: {placement}, {'no limit' if gib is None else f'{gib} GiB'}"
            target = f"{TARGET_LIVE_S * 1000:.0f} ms"
            yield LabRow(name, seconds, 0, repeats, target, seconds <= TARGET_LIVE_S)


def bench_lab(
    trace: Path | None,
    requests: int = DEFAULT_REQUESTS,
    tokens: int = DEFAULT_TOKENS,
    repeats: int = 3,
    made_up: int = 12_000,
) -> Iterator[LabRow]:
    """All of it, one row at a time.

    Args:
        trace: of Mooncake's form; None for a made-up one of ``made_up`` requests.
        requests: of the agents, 0 for none.
        tokens: of an agent's request on average.
        repeats: runs of the conversation's sweeps and of each live replay.

    Raises:
        KdalabError: repeats below 1; a process that failed, with its last words.
    """
    if repeats < 1:
        raise KdalabError(f"repeats {repeats}; use 1 or more")
    with tempfile.TemporaryDirectory() as folder:
        file = trace or write_synthetic(Path(folder) / "made_up.jsonl", made_up)
        yield from bench_conversation(file, repeats)
        yield from bench_live(file, repeats)
    if requests:
        yield from bench_agents(requests, tokens)


@dataclass(frozen=True, slots=True)
class _Process:
    seconds: float
    peak_rss: int
    out: dict[str, Any]


def _in_turns(commands: dict[str, list[str]], repeats: int) -> dict[str, list[_Process]]:
    """Each command ``repeats`` times, round after round; a first round warms up files and, for
    the peer's C++, compiles it."""
    found: dict[str, list[_Process]] = {name: [] for name in commands}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            run = _process(command)
            if turn:
                found[name].append(run)
    return found


def _process(command: Sequence[str]) -> _Process:
    """Run a command to its end; its time, its peak memory (its children's included, where one of
    them is larger; nothing of this process), and the JSON that it printed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        report = Path(folder) / "took.json"
        launch = [sys.executable, "-I", "-S", str(_CHILD), str(report), *command]
        launched = subprocess.run(launch, stdout=out, stderr=err, check=False)
        took = {"exit": launched.returncode or 1}
        if report.exists():
            took = json.loads(report.read_text())
        out.seek(0)
        err.seek(0)
        if took["exit"]:
            words = err.read().decode(errors="replace").strip().splitlines()
            raise KdalabError(
                f"{' '.join(command[1:4])} failed: {words[-1] if words else 'silent'}"
            )
        return _Process(took["seconds"], took["peak_rss"], json.loads(out.read()))


def _row(
    name: str, runs: Sequence[_Process], target: str = "", limit: float | None = None
) -> LabRow:
    seconds = statistics.median(r.seconds for r in runs)
    rss = max(r.peak_rss for r in runs)
    met = None if limit is None else seconds <= limit and rss <= TARGET_RSS
    return LabRow(name, seconds, rss, len(runs), target, met)
