"""The ops of Kimi Delta Attention side by side with those of others, on the CPU, in float32.

All in one process, in turns, on the same inputs, and every result is compared with one in float64:
a fast wrong answer is of no use to anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kdalab.bench import cases
from kdalab.bench.cases import Case, Shape
from kdalab.bench.timing import copy_rate, matmul_rate, medians_in_turns, ratio_in_turns

Medians = Callable[[Mapping[str, Callable[[], object]], int], dict[str, float]]

DEFAULT_SHAPES = (
    Shape(1, 4096, 4, 128, 128),
    Shape(1, 1024, 4, 128, 128),
    Shape(1, 64, 4, 32, 32),
)
QUICK_SHAPES = (Shape(1, 128, 4, 64, 64), Shape(1, 64, 4, 32, 32))


@dataclass(frozen=True)
class Row:
    """One implementation in one case; None where there is nothing to measure or compare.

    Attributes:
        times_baseline: the time of the case's first implementation over this one's.
        over_operations: this time over that of the case's operations at the machine's measured
            matrix-product rate.
        over_bytes: this time over that of the case's bytes at the machine's measured copy rate.
        error: relative RMS of the first outputs against float64.
    """

    op: str
    size: str
    name: str
    ms: float | None
    times_baseline: float | None
    over_operations: float | None
    over_bytes: float | None
    error: float | None
    note: str = ""
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """What this machine does at best, measured: FLOP and bytes (read plus written) a second."""

    flop: float
    nbytes: float


def default_cases(shapes: Iterable[Shape] = DEFAULT_SHAPES) -> list[Case]:
    """Prefill of these shapes, and all other ops."""
    return [
        *(cases.prefill(shape) for shape in shapes),
        cases.decode(),
        cases.conv(),
        cases.gate(),
        cases.checkpoints("store"),
        cases.checkpoints("load"),
    ]


def quick_cases() -> list[Case]:
    """The same ops on inputs so small that all of them take seconds."""
    return [
        *(cases.prefill(shape) for shape in QUICK_SHAPES),
        cases.decode(N=8, H=8),
        cases.conv(T=512),
        cases.gate(T=512),
        cases.checkpoints("store", N=2, L=2, H=4),
        cases.checkpoints("load", N=2, L=2, H=4),
    ]


def bench_kernels(
    chosen: Iterable[Case],
    repeats: int = 5,
    rates: Rates | None = None,
    medians: Medians = medians_in_turns,
    on_case: Callable[[Case], None] | None = None,
) -> tuple[Rates, list[Row]]:
    """Measure every implementation in every case.

    Args:
        chosen: what to measure; see :func:`default_cases`.
        repeats: timed rounds per case after one warm-up round; the median is kept.
        rates: of this machine; measured first when None.
        medians: the clock: median seconds of calls that take turns, so often.
        on_case: called with each case before it is measured.

    Returns:
        The rates, and a row for every implementation, also for a peer that is not here.
    """
    import torch

    rates = rates or Rates(matmul_rate(), copy_rate())
    rows: list[Row] = []
    with torch.no_grad():
        for case in chosen:
            if on_case is not None:
                on_case(case)
            rows += _bench_case(case, repeats, rates, medians)
    return rates, rows


def _bench_case(case: Case, repeats: int, rates: Rates, medians: Medians) -> list[Row]:
    prepared = case.prepare()
    calls, notes = dict(prepared.calls), dict(prepared.notes)
    errors: dict[str, float | None] = {}
    for name, call in prepared.calls.items():
        try:
            errors[name] = prepared.error(name, call())
        except Exception as error:  # a peer that cannot run here is a row that says so
            if name.startswith("kdalab"):
                raise
            notes[name] = f"fails: {str(error)[:120]}"
            del calls[name]
    seconds = medians(calls, repeats)
    if case.floor is not None and all(name in calls for name in case.floor):
        pairs = 4 * repeats
        op, floor = (calls[name] for name in case.floor)
        low, middle, high = ratio_in_turns(op, floor, pairs)
        notes[case.floor[0]] = (
            f"{middle:.2f} times {case.floor[1]}: median of {pairs} pairs, "
            f"quartiles {low:.2f} and {high:.2f}"
        )
    baseline = next((seconds[name] for name in case.names if name in seconds), None)
    rows = []
    for name in case.names:
        s, note = seconds.get(name), notes.get(name, "")
        if s is None or baseline is None:
            blank = (None,) * 5
            rows.append(Row(case.op, case.size, name, *blank, note, dict(case.sizes)))
            continue
        row = Row(
            case.op,
            case.size,
            name,
            s * 1e3,
            baseline / s,
            s * rates.flop / case.flop,
            s * rates.nbytes / case.nbytes,
            errors[name],
            note,
            dict(case.sizes),
        )
        rows.append(row)
    return rows
