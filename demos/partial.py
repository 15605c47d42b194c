"""**Partial hits**: three block sizes, and how each group lowers the boundary to restore at.

``python -m demos.partial`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, Row, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import BlockStateCache, GroupKind, HashChain, block_sizes
from kdalab.lessons import PartialRun, play_partial
from kdalab.phrases import say
from kdalab.viz.lanes import Lane, PromptBar, lanes_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

_TONES = {
    "tail": "snapshot", "chunk": "snapshot", "agree": "restore", "nothing": "evict",
    "copy": "copy", "copy-state": "copy", "shared": "finish", "state-none": "evict",
}  # fmt: skip


class PartialFilm(Film):
    """A is computed, then B is looked up, search by search."""

    def __init__(self, run: PartialRun, fine: PartialRun | None) -> None:
        self.run, self.fine = run, fine
        self.last = len(run.acts) - 1
        kinds = [a.kind for a in run.acts]
        self.opening = next(i for i, k in enumerate(kinds) if k in ("agree", "nothing"))

    def sentence(self, step: int, lang: str) -> str:
        act = self.run.acts[step]
        return t(lang, f"partial.act-{act.kind}", **act.values)

    def tone(self, step: int) -> str:
        return _TONES.get(self.run.acts[step].kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        run, act = self.run, self.run.acts[step]
        arrived = act.candidate is not None or act.kind == "hash"
        restore = act.candidate or 0
        own = run.b_tokens - run.shared
        words = {
            "restored": t(lang, "partial.bar-restored", tokens=restore),
            "made": t(lang, "partial.bar-again", tokens=run.shared - restore),
            "planned": t(lang, "partial.bar-own", tokens=own),
        }  # fmt: skip
        final = act.kind in ("agree", "nothing", "copy", "copy-state", "shared")
        prompts = [
            PromptBar(
                "A", 0,
                [(act.computed, "done"), (run.a_tokens - act.computed, "planned")],
                t(lang, "partial.prompt", tokens=run.a_tokens),
            ),
            PromptBar(
                "B", 1,
                [(restore, "restored"), (run.shared - restore, "made"), (own, "planned")],
                t(lang, "partial.prompt", tokens=run.b_tokens),
                words if final else {},
            ),
        ]  # fmt: skip
        before = run.acts[step - 1].cached if step else act.cached
        lanes = []
        for i, kind in enumerate(run.kinds):
            full = kind is GroupKind.FULL
            name = "kv" if full else "s"
            asked = [act.search] if act.search is not None else []
            if act.kind in ("agree", "nothing"):
                asked = list(run.searches)
            probes = [p for s in asked if s.group == i for p in s.probes]
            lanes.append(
                Lane(
                    t(lang, f"partial.lane-{name}"),
                    t(lang, "partial.block-of", tokens=run.sizes.group[i]),
                    name, run.sizes.group[i], act.cached[i],
                    probes,
                    tuple(b for b in act.cached[i] if b not in before[i]),
                    0 if full or arrived else act.computed,
                )
            )  # fmt: skip
        shown = lanes_svg(
            prompts, lanes, unit=run.sizes.unit,
            same=run.shared // run.sizes.unit if arrived else 0,
            unit_name=t(lang, "partial.units", unit=run.sizes.unit),
            flag=act.candidate,
            flag_name=t(lang, "partial.flag-restore" if final else "partial.flag-candidate"),
            label=self.sentence(step, lang),
        )  # fmt: skip
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        act = self.run.acts[step]
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'partial.why-{act.kind}', **act.values))}</p>"
        parts = [(t(lang, "common.in-step"), now), (t(lang, "partial.why"), reason)]
        if act.kind in ("agree", "nothing"):
            parts += self._again(lang)
        if self.fine is not None:
            fine, here = self.fine.lookup, self.run.lookup
            lost = t(
                lang, "partial.damage", fine=fine.restore, coarse=here.restore,
                lost=fine.restore - here.restore, unit=self.fine.sizes.unit,
                again=self.run.again,
            )  # fmt: skip
            parts.append((t(lang, "partial.broken"), f'<p class="kd-bad">{esc(lost)}</p>'))
        if act.candidate is not None:
            lines = "".join(f"<li>{esc(say(lang, line))}</li>" for line in self.run.lookup.why)
            parts.append((t(lang, "partial.lookup"), f"<ul>{lines}</ul>"))
        return why_panel(*parts)

    def _again(self, lang: str) -> list[tuple[str, str]]:
        """Why shared tokens are computed again: for want of a state, or of a name."""
        run, found = self.run, self.run.lookup
        unit, same = run.sizes.unit, run.shared // run.sizes.unit * run.sizes.unit
        facts = {
            "again": run.again, "restore": found.restore, "match": found.token_match,
            "replay": found.replay, "unnamed": run.shared - found.token_match, "unit": unit,
            "same": same, "next": same + unit, "shared": run.shared,
        }  # fmt: skip
        kinds = ["state"] if found.replay else []
        if facts["unnamed"]:
            kinds.append("grid" if found.token_match == same else "left")
        lines = "".join(f"<p>{esc(t(lang, f'partial.again-{k}', **facts))}</p>" for k in kinds)
        return [(t(lang, "partial.again", **facts), lines)] if kinds else []

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run = self.run
        sizes = (
            (t(lang, "partial.row-kv"), run.sizes.group[0], ""),
            (t(lang, "partial.row-state"), run.sizes.group[1], ""),
            (t(lang, "partial.row-scheduler"), run.sizes.scheduler, "lcm"),
            (t(lang, "partial.row-unit"), run.sizes.unit, t(lang, "partial.unit-rule")),
        )
        searches = tuple(
            (
                t(lang, "partial.lane-kv" if s.kind is GroupKind.FULL else "partial.lane-s"),
                s.candidate if s.candidate else "-",
                " ".join(f"{p.boundary:,}{'+' if p.found else '-'}" for p in s.probes[:40]),
                len(s.probes),
                s.reach,
            )
            for s in run.searches
        )
        return (
            Table(
                t(lang, "partial.table-sizes"),
                tuple(t(lang, f"partial.column-{c}") for c in ("size", "tokens", "how")),
                sizes,
            ),
            Table(
                t(lang, "partial.table-searches"),
                tuple(
                    t(lang, f"partial.column-{c}")
                    for c in ("group", "at-most", "asked", "probes", "reach")
                ),
                searches,
            ),
        )

    def log(self, lang: str) -> Sequence[Row]:
        first = next(i for i, a in enumerate(self.run.acts) if a.kind == "hash")
        return [
            Row(i, "B" if i >= first else "A", act.kind, self.sentence(i, lang))
            for i, act in enumerate(self.run.acts)
        ]

    @property
    def requests(self) -> Sequence[str]:
        return ("A", "B")

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "sizes": asdict(run.sizes),
            "shared": run.shared,
            "token_match": run.lookup.token_match,
            "restore": run.lookup.restore,
            "computed_again": run.again,
            "replayed": run.lookup.replay,
            "groups": [{"name": g.name, "reach": g.tokens} for g in run.lookup.groups],
            "searches": [
                {
                    "group": s.group,
                    "candidate": s.candidate,
                    "reach": s.reach,
                    "probes": [list(p) for p in s.probes],
                }
                for s in run.searches
            ],
            "copies": [c._asdict() for c in run.copies],
        }


def film(settings: Settings) -> Film:
    """The film of one setting.

    Raises:
        KdalabError: a unit that does not divide every group's block.
    """
    s = settings

    def play(unit: int | None) -> PartialRun:
        return play_partial(s["shared"], s["block"], unit, parts=s["attention"], beyond=s["beyond"])

    fine = play(s["unit"])
    if "coarse" in s["breaks"]:
        return PartialFilm(play(None), fine)
    return PartialFilm(fine, None)


LESSON = Lesson(
    slug="partial",
    group="vllm",
    controls=(
        Choice("preset", ("fine", "large", "small", "past", "halves"), "fine", width=230),
        Number("shared", 1, 20_000, 400, 1, width=200),
        Choice("block", (128, 256, 1536, 8192), 256),
        Choice("unit", (16, 32, 64, 128), 64),
        Choice("attention", (1, 2, 4), 1),
        Number("beyond", 0, 2_000, 0, 10),
        Switches("breaks", ("coarse",)),
    ),
    film=film,
    presets={
        "fine": {"shared": 400, "block": 256, "unit": 64},
        "large": {"shared": 4_500, "block": 8192, "unit": 128},
        "small": {"shared": 100, "block": 128, "unit": 32},
        "past": {"shared": 650, "block": 256, "unit": 64, "beyond": 300},
        "halves": {"shared": 400, "block": 256, "unit": 64, "attention": 2},
    },
    terms=(
        ("block of a group", "`page_size`", "`block_size` of the group's `KVCacheSpec`"),
        ("scheduler block", "-", "`scheduler_block_size`: lcm of the groups"),
        ("hash unit", "`page_size`", "`hash_block_size`: gcd, or `--prefix-match-unit`"),
        ("candidate", "`best_match_node` walk", "`HybridKVCacheCoordinator` loop"),
        ("private copy", "copy on write of the state", "COW block of a partial hit"),
    ),
    code=(
        ("code-sizes", block_sizes),
        ("code-hash", HashChain.of_blocks),
        ("code-lookup", BlockStateCache.lookup),
    ),
    notebook="partial",
    exercises=("ex18",),
    next=("tree", "restore"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
