"""**Joint boundary**: a token match is not a restore point, and by how much mixing breaks.

``python -m demos.joint`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings, Switches
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import RadixStateCache
from kdalab.engine import Faults
from kdalab.lessons import JOINT, MIXES, JointRun, Mix, play_joint
from kdalab.phrases import say
from kdalab.spec import StateIdentity
from kdalab.viz.joint import ROWS, DamageLine, Mixed, Reach, damage_figure, joint_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.why import format_difference

_FOREIGN = ("one-letter", "other-text")
_SHOWN = ("skip-replay", "drop-conv")
"""The switches that are on when the page opens."""


class JointFilm(Film):
    """Kind after kind, the boundary that they share, the restore, and every mixture asked for."""

    def __init__(self, run: JointRun, chosen: Sequence[str] = _SHOWN) -> None:
        self.run = run
        self.mixes = {m.name: m for m in run.mixes}
        self.kinds = [*ROWS, "joint", "restore", *run.absent, *self.mixes]
        self.last = len(self.kinds) - 1
        self.opening = len(ROWS)
        new = [c for c in chosen if c not in _SHOWN] or list(chosen)
        if new and set(chosen) != set(_SHOWN):  # a switch was touched: show what it did
            self.opening = self.kinds.index(new[-1])

    def _key(self, step: int) -> str:
        """Which text says this step."""
        kind = self.kinds[step]
        if kind in self.run.absent:
            return "absent"
        if not self.run.token_match and kind in ("text", "kv", "recurrent", "conv", "joint"):
            return f"{kind}-gone"
        if kind in ("recurrent", "conv") and not self.run.checkpoints:
            # None was ever taken within the known text, or those that were are gone.
            never = self.run.token_match < self.run.spacing and self.run.beyond
            return f"{kind}-{'beyond' if never else 'none'}"
        return (
            f"{kind}-all" if kind == "joint" and self.run.restore >= self.run.token_match else kind
        )

    def _values(self, step: int, lang: str) -> dict[str, Any]:
        run, kind = self.run, self.kinds[step]
        values: dict[str, Any] = {
            "tokens": run.n_tokens, "match": run.token_match, "kv": run.kv_reach,
            "states": ", ".join(f"{c:,}" for c in run.checkpoints) or "-",
            "deepest": max(run.checkpoints, default=0), "restore": run.restore,
            "replay": max(0, run.token_match - run.restore), "page": run.page_tokens,
            "new": run.n_tokens - max(run.token_match, run.restore), "spacing": run.spacing,
            "slots": run.slots, "beyond": min(run.beyond, default=0),
            "exact": format_difference(run.exact), "margin": f"{run.margin:.2f}",
        }  # fmt: skip
        if kind in run.absent:
            values["what"] = t(lang, f"joint.breaks-{kind}")
        if kind in self.mixes:
            m = self.mixes[kind]
            values |= {
                "resume": m.resume, "recurrent": m.recurrent, "conv": m.conv,
                "worst": f"{m.worst:.2f}", "end": f"{m.at_end:.2f}", "flips": m.flips,
                "computed": run.n_tokens - m.resume, "wrong": self._wrong(m, lang),
            }  # fmt: skip
        return values

    def _wrong(self, m: Mix, lang: str) -> str:
        if m.first_wrong is None:
            return t(lang, "joint.wrong-none", count=len(m.generated))
        return t(
            lang, "joint.wrong", place=m.first_wrong + 1, count=len(m.generated),
            got=m.generated[m.first_wrong], true=self.run.generated[m.first_wrong],
        )  # fmt: skip

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"joint.step-{self._key(step)}", **self._values(step, lang))

    def tone(self, step: int) -> str:
        kind = self.kinds[step]
        if kind in self.mixes:
            return "evict"
        return {"joint": "restore", "restore": "finish"}.get(kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        run, kind = self.run, self.kinds[step]
        values = self._values(step, lang)
        words = {row: t(lang, f"joint.row-{row}") for row in ROWS}
        words |= {
            name: t(lang, f"joint.word-{name}", **values)
            for name in ("flag", "match", "tokens", "not-needed", "beyond", "other")
        }
        mix = self.mixes.get(kind)
        mixed = None
        if mix is not None:
            mixed = Mixed(mix.resume, mix.recurrent, mix.conv, mix.name in _FOREIGN)
            words["resume"] = t(lang, "joint.word-resume", resume=mix.resume)
        reach = Reach(
            run.n_tokens, run.page_tokens, run.token_match, run.kv_reach, run.checkpoints,
            run.beyond, run.restore,
        )  # fmt: skip
        picture = joint_svg(
            reach, words, label=self.sentence(step, lang), shown=step + 1,
            now=kind if kind in ROWS else "", flag=step >= len(ROWS), mixed=mixed,
        )  # fmt: skip
        return f'<div class="kd-scroll">{picture}</div>'

    def why(self, step: int, lang: str) -> str:
        values = self._values(step, lang)
        reason = t(lang, f"joint.why-{self._key(step)}", **values)
        parts = [
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>'),
            (t(lang, "joint.why"), f"<p>{esc(reason)}</p>"),
        ]
        if self.kinds[step] in ("joint", "restore"):
            lines = "".join(
                f'<li class="{"binds" if x.startswith("binding") else ""}">{esc(say(lang, x))}</li>'
                for x in self.run.why
            )
            parts.append((t(lang, "joint.lookup"), f"<ul>{lines}</ul>"))
        if self.kinds[step] in self.mixes:
            caught = t(lang, f"joint.caught-{self.kinds[step]}")
            parts.append((t(lang, "joint.caught"), f"<p>{esc(caught)}</p>"))
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run = self.run
        reach: list[tuple[str | int, ...]] = [
            (t(lang, "joint.row-text"), run.token_match, t(lang, "joint.any-token")),
            (t(lang, "joint.row-kv"), run.kv_reach, t(lang, "joint.any-page", page=16)),
            *(
                (
                    t(lang, f"joint.row-{row}"), max(run.checkpoints, default=0),
                    ", ".join(f"{c:,}" for c in run.checkpoints) or "-",
                )
                for row in ("recurrent", "conv")
            ),
            (t(lang, "joint.row-embedding"), "-", t(lang, "joint.word-not-needed")),
        ]  # fmt: skip
        exact = (
            t(lang, "joint.exact"), run.restore, run.restore, run.restore,
            format_difference(run.exact), format_difference(run.exact), 0,
            t(lang, "joint.wrong-none", count=len(run.generated)),
        )  # fmt: skip
        broken = [
            (
                t(lang, f"joint.breaks-{m.name}"), m.kv, m.recurrent, m.conv, f"{m.worst:.3g}",
                f"{m.at_end:.3g}", m.flips, self._wrong(m, lang),
            )
            for m in run.mixes
        ]  # fmt: skip
        columns = ("what", "kv", "recurrent", "conv", "worst", "end", "flips", "wrong")
        return (
            Table(
                t(lang, "joint.table-reach"),
                tuple(t(lang, f"joint.column-{c}") for c in ("kind", "reach", "where")),
                tuple(reach),
            ),
            Table(
                t(lang, "joint.table-mixed"),
                tuple(t(lang, f"joint.column-{c}") for c in columns),
                (exact, *broken),
            ),
        )

    def figures(self, lang: str) -> Sequence[Any]:
        run = self.run
        lines = [
            DamageLine(
                t(lang, f"joint.breaks-{m.name}"), m.resume, m.differences,
                None if m.first_wrong is None else run.n_tokens - 1 + m.first_wrong,
                MIXES.index(m.name),
            )
            for m in run.mixes
        ]  # fmt: skip
        marks = [
            (run.restore, t(lang, "joint.word-flag", restore=run.restore)),
            (run.n_tokens, t(lang, "joint.mark-end")),
        ]
        if run.token_match > run.restore:
            marks.insert(1, (run.token_match, t(lang, "joint.word-match", match=run.token_match)))
        keys = ("title", "subtitle", "x", "y", "margin", "wrong", "none")
        values = {"exact": format_difference(run.exact), "margin": f"{run.margin:.2f}"}
        words = {k: t(lang, f"joint.figure-{k}", **values) for k in keys}
        return [damage_figure(lines, marks, run.margin, words)]

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "tokens": run.n_tokens,
            "token_match": run.token_match,
            "reach": {"latent_kv": run.kv_reach, "states": list(run.checkpoints)},
            "restore": run.restore,
            "why": list(run.why),
            "exact": run.exact,
            "median_margin": run.margin,
            "mixed": {
                m.name: {
                    "resume": m.resume, "recurrent": m.recurrent, "conv": m.conv,
                    "differences": list(m.differences), "flips": m.flips,
                    "generated": list(m.generated), "first_wrong": m.first_wrong,
                }
                for m in run.mixes
            },
            "without_meaning_here": list(run.absent),
        }  # fmt: skip


def film(settings: Settings) -> Film:
    """The film of one setting."""
    breaks = settings["breaks"]
    return JointFilm(play_joint(settings["example"], settings["spacing"], breaks), breaks)


LESSON = Lesson(
    slug="joint",
    group="prefix",
    controls=(
        Choice("example", tuple(JOINT), "fan-out", width=220),
        Choice("spacing", (64, 128, 192), 128),
        Switches("breaks", MIXES, _SHOWN),
    ),
    film=film,
    figures=1,
    legend=False,
    terms=(
        ("token match", "what `match_prefix` has walked", "hit of the attention group"),
        (
            "restore point",
            "`best_match_node`: the deepest where every component has its data",
            "`find_longest_cache_hit` of `HybridKVCacheCoordinator`",
        ),
        ("replay", "extend from the shorter prefix", "tokens after `num_computed_tokens`"),
        ("known text without a state", "tombstone", "attention blocks hit, the Mamba group misses"),
        ("where to keep the next state", "`mamba_branching_seqlen`", "`shared_prefix_boundary`"),
    ),
    code=(
        ("code-lookup", RadixStateCache.lookup),
        ("code-identity", StateIdentity),
        ("code-mix", play_joint),
        ("code-faults", Faults),
    ),
    notebook="joint",
    exercises=("ex06",),
    next=("restore", "tree", "chunks"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
