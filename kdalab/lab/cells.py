"""Sweeps and advice as plain cells, for tables on any medium."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import floor, log10

from kdalab.lab.advise import WORTH, Advice
from kdalab.lab.setup import BLOCK_ONLY, DEFAULTS, RADIX_ONLY, Setup, shown
from kdalab.lab.sweep import Row

Cells = list[tuple[str, ...]]


def sweep_rows(rows: Sequence[Row], best: Sequence[Row]) -> tuple[tuple[str, ...], Cells]:
    """(header, cells) of a sweep; a star marks what no other row beats, "failed" one that could not
    be replayed (``failures`` says why). A row is named by the settings that differ between rows;
    what all have in common says ``common_setup``."""
    header = (
        "", "setup", "memory", "restored", "KV only", "work saved", "states", "read",
        "TTFT mean, s", "TTFT p95, s",
    )  # fmt: skip
    marked = {id(r) for r in best}
    cells: Cells = []
    for row, (words, memory) in zip(rows, _names(rows), strict=True):
        if row["error"]:
            cells.append(("", words, memory, "failed", *[""] * 6))
            continue
        cells.append(
            (
                "*" if id(row) in marked else "",
                words,
                memory,
                f"{row['hit_rate']:.1%}",
                f"{row['kv_only_hit_rate']:.1%}",
                f"{row['flops_saved_share']:.1%}",
                f"{row['states_written']:,}",
                f"{row['states_read_share']:.1%}",
                significant(row["ttft_mean"]),
                significant(row["ttft_p95"]),
            )
        )
    return header, cells


def failures(rows: Sequence[Row]) -> list[str]:
    """One line for each row of a sweep that could not be replayed: which, and why."""
    named = zip(rows, _names(rows), strict=True)
    return [
        f"{', '.join(n for n in name if n)} failed: {r['error']}" for r, name in named if r["error"]
    ]


def common_setup(rows: Sequence[Row]) -> str:
    """What all rows have in common: the model, and each setting that is not the default's."""
    differ = _differing(rows)
    shared = [f.name for f in fields(Setup) if f.name not in (*differ, "memory") and rows]
    return " ".join(
        f"{name}={shown(name, rows[0].get(name))}"
        for name in shared
        if name == "model" or rows[0].get(name) != DEFAULTS[name]
    )


def significant(value: float, digits: int = 3) -> str:
    """A figure in so many digits, never with an exponent for people to read: 0.0123, 36.0,
    1,234."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - floor(log10(abs(value))))
    return f"{value:,.{places}f}"


def _differing(rows: Sequence[Row]) -> list[str]:
    """Settings, apart from memory, whose value is not the same in all rows."""
    return [
        f.name
        for f in fields(Setup)
        if f.name != "memory" and any(r.get(f.name) != rows[0].get(f.name) for r in rows)
    ]


def _names(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Each row's own settings, and its memory."""
    differ = _differing(rows)
    named = []
    for row in rows:
        other = BLOCK_ONLY if row["cache"] == "radix" else RADIX_ONLY
        words = [f"{n}={shown(n, row.get(n))}" for n in differ if n not in other]
        named.append((" ".join(words), shown("memory", row["memory"])))
    return named


def advice_rows(a: Advice) -> tuple[tuple[str, ...], Cells]:
    """(header, cells): the recommendation, the defaults where it is not those, then one line for
    each single change of it, with what the objective changes by (more is longer for a time, and
    better for work saved)."""
    header = ("setting", "value", objective_name(a), "change", "restored")
    own = _objective(a, a.after)
    same = a.before.get("setup") == a.after.get("setup")
    name = "recommended: the defaults" if same else "recommended"
    cells: Cells = [(name, "", _figure(a, own), "", f"{a.after['hit_rate']:.1%}")]
    if not a.before.get("error") and not same:
        old = _objective(a, a.before)
        shares = _change(own, old), f"{a.before['hit_rate']:.1%}"
        cells.append(("the defaults", "", _figure(a, old), *shares))
    for n in a.neighbours:
        if n.error:
            cells.append((n.setting, n.value, "failed", "", ""))
        else:
            shares = _change(own, n.objective), f"{n.hit_rate:.1%}"
            cells.append((n.setting, n.value, _figure(a, n.objective), *shares))
    return header, cells


def simpler_words() -> str:
    """By what rule the simpler setting is preferred, in a sentence."""
    return f"Settings whose change gains less than {WORTH:.1%} of the objective keep their default."


def advice_failures(a: Advice) -> list[str]:
    """One line for each change of the recommendation that could not be replayed, and why."""
    return [f"{n.setting}={n.value} failed: {n.error}" for n in a.neighbours if n.error]


def advice_gain(a: Advice) -> str:
    """What the recommendation gains, in a sentence."""
    if a.before.get("error"):
        return f"The defaults cannot be replayed: {a.before['error']}"
    if not a.better:
        return "No setting that was tried serves the objective better than the defaults."
    if a.objective == "ttft":
        return f"The mean time to first token is {a.gain:.1%} shorter than with the defaults."
    if not a.gain:
        share = a.after["flops_saved_share"]
        return f"The defaults save no prefill work; the recommendation saves {share:.1%} of it."
    return f"{a.gain:.1%} more prefill work is saved than with the defaults."


def objective_name(a: Advice) -> str:
    """The objective and its unit, for the head of a column."""
    return "mean TTFT, s" if a.objective == "ttft" else "saved, PFLOP"


def _objective(a: Advice, row: Row) -> float:
    return float(row["ttft_mean"] if a.objective == "ttft" else row["flops_saved"])


def _figure(a: Advice, value: float) -> str:
    return significant(value if a.objective == "ttft" else value / 1e15, 4)


def _change(own: float, other: float) -> str:
    return f"{(other - own) / own:+.1%}" if own else ""
