"""Timing that can be trusted a little: warm-up, medians, taken in turns, with the machine named."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

WATCHED = ("torch", "triton", "fla-core", "numpy", "transformers")


def medians_in_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1
) -> dict[str, float]:
    """Median seconds of each call.

    The calls take turns, round after round, so that a busy moment of the machine falls on all of
    them. The first rounds are thrown away: first calls start thread pools and touch fresh memory,
    which makes them up to five times slower.

    Raises:
        ValueError: repeats below 1 or warmup below 0.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats must be at least 1 and warmup 0, given {repeats} and {warmup}")
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warmup + repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken = time.perf_counter() - start
            if turn >= warmup:
                seconds[name].append(taken)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def ratio_in_turns(
    first: Callable[[], object], second: Callable[[], object], pairs: int
) -> tuple[float, float, float]:
    """Time of first over time of second: lower quartile, median and upper quartile of pairs.

    Each pair is measured back to back, so whatever slows the machine for longer than a pair takes
    falls on both; which of the two goes first changes from pair to pair, so neither always finds
    the caches as the other left them. A ratio of two medians would not pair them.

    Raises:
        ValueError: fewer than two pairs.
    """
    if pairs < 2:
        raise ValueError(f"pairs must be at least 2, given {pairs}")
    ratios = []
    for turn in range(pairs):
        order = (first, second) if turn % 2 == 0 else (second, first)
        taken = {}
        for call in order:
            start = time.perf_counter()
            call()
            taken[call] = time.perf_counter() - start
        ratios.append(taken[first] / taken[second])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high


def median_seconds(call: Callable[[], object], repeats: int, warmup: int = 1) -> float:
    """Median seconds of one call; see :func:`medians_in_turns`."""
    return medians_in_turns({"call": call}, repeats, warmup)["call"]


def cpu_name() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, str | int]:
    """What every benchmark prints above its numbers: processor, threads, system, versions."""
    import torch

    out: dict[str, str | int] = {
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "vector_code": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    if torch.cuda.is_available():
        out["gpu"] = torch.cuda.get_device_name()
    for name in WATCHED:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def matmul_rate(size: int = 1024, repeats: int = 7) -> float:
    """FLOP per second of a float32 product of two ``[size, size]`` matrices."""
    import torch

    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    return 2 * size**3 / median_seconds(lambda: torch.mm(a, b, out=out), repeats, warmup=2)


def copy_rate(mebibytes: int = 64, repeats: int = 7) -> float:
    """Bytes per second, read plus written, of a copy into memory that exists already."""
    import torch

    source = torch.ones(mebibytes << 18)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / median_seconds(lambda: target.copy_(source), repeats, warmup=2)
