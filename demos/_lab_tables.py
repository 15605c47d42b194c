"""What the lab's page shows of a run as tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demos._text import t
from kdalab.lab.advise import Advice
from kdalab.lab.cells import advice_rows, significant
from kdalab.lessons.trace_lab import GAINS, LabRun
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.lab_figures import Line, Pick, pareto_figure
from kdalab.viz.tables import Table


def figure_of(run: LabRun, row: Any, lang: str) -> str:
    """The objective's figure of a row, with its unit."""
    if row.get("error"):
        return t(lang, "lab.failed")
    if run.objective == "ttft":
        return f"{significant(row['ttft_mean'])} s"
    return f"{row['flops_saved_share']:.1%}"


def sweep_table(run: LabRun, lang: str) -> Table:
    """Every row of the sweep, those of the Pareto front starred; why one cannot run, where one
    cannot."""
    best = {id(row) for row in run.best}
    names = ["front", "memory", "checkpoints", "int8", "hit",
             "ttft" if run.objective == "ttft" else "saved"]  # fmt: skip
    names += ["error"] * any(r["error"] for r in run.rows)
    columns = tuple(t(lang, f"lab.column-{c}") for c in names)
    rows = tuple(
        (
            "★" if id(r) in best else "",
            format_bytes(int(r["memory"])),
            str(r["checkpoints"]),
            t(lang, f"lab.int8-{'on' if r['int8'] else 'off'}"),
            "-" if r["error"] else f"{r['hit_rate']:.1%}",
            "-" if r["error"] else figure_of(run, r, lang),
            say(lang, str(r["error"]))[:160] if r["error"] else "",
        )[: len(columns)]
        for r in run.rows
    )
    return Table(t(lang, "lab.table-sweep"), columns, rows)


def near_table(one: Advice, lang: str) -> Table:
    """The sensitivity: the recommendation with one setting changed."""
    head, cells = advice_rows(one)
    shown = tuple(tuple(say(lang, cell) for cell in row[:1]) + row[1:] for row in cells)
    caption = t(lang, "lab.table-near", system=one.system)
    return Table(caption, tuple(say(lang, h) for h in head), shown)


def account_table(run: LabRun, lang: str) -> Table:
    """Requests, tokens and checkpoints of the account."""
    a = run.account
    names = ("requests", "input_tokens", "hit_tokens", "known_tokens", "replayed_tokens",
             "states_written", "states_read_at_least_once", "evicted_states")  # fmt: skip
    rows = tuple((t(lang, f"lab.row-{n}"), int(getattr(a, n))) for n in names)
    columns = (t(lang, "lab.column-what"), t(lang, "lab.column-value"))
    memory = format_bytes(run.setup.memory or 0)
    which = {"model": run.setup.model, "memory": memory, "placement": run.setup.checkpoints}
    return Table(t(lang, "lab.table-account", **which), columns, rows)


def bounds_table(run: LabRun, lang: str) -> Table:
    """What is possible in each memory, in tokens."""
    stick_names = ("memory", "ideal", "bound", "unlimited")
    return Table(
        t(lang, "lab.table-bounds", requests=run.requests),
        tuple(t(lang, f"lab.column-{c}") for c in stick_names),
        tuple((format_bytes(y.memory), y.kv_only, y.bound, run.known) for y in run.yardsticks),
    )


def lab_figures(run: LabRun, lang: str) -> Sequence[Any]:
    """What memory buys, and what it buys for the objective."""
    memories = [y.memory for y in run.yardsticks]
    lines = [
        Line(t(lang, "lab.line-unlimited"), memories, [run.share(run.known)] * len(memories)),
        Line(t(lang, "lab.line-bound"), memories, [run.share(y.bound) for y in run.yardsticks]),
        Line(t(lang, "lab.line-ideal"), memories, [run.share(y.kv_only) for y in run.yardsticks]),
    ]
    picks = []
    for one in run.advice:
        picks.append(Pick(t(lang, "lab.pick-before", system=one.system), one.before, True))
        picks.append(Pick(t(lang, "lab.pick-after", system=one.system), one.after))
    usable = sum(not r["error"] for r in run.rows)
    subtitle = t(lang, "lab.subtitle", replays=usable, requests=run.requests)
    return [
        pareto_figure(run.rows, run.best, lines=lines, picks=picks, subtitle=subtitle, height=520),
        pareto_figure(
            run.rows,
            (),
            GAINS[run.objective],
            picks=picks,
            subtitle=subtitle,
            height=460,
            title=t(lang, "lab.figure-objective"),
        ),
    ]
