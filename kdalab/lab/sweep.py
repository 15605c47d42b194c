"""Many setups on one trace, side by side: local processes by default, Ray or Dask if asked.

The unit of work is one replay. Each worker gets the trace with it: what is in memory is sent, a
file is read again by whoever needs it (so on several machines it must lie at the same path).
"""

from __future__ import annotations

import csv
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lab.request import Requests
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import Setup, check_value, read_word
from kdalab.spec import resolve_model

Row = dict[str, Any]
TABLES = (".csv", ".parquet", ".json")
#: Figures by which rows can be compared: 1 where more is better, -1 where less is.
GAINS: dict[str, int] = {
    "hit_rate": 1, "kv_only_hit_rate": 1, "flops_saved": 1, "flops_saved_share": 1,
    "states_read_share": 1, "replayed_tokens": -1, "flops_replayed": -1, "states_written": -1,
    "evicted_kv_bytes": -1, "evicted_state_bytes": -1, "evicted_states": -1,
    **{f"{times}_{q}": -1 for times in ("ttft", "queue") for q in ("mean", "p50", "p95", "p99")},
}  # fmt: skip


def combine(base: Setup, grid: Mapping[str, Sequence[str]]) -> tuple[list[Setup], list[str]]:
    """Every combination of the settings in ``grid`` on top of ``base``, and those that exclude
    each other, in words. Values are text, as in ``Setup.parse``.

    Raises:
        KdalabError: an unknown key, a value that no setup could take, or nothing is left.
    """
    for key, values in grid.items():
        if not values:
            raise KdalabError(f"no value for {key}; give one or more, as {key}=A,B")
        for value in values:
            name, read = read_word(f"{key}={value}")
            check_value(name, read)
            if name == "model":
                resolve_model(read)
    found: dict[Setup, None] = {}
    impossible: list[str] = []
    why: set[str] = set()
    for values in product(*grid.values()):
        words = [f"{k}={v}" for k, v in zip(grid, values, strict=True)]
        try:
            found[Setup.parse(words, base)] = None
        except KdalabError as error:
            impossible.append(f"{' '.join(words)}: {error}")
            why.add(str(error))
    if not found:
        first = f"the first of {len(impossible):,}: {impossible[0]}"
        raise KdalabError(f"no combination is possible; {why.pop() if len(why) == 1 else first}")
    return list(found), impossible


