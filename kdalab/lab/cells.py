"""Sweeps and advice as plain cells, for tables on any medium."""

from __future__ import annotations

from collections.abc import Sequence

from kdalab.lab.advise import Advice
from kdalab.lab.sweep import Row
from kdalab.units import format_bytes

Cells = list[tuple[str, ...]]


def sweep_rows(rows: Sequence[Row], best: Sequence[Row]) -> tuple[tuple[str, ...], Cells]:
    """(header, cells) of a sweep; a star marks what no other row beats, "failed" one that could not
    be replayed (``failures`` says why)."""
    header = (
        "setup", "memory", "", "restored", "KV only", "work saved", "states", "read", "TTFT mean",
        "TTFT p95",
    )  # fmt: skip
    marked = {id(r) for r in best}
    cells: Cells = []
    for row in rows:
        words, memory = _named(row)
        if row["error"]:
            cells.append((words, memory, "failed", *[""] * 7))
            continue
        cells.append(
            (
                words,
                memory,
                "*" if id(row) in marked else "",
                f"{row['hit_rate']:.1%}",
                f"{row['kv_only_hit_rate']:.1%}",
                f"{row['flops_saved_share']:.1%}",
                f"{row['states_written']:,}",
                f"{row['states_read_share']:.1%}",
                f"{row['ttft_mean']:.3g} s",
                f"{row['ttft_p95']:.3g} s",
            )
        )
    return header, cells


def failures(rows: Sequence[Row]) -> list[str]:
    """One line for each row of a sweep that could not be replayed: which, and why."""
    return [f"{', '.join(_named(r))} failed: {r['error']}" for r in rows if r["error"]]


def _named(row: Row) -> tuple[str, str]:
    """A row's settings apart from model and memory, and its memory."""
    words = " ".join(w for w in row["setup"].split() if not w.startswith(("model=", "memory=")))
    memory = "unlimited" if row["memory"] is None else format_bytes(row["memory"])
    return words or "defaults", memory


def advice_rows(a: Advice) -> tuple[tuple[str, ...], Cells]:
    """(header, cells): the recommendation, then one line for each single change of it."""
    header = ("setting", "value", a.objective, "restored")
    own = a.after["ttft_mean"] if a.objective == "ttft" else a.after["flops_saved"]
    cells: Cells = [("recommended", "", f"{own:.4g}", f"{a.after['hit_rate']:.1%}")]
    if not a.before.get("error"):
        old = a.before["ttft_mean"] if a.objective == "ttft" else a.before["flops_saved"]
        cells.append(("the defaults", "", f"{old:.4g}", f"{a.before['hit_rate']:.1%}"))
    for n in a.neighbours:
        if n.error:
            cells.append((n.setting, n.value, n.error, ""))
        else:
            cells.append((n.setting, n.value, f"{n.objective:.4g}", f"{n.hit_rate:.1%}"))
    return header, cells
