"""A trace in the lab as a film: the account, the sweep, the yardsticks, the advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demos._film import Film, why_panel
from demos._lab_tables import (
    account_table,
    bounds_table,
    figure_of,
    lab_figures,
    near_table,
    sweep_table,
)
from demos._text import t
from kdalab.lab.advise import Advice
from kdalab.lab.cells import advice_failures
from kdalab.lessons.trace_lab import LabRun, advise_command, flag_lines, gain_of
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.bytes_bars import Bar, bytes_bars_svg
from kdalab.viz.share_bars import Share, share_bars_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table, table_html


class LabFilm(Film):
    """The account, the sweep, the yardsticks, the advice for each system.

    ``source`` is what a command line calls the trace, ``limit`` how many requests were taken of
    the ``total`` that the file has (None for a built-in trace).
    """

    def __init__(
        self,
        run: LabRun,
        defaults: bool,
        source: str,
        limit: int | None,
        total: int,
        more: bool,
        sort: bool = False,
    ) -> None:
        self.run, self.source, self.limit = run, source, limit
        self.total, self.more, self.sort = total, more, sort
        self.kinds = [
            "account", "sweep", "bounds", *["advice"] * len(run.advice), *["defaults"] * defaults,
        ]  # fmt: skip
        self.last = len(self.kinds) - 1
        self.opening = self.last if defaults else 3

    @property
    def _part(self) -> bool:
        return self.limit is not None and (self.more or self.limit < self.total)

    def _advice(self, step: int) -> Advice:
        if self.kinds[step] == "defaults":
            return self.run.worst
        return self.run.advice[min(max(step - 3, 0), len(self.run.advice) - 1)]

    def _values(self, step: int, lang: str) -> dict[str, Any]:
        run, a, one = self.run, self.run.account, self._advice(step)
        here, reached = run.here, one.after
        top = max((r["hit_rate"] for r in run.best if r["memory"] == run.setup.memory), default=0.0)
        bound = run.share(here.bound) if here else 0.0
        reach = max(top, *(x.after["hit_rate"] for x in run.advice))
        return {
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
            "failed": sum(bool(r["error"]) for r in run.rows),
            "best": len(run.best),
            "memory": format_bytes(run.setup.memory or 0),
            "placement": run.setup.checkpoints,
            "reach": f"{reach:.1%}",
            "bound": f"{bound:.1%}",
            "ideal": f"{run.share(here.kv_only):.1%}" if here else "-",
            "unlimited": f"{run.share(run.known):.1%}",
            "system": one.system,
            "searched": one.replays,
            "objective": t(lang, f"lab.aim-{run.objective}"),
            "before": figure_of(run, one.before, lang),
            "after": figure_of(run, reached, lang),
            "gain": f"{abs(gain_of(one)):.1%}",
        }

    def sentence(self, step: int, lang: str) -> str:
        kind, values = self.kinds[step], self._values(step, lang)
        if kind in ("advice", "defaults"):
            one = self._advice(step)
            if not one.better:
                kind = f"{kind}-same"
            elif kind == "defaults" and not gain_of(one):  # better than nothing: no share of it
                kind = "defaults-nothing"
        return t(lang, f"lab.step-{kind}", **values)

    def tone(self, step: int) -> str:
        kind = self.kinds[step]
        return {"advice": "finish", "defaults": "evict"}.get(kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        kind, below = self.kinds[step], ""
        if kind == "account":
            shown = self._bytes(step, lang)
        elif kind == "sweep":
            best = {id(row) for row in self.run.best}
            marked = [i for i, row in enumerate(self.run.rows) if id(row) in best]
            shown = table_html(sweep_table(self.run, lang), marked)
        elif kind == "bounds":
            shown = self._shares(step, lang, None)
        else:
            one = self._advice(step)
            shown = self._shares(step, lang, one)
            below = self._partial(lang)
            below += _copy_box(t(lang, "lab.flags", system=one.system), flag_lines(one), lang)
            below += self._command(lang)
        return f'<div class="kd-scroll">{shown}</div>{below}'

    def _bytes(self, step: int, lang: str) -> str:
        a = self.run.account
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
        scale = t(lang, "lab.scale")
        return bytes_bars_svg(bars, label=self.sentence(step, lang), scale_word=scale)

    def _shares(self, step: int, lang: str, one: Advice | None) -> str:
        """Prompt tokens restored, from the defaults to what is possible."""
        run = self.run
        rows = []
        for advice in run.advice if one is None else (one,):
            for word, row in (("before", advice.before), ("after", advice.after)):
                if not row.get("error"):
                    name = t(lang, f"lab.share-{word}", system=advice.system)
                    marked = word == ("before" if self.kinds[step] == "defaults" else "after")
                    rows.append(Share(name, row["hit_rate"], marked=marked and one is not None))
        memory = format_bytes(run.setup.memory or 0)
        at = [r for r in run.rows if r["memory"] == run.setup.memory and not r["error"]]
        if one is None and at:
            best = max(at, key=lambda r: r["hit_rate"])
            rows.append(Share(t(lang, "lab.share-best"), best["hit_rate"]))
        if run.here is not None:
            for word, tokens in (("ideal", run.here.kv_only), ("bound", run.here.bound)):
                name = t(lang, f"lab.share-{word}", memory=memory)
                rows.append(Share(name, run.share(tokens), possible=True))
        rows.append(Share(t(lang, "lab.share-unlimited"), run.share(run.known), possible=True))
        scale = t(lang, "lab.scale-share")
        return share_bars_svg(rows, label=self.sentence(step, lang), scale_word=scale)

    def _command(self, lang: str) -> str:
        """How to run the same on a command line: this part, and where it is one, the whole."""
        run = self.run
        systems = tuple(x.system for x in run.advice)
        words = [("whole", None), ("part", self.limit)] if self._part else [("same", self.limit)]
        shown = ""
        for word, limit in words:
            command = advise_command(
                self.source, run.setup, run.objective, systems, limit, sort=self.sort
            )
            shown += _copy_box(t(lang, f"lab.command-{word}"), command, lang)
        return shown

    def why(self, step: int, lang: str) -> str:
        kind, values = self.kinds[step], self._values(step, lang)
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'lab.why-{kind}', **values))}</p>"
        if self.run.known == 0:
            reason = f'<p class="kd-bad">{esc(t(lang, "lab.no-reuse"))}</p>{reason}'
        parts: list[tuple[str, str] | str] = [
            (t(lang, "common.in-step"), now),
            (t(lang, "lab.why"), reason + self._used(lang)),
        ]
        if self.source.startswith("--made-up"):  # a file's notes stand under the file
            notes = "".join(f"<li>{esc(say(lang, note))}</li>" for note in self.run.report.notes)
            parts.append((t(lang, "lab.trace"), f"<ul>{notes}</ul>"))
        held: Sequence[str] = self.run.account.assumptions
        if kind in ("advice", "defaults"):
            one = self._advice(step)
            held = one.assumptions
            warned = [*one.warnings, *advice_failures(one)]
            parts += [f'<p class="kd-bad">{esc(say(lang, w))}</p>' for w in warned]
        facts = "".join(f"<li>{esc(say(lang, line))}</li>" for line in held)
        return why_panel(*parts, (t(lang, "lab.assumed"), f"<ul>{facts}</ul>"))

    def _partial(self, lang: str) -> str:
        """Above the flags: that they rest on a part of the file only, where they do."""
        if not self._part:
            return ""
        total = f"{self.total:,}{'+' if self.more else ''}"
        text = t(lang, "lab.flags-part", used=self.run.requests, total=total)
        return f'<p class="kd-bad">{esc(text)}</p>'

    def _used(self, lang: str) -> str:
        """Which part of the file this rests on."""
        if self.limit is None:
            return ""
        word = "part" if self._part else "all"
        total = f"{self.total:,}{'+' if self.more else ''}"
        text = t(lang, f"lab.used-{word}", used=self.run.requests, total=total)
        return f"<p>{esc(text)}</p>"

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run = self.run
        near = [near_table(one, lang) for one in run.advice]
        if self.kinds[step] in ("advice", "defaults"):
            first = near_table(self._advice(step), lang)
            near = [first, *(x for x in near if x != first)]
        return (*near, sweep_table(run, lang), bounds_table(run, lang), account_table(run, lang))

    def figures(self, lang: str) -> Sequence[Any]:
        return lab_figures(self.run, lang)

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "trace": run.trace, "setup": str(run.setup), "account": run.account.row(),
            "objective": run.objective, "rows": list(run.rows),
            "known_tokens": run.known,
            "yardsticks": [
                {"memory": y.memory, "kv_only": y.kv_only, "bound": y.bound} for y in run.yardsticks
            ],
            "flags": {x.system: list(x.flags) for x in run.advice},
            "gain": {x.system: gain_of(x) for x in run.advice},
            "report": run.report.as_dict(), "total_requests": self.total,
            "command": advise_command(
                self.source, run.setup, run.objective, tuple(x.system for x in run.advice),
                sort=self.sort,
            ),
        }  # fmt: skip


def _copy_box(head: str, code: str, lang: str) -> str:
    """A block of code with the button that copies it (``copy_code.js``)."""
    lines = "\n".join(esc(line) for line in code.split("\n"))
    copied, word = esc(t(lang, "common.copied")), esc(t(lang, "common.copy-code"))
    return (
        f'<p class="kd-note">{esc(head)}</p><div class="kd-copybox"><pre class="kd-code" '
        f'tabindex="0">{lines}</pre><button type="button" data-copy="{copied}">{word}</button>'
        "</div>"
    )