def sweep(
    trace: Requests,
    setups: Sequence[Setup],
    jobs: int = 1,
    ray: str | None = None,
    dask: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """One row for each setup, in their order: its settings, its figures, and ``error`` ("" or
    why this one could not be replayed; a sweep does not end because one memory is too small).

    Args:
        jobs: processes on this machine; -1 for one a core. With ``ray`` or ``dask``, tasks at once.
        ray, dask: address of a cluster; "local" starts one here.
        on_done: told (rows done, rows in all).

    Raises:
        KdalabError: Ray or Dask is not installed or cannot be reached; both were named; ``jobs``
            is neither -1 nor 1 to 1,024.
    """
    check_jobs(jobs)
    total = len(setups)
    jobs = jobs if jobs == -1 else min(jobs, max(1, total))  # no process without work
    if (jobs == 1 or total == 1) and ray is None and dask is None:
        rows = []
        for n, setup in enumerate(setups, 1):
            rows.append(one_row(trace, setup))
            if on_done is not None:
                on_done(n, total)
        return rows
    from joblib import Parallel, delayed

    with backend(ray, dask):
        # joblib's backend for Ray hands rows over all at once, local processes one by one.
        on_cluster = ray is not None or dask is not None
        kind = "list" if on_cluster else "generator"
        if not on_cluster:
            _start_workers(jobs)
        work = Parallel(n_jobs=jobs, return_as=kind, batch_size=1)
        results: Iterable[Row] = work(delayed(one_row)(trace, s) for s in setups)
        rows = []
        for row in results:
            rows.append(row)
            if on_done is not None:
                on_done(len(rows), total)
    return rows


def _start_workers(jobs: int) -> None:
    """Start the processes, which joblib keeps, deaf to Ctrl-C: it is for the process that waits,
    and ends them. They take over what is blocked where they start."""
    from multiprocessing import resource_tracker

    from joblib import Parallel, delayed

    if not hasattr(signal, "pthread_sigmask"):
        return
    # Before: to start this process of Python's own unblocks SIGINT, blocked before or not.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        Parallel(n_jobs=jobs)([delayed(int)()] * 2)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_jobs(jobs: int) -> None:
    """Refuse a number of processes that there cannot be.

    Raises:
        KdalabError: neither -1 nor 1 to 1,024.
    """
    if jobs != -1 and not 1 <= jobs <= 1024:
        raise KdalabError(f"{jobs:,} processes; use 1 to 1,024, or -1 for one a core")


@contextmanager
def backend(ray: str | None, dask: str | None) -> Iterator[None]:
    """joblib's backend for a cluster, while the block runs; local processes without one.

    Raises:
        KdalabError: as ``sweep``.
    """
    from joblib import parallel_config

    if ray is not None and dask is not None:
        raise KdalabError("both a Ray and a Dask address; give one")
    if ray is not None:
        try:
            import ray as cluster
            from ray.util.joblib import register_ray
        except ImportError:
            raise KdalabError("Ray is not installed; pip install 'ray' to use --ray") from None
        check_reachable(ray)
        try:
            cluster.init(address=ray, ignore_reinit_error=True, logging_level=logging.WARNING)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise KdalabError(f"no Ray cluster at {ray!r}: {error}") from error
        register_ray()
        try:
            with parallel_config(backend="ray"):
                yield
        finally:
            cluster.shutdown()
        return
    if dask is not None:
        try:
            from distributed import Client
        except ImportError:
            raise KdalabError(
                "Dask is not installed; pip install 'dask[distributed]' to use --dask"
            ) from None
        try:
            # The dashboard wants a port of its own, which nobody asked for.
            client = Client(dashboard_address=None) if dask == "local" else Client(dask)
        except (OSError, ValueError) as error:
            raise KdalabError(f"no Dask scheduler at {dask!r}: {error}") from error
        try:
            with parallel_config(backend="dask"):
                yield
        finally:
            client.close()
        return
    yield


def check_reachable(address: str) -> None:
    """Refuse a cluster at ``HOST:PORT`` where nobody answers: Ray itself tries for most of a
    minute. Other words ("local", "auto") are Ray's to read.

    Raises:
        KdalabError: no answer within five seconds.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise KdalabError(f"no Ray cluster at {address!r}: {error}") from error


def one_row(trace: Requests, setup: Setup) -> Row:
    """One replay as a flat row."""
    settings = {k: v for k, v in setup.as_dict().items() if k != "policy" or v is not None}
    try:
        account = replay_setup(trace, setup)
    except KdalabError as error:
        return {"setup": str(setup), **settings, "error": str(error)}
    row = account.row()
    figures = {k: v for k, v in row.items() if k not in ("setup", "model", "seconds")}
    return {"setup": str(setup), **settings, **figures, "seconds": account.seconds, "error": ""}


def pareto(rows: Iterable[Row], cost: str = "peak_bytes", gain: str = "hit_rate") -> list[Row]:
    """The rows that no other beats: none costs as little and serves ``gain`` as well (a time is
    served by being short, see ``GAINS``). By cost, ascending.

    Raises:
        KdalabError: ``gain`` is no figure of which it is known whether more or less is better.
    """
    check_gain(gain)
    sign = GAINS[gain]
    usable = [r for r in rows if not r.get("error")]
    best: list[Row] = []
    for row in sorted(usable, key=lambda r: (r[cost], -sign * r[gain])):
        if not best or sign * row[gain] > sign * best[-1][gain]:
            best.append(row)
    return best


def check_gain(gain: str, allowed: Iterable[str] = GAINS) -> None:
    """Refuse a figure by which rows cannot be compared.

    Raises:
        KdalabError: lists the allowed ones.
    """
    if gain not in (known := tuple(allowed)):
        raise KdalabError(f"gain {gain!r}; allowed: {', '.join(known)}")


def write_table(rows: Sequence[Row], path: str | Path) -> Path:
    """Rows as CSV, Parquet or JSON, by the name's ending; every row has every column.

    Raises:
        KdalabError: another ending; the file cannot be written.
    """
    file = Path(path)
    if file.suffix not in TABLES:
        raise KdalabError(f"{file.name}: a table ends in {', '.join(TABLES)}")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    full = [{c: row.get(c) for c in columns} for row in rows]
    try:
        if file.suffix == ".json":
            file.write_text(json.dumps(full, indent=2))
        elif file.suffix == ".csv":
            with file.open("w", newline="") as out:
                writer = csv.DictWriter(out, columns)
                writer.writeheader()
                writer.writerows(full)
        else:
            import pyarrow
            import pyarrow.parquet

            # FLOPs are Python integers beyond 64 bits: as numbers of 64 bits they are floats.
            wide = [{c: _narrow(v) for c, v in row.items()} for row in full]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(wide), file)
    except OSError as error:
        raise KdalabError(f"cannot write {str(file)!r}: {error.strerror}") from error
    return file


def _narrow(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) >= 2**53 else value
