"""**Retention**: which states stay, by interval or by what they save.

``python -m demos.retention`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, Row, Seen, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import BlockRetention, MarconiOrder, PrefillFlops
from kdalab.lessons import (
    RETENTION_STORIES,
    TREE_BYTES,
    Evicting,
    PolicyFigures,
    RetentionRun,
    play_retention,
    policies_on_trace,
)
from kdalab.phrases import say_html
from kdalab.viz.score_bars import ScoreBar, policy_hits_figure, score_bars_svg
from kdalab.viz.svg import TokenAxis, esc
from kdalab.viz.tables import Table, table_html
from kdalab.viz.tree import tree_svg

_TONES = {
    "hit": "restore", "known": "restore", "miss": "restore", "lock": "copy", "leaf": "snapshot",
    "split": "snapshot", "revive": "snapshot", "existed": "snapshot", "evict-state": "evict",
    "evict-leaf": "evict", "evict-both": "evict", "release": "finish",
}  # fmt: skip


class RetentionFilm(Film):
    """A story act by act with every candidate's score, and policies on a trace below."""

    def __init__(
        self, run: RetentionRun, plain: RetentionRun | None, alpha: float, memory: int,
        figures: tuple[PolicyFigures, ...],
    ) -> None:  # fmt: skip
        self.run, self.plain, self.alpha, self.memory = run, plain, alpha, memory
        self.policies = figures
        self.last = len(run.acts) - 1
        telling = [i for i, c in run.chosen.items() if any(x.goes != x.oldest for x in c)]
        first = telling or list(run.chosen) or [self.last]
        self.opening = first[0]

    def sentence(self, step: int, lang: str) -> str:
        act, choice = self.run.acts[step], self._choice(step)
        if step in self.run.chosen and choice is not None:
            goes = next(c for c in choice.candidates if c.node == choice.goes)
            key = "same" if choice.goes == choice.oldest else "other"
            return t(
                lang, f"retention.evict-{key}", who=act.request, node=choice.goes,
                total=f"{goes.total:.2f}", oldest=choice.oldest, count=len(choice.candidates),
            )  # fmt: skip
        return t(lang, f"tree.act-{act.kind}", **act.values)

    def _choice(self, step: int) -> Evicting | None:
        made = self.run.chosen.get(step, ())
        return made[-1] if made else self.run.standing[step]

    def tone(self, step: int) -> str:
        return _TONES.get(self.run.acts[step].kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        made, choice = step in self.run.chosen and step > 0, self._choice(step)
        bars = "" if choice is None else self._bars(step, lang, choice, made)
        return f'<div class="kd-scroll">{self.tree(step, lang)}{bars}</div>'

    def tree(self, step: int, lang: str) -> str:
        """The picture without the scores."""
        act, run, choice = self.run.acts[step], self.run, self._choice(step)
        axis = TokenAxis.for_tokens(max(len(x) for x in run.texts.values()))
        page, page_bytes, state_bytes = TREE_BYTES
        # An eviction shows the tree that was chosen from: the one of the act before.
        made = step in run.chosen and step > 0
        view = run.acts[step - 1].view if made else act.view
        marks = (f"node:{choice.goes}",) if made and choice is not None else act.highlight
        drawn = tree_svg(
            view, run.texts, axis, page_tokens=page, page_bytes=page_bytes,
            state_bytes=state_bytes, spacing=64, highlight=marks, owners=run.owners,
        )  # fmt: skip
        return say_html(lang, drawn)

    def _bars(self, step: int, lang: str, choice: Evicting, made: bool) -> str:
        rows = [
            ScoreBar(
                t(lang, "retention.node", node=c.node, start=c.start, end=c.end),
                c.recency, self.alpha * c.efficiency,
                t(lang, "retention.goes" if c.node == choice.goes else "retention.stays",
                  total=f"{c.total:.2f}"),
                c.node == choice.goes,
            )
            for c in choice.candidates
        ]  # fmt: skip
        names = (
            t(lang, "retention.recency"),
            t(lang, "retention.saving", alpha=f"{self.alpha:g}"),
        )
        return score_bars_svg(
            rows, top=1 + self.alpha, names=names, label=self.sentence(step, lang),
            heading=t(lang, "retention.now" if made else "retention.next"),
        )  # fmt: skip

    def why(self, step: int, lang: str) -> str:
        choice = self._choice(step)
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        parts: list[tuple[str, str] | str] = [(t(lang, "common.in-step"), now)]
        if choice is None:
            parts.append((t(lang, "retention.why"), f"<p>{esc(t(lang, 'retention.nobody'))}</p>"))
        else:
            goes = next(c for c in choice.candidates if c.node == choice.goes)
            oldest = next(c for c in choice.candidates if c.node == choice.oldest)
            facts = {
                "node": goes.node, "age": goes.age, "per_byte": f"{goes.flops_per_byte:,.0f}",
                "recency": f"{goes.recency:.2f}", "efficiency": f"{goes.efficiency:.2f}",
                "total": f"{goes.total:.2f}", "alpha": f"{self.alpha:g}", "oldest": choice.oldest,
                "other": f"{oldest.total:.2f}",
            }  # fmt: skip
            text = f"<p>{esc(t(lang, 'retention.formula', **facts))}</p>"
            if choice.goes != choice.oldest:
                text += f"<p>{esc(t(lang, 'retention.kept', **facts))}</p>"
            parts.append((t(lang, "retention.why"), text))
        total = sum(self.run.hits.values())
        hits = t(lang, "retention.hits", hits=total)
        parts.append((t(lang, "retention.story"), f"<p>{esc(hits)}</p>"))
        if self.plain is not None:
            lost = t(
                lang, "retention.damage", hits=total, plain=sum(self.plain.hits.values())
            )  # fmt: skip
            parts.append((t(lang, "retention.broken"), f'<p class="kd-bad">{esc(lost)}</p>'))
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        choice = self._choice(step)
        rows = tuple(
            (
                f"#{c.node}", f"{c.start:,} - {c.end:,}", c.age, f"{c.flops_per_byte:,.0f}",
                f"{c.recency:.3f}", f"{c.efficiency:.3f}", f"{c.total:.3f}",
            )
            for c in (choice.candidates if choice else ())
        )  # fmt: skip
        columns = ("node", "tokens", "age", "per-byte", "recency", "efficiency", "score")
        policies = tuple(
            (t(lang, f"retention.policy-{p.name}"), p.setup, p.hit, p.known, p.total)
            for p in self.policies
        )
        heads = ("policy", "setup", "hit", "known", "total")
        return (
            Table(
                t(lang, "retention.table-scores"),
                tuple(t(lang, f"retention.column-{c}") for c in columns), rows,
            ),
            Table(
                t(lang, "retention.table-policies", memory=self.memory),
                tuple(t(lang, f"retention.column-{c}") for c in heads), policies,
            ),
        )  # fmt: skip

    def pick(self, step: int, name: str, lang: str) -> Seen | None:
        kind, _, number = name.partition(":")
        if kind != "node" or not number.isdigit():
            return None
        choice = self._choice(step)
        found = [c for c in (choice.candidates if choice else ()) if c.node == int(number)]
        title = t(lang, "retention.pick", node=int(number))
        if not found:
            return Seen(title, f"<p>{esc(t(lang, 'retention.no-candidate'))}</p>")
        c = found[0]
        rows = (
            (t(lang, "retention.column-tokens"), f"{c.start:,} - {c.end:,}"),
            (t(lang, "retention.column-age"), c.age),
            (t(lang, "retention.column-per-byte"), f"{c.flops_per_byte:,.0f}"),
            (t(lang, "retention.column-score"), f"{c.total:.3f}"),
        )
        return Seen(title, table_html(Table("", ("", ""), rows)))

    def figures(self, lang: str) -> Sequence[Any]:
        p = self.policies
        return [
            policy_hits_figure(
                [t(lang, f"retention.policy-{x.name}") for x in p],
                [x.hit for x in p], [x.known for x in p],
                title=t(lang, "retention.figure", memory=self.memory),
                subtitle=t(lang, "retention.figure-note", total=p[0].total),
                series=(t(lang, "retention.series-hit"), t(lang, "retention.series-replayed")),
                axis=t(lang, "retention.axis"),
            )
        ]  # fmt: skip

    def log(self, lang: str) -> Sequence[Row]:
        return [
            Row(i, act.request, act.kind, self.sentence(i, lang))
            for i, act in enumerate(self.run.acts)
        ]

    @property
    def requests(self) -> Sequence[str]:
        return tuple(self.run.texts)

    def data(self) -> dict[str, Any]:
        return {
            "restored": self.run.hits,
            "choices": {str(i): [asdict(c) for c in x] for i, x in self.run.chosen.items()},
            "policies": [asdict(p) for p in self.policies],
        }


def film(settings: Settings) -> Film:
    """The film of one setting."""
    s, plain = settings, None
    run = play_retention(s["story"], s["alpha"], s["states"])
    if "everywhere" in s["breaks"]:
        plain, run = run, play_retention(s["story"], s["alpha"], s["states"], "every:64")
    figures = policies_on_trace(s["memory"], s["interval"], s["alpha"])
    return RetentionFilm(run, plain, s["alpha"], s["memory"], figures)


LESSON = Lesson(
    slug="retention",
    group="vllm",
    controls=(
        Choice("story", tuple(RETENTION_STORIES), "long", width=220),
        Number("alpha", 0, 2, 1, 0.1),
        Number("states", 3, 8, 3),
        Choice("memory", (1024, 1536, 2048, 3072), 1024),
        Choice("interval", (4096, 8192, 16384), 8192),
        Switches("breaks", ("everywhere",)),
    ),
    film=film,
    figures=1,
    terms=(
        ("interval", "-", "`prefix_cache_retention_interval`: None, 0, N"),
        ("admission", "branching checkpoint", "`shared_prefix_boundary`"),
        ("score", "LRU of nodes", "one queue of free blocks"),
        ("alpha", "-", "-"),
    ),
    code=(
        ("code-worth", MarconiOrder.worth),
        ("code-flops", PrefillFlops.between),
        ("code-keeps", BlockRetention.keeps),
    ),
    notebook="retention",
    exercises=("ex20", "ex21"),
    next=("tree", "modes"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
