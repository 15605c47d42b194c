"""**Trace lab**: one trace, its honest account, a small sweep, and the flags that would fit it.

``python -m demos.lab`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings, Switches, Text
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.lab.advise import Advice, advise
from kdalab.lab.run import replay_setup
from kdalab.lessons.trace_lab import LAB_TRACES, MAX_PASTED_BYTES, LabRun, play_lab, read_uploaded
from kdalab.units import format_bytes
from kdalab.viz.bytes_bars import Bar, bytes_bars_svg
from kdalab.viz.lab_figures import pareto_figure
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table, table_html

GIB = 2**30


class LabFilm(Film):
    """The account, the sweep, the advice for each system."""

    def __init__(self, run: LabRun, defaults: bool) -> None:
        self.run = run
        self.kinds = ["account", "sweep", *["advice"] * len(run.advice), *["defaults"] * defaults]
        self.last = len(self.kinds) - 1
        self.opening = self.last if defaults else 1

    def _advice(self, step: int) -> Advice:
        return self.run.advice[min(step - 2, len(self.run.advice) - 1)]

    def _values(self, step: int) -> dict[str, Any]:
        run, a = self.run, self.run.account
        values: dict[str, Any] = {
            "requests": run.requests,
            "tokens": a.input_tokens,
            "hit": f"{a.hit_rate:.1%}",
            "known": f"{a.kv_only_hit_rate:.1%}",
            "replayed": a.replayed_tokens,
            "saved": f"{a.flops_saved_share:.1%}",
            "written": a.states_written,
            "read": a.states_read_at_least_once,
            "peak": format_bytes(a.peak_bytes),
            "replays": len(run.rows),
            "best": len(run.best),
            "memory": format_bytes(run.setup.memory or 0),
        }
        if self.kinds[step] == "defaults":
            worst = max(run.advice, key=lambda x: x.gain)
        elif self.kinds[step] == "advice":
            worst = self._advice(step)
        else:
            return values
        return values | {
            "system": worst.system,
            "searched": worst.replays,
            "before": f"{worst.before['flops_saved_share']:.1%}",
            "after": f"{worst.after['flops_saved_share']:.1%}",
            "lost": f"{worst.after['flops_saved_share'] - worst.before['flops_saved_share']:.1%}",
        }

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"lab.step-{self.kinds[step]}", **self._values(step))

    def tone(self, step: int) -> str:
        kind = self.kinds[step]
        return {"advice": "finish", "defaults": "evict"}.get(kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        kind, a = self.kinds[step], self.run.account
        if kind == "account":
            names = {k: t(lang, f"lab.bar-{k}") for k in ("kv", "states", "evicted")}
            bars = [
                Bar(names["kv"], (("kv", a.kv_bytes, names["kv"]),)),
                Bar(names["states"], (("s", a.state_bytes, names["states"]),), marked=True),
                Bar(
                    names["evicted"],
                    (
                        ("kv", a.evicted_kv_bytes, names["evicted"]),
                        ("s", a.evicted_state_bytes, names["evicted"]),
                    ),
                ),
            ]
            label, scale = self.sentence(step, lang), t(lang, "lab.scale")
            shown = bytes_bars_svg(bars, label=label, scale_word=scale)
        elif kind == "sweep":
            table = self._sweep(lang)
            best = {id(row) for row in self.run.best}
            marked = [i for i, row in enumerate(self.run.rows) if id(row) in best]
            shown = table_html(table, marked)
        else:
            shown = "<br>".join(
                table_html(self._flags(one, lang))
                for one in (self.run.advice if kind == "defaults" else (self._advice(step),))
            )
        return f'<div class="kd-scroll">{shown}</div>'

    def _sweep(self, lang: str) -> Table:
        columns = tuple(
            t(lang, f"lab.column-{c}") for c in ("memory", "checkpoints", "hit", "saved", "error")
        )
        rows = tuple(
            (
                format_bytes(int(r["memory"])),
                str(r["checkpoints"]),
                "-" if r["error"] else f"{r['hit_rate']:.1%}",
                "-" if r["error"] else f"{r['flops_saved_share']:.1%}",
                str(r["error"])[:120] or "-",
            )
            for r in self.run.rows
        )
        return Table(t(lang, "lab.table-sweep"), columns, rows)

    def _flags(self, one: Advice, lang: str) -> Table:
        rows = [(t(lang, "lab.row-flag"), flag) for flag in one.flags]
        rows.append((t(lang, "lab.row-before"), f"{one.before['flops_saved_share']:.1%}"))
        rows.append((t(lang, "lab.row-after"), f"{one.after['flops_saved_share']:.1%}"))
        columns = (t(lang, "lab.column-what"), t(lang, "lab.column-value"))
        return Table(one.system, columns, tuple(rows))

    def why(self, step: int, lang: str) -> str:
        kind, values = self.kinds[step], self._values(step)
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'lab.why-{kind}', **values))}</p>"
        held = self.run.account.assumptions
        if kind in ("advice", "defaults"):
            one = self._advice(step)
            held = (*one.assumptions, *one.warnings)
        facts = "".join(f"<li>{esc(line)}</li>" for line in held)
        return why_panel(
            (t(lang, "common.in-step"), now),
            (t(lang, "lab.why"), reason),
            (t(lang, "lab.assumed"), f"<ul>{facts}</ul>"),
        )

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        a = self.run.account
        names = ("requests", "input_tokens", "hit_tokens", "known_tokens", "replayed_tokens",
                 "states_written", "states_read_at_least_once", "evicted_states")  # fmt: skip
        rows = tuple((t(lang, f"lab.row-{n}"), int(getattr(a, n))) for n in names)
        columns = (t(lang, "lab.column-what"), t(lang, "lab.column-value"))
        account = Table(t(lang, "lab.table-account"), columns, rows)
        return (account, self._sweep(lang), *(self._flags(x, lang) for x in self.run.advice))

    def figures(self, lang: str) -> Sequence[Any]:
        return [pareto_figure(self.run.rows, self.run.best, height=440)]

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "trace": run.trace, "setup": str(run.setup), "account": run.account.row(),
            "rows": list(run.rows), "flags": {x.system: list(x.flags) for x in run.advice},
            "gain": {x.system: x.gain for x in run.advice},
        }  # fmt: skip


def film(settings: Settings) -> Film:
    """The film of one setting; a pasted trace counts before the chosen one.

    Raises:
        KdalabError: as ``play_lab``.
    """
    run = play_lab(
        settings["trace"], settings["pasted"], settings["model"], settings["memory"] * GIB,
        settings["checkpoints"],
    )  # fmt: skip
    return LabFilm(run, "defaults" in settings["breaks"])


LESSON = Lesson(
    slug="lab",
    group="systems",
    controls=(
        Choice("trace", tuple(LAB_TRACES), "agent-like", width=200),
        Choice("model", ("kimi-k3", "kimi-linear-48b"), "kimi-k3"),
        Choice("memory", (8, 16, 32, 64), 16, width=140),
        Choice("checkpoints", ("every:4096", "every:16384", "leaf", "leaf+branch"), "leaf+branch"),
        Switches("breaks", ("defaults",)),
        Text("pasted", limit=MAX_PASTED_BYTES, lines=3, upload=read_uploaded),
    ),
    film=film,
    figures=1,
    legend=False,
    terms=(
        ("placement", "`--chunked-prefill-size`", "`--prefix-cache-retention-interval`"),
        ("split of memory", "`--mamba-full-memory-ratio`", "one pool"),
    ),
    code=(("code-replay", replay_setup), ("code-advise", advise)),
    notebook="density",
    next=("density", "compare"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
