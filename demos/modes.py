"""**Cache modes**: where each prefill chunk ends, and which states a later prompt finds.

``python -m demos.modes`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, Row, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import BlockStateCache
from kdalab.lessons import MODE_BLOCK, MODE_UNIT, ModeRun, play_modes
from kdalab.phrases import say
from kdalab.viz.lanes import Lane, PromptBar, lanes_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

_TONES = {
    "hit": "restore", "known": "restore", "miss": "restore", "done": "finish",
    "done-none": "finish", "broken": "evict", "chunk-tail": "snapshot",
    "chunk-junction": "snapshot", "chunk-last": "snapshot", "chunk-all": "snapshot",
    "end-all": "snapshot", "chunk-all-thinned": "snapshot", "end-all-thinned": "snapshot",
}  # fmt: skip


class ModesFilm(Film):
    """A, B, C and D, chunk by chunk; ``idle``: the switch is on, and nothing is there to break."""

    def __init__(self, run: ModeRun, idle: bool = False) -> None:
        self.run, self.idle = run, idle
        self.last = len(run.acts) - 1
        kinds = [a.kind for a in run.acts]
        telling = [k for k in ("broken", "chunk-junction") if k in kinds]
        self.opening = kinds.index(telling[0]) if telling else self.last

    def sentence(self, step: int, lang: str) -> str:
        act = self.run.acts[step]
        return t(lang, f"modes.act-{act.kind}", **act.values)

    def tone(self, step: int) -> str:
        act = self.run.acts[step]
        return _TONES.get(act.kind, "snapshot" if act.fresh else "plain")

    def picture(self, step: int, lang: str) -> str:
        run, act = self.run, self.run.acts[step]
        prompts, seen = [], True
        for i, result in enumerate(run.results):
            note = t(lang, "modes.prompt", tokens=result.tokens)
            if result.name == act.request:
                ends = [act.restore, *act.ends]
                parts = [(act.restore, "restored")]
                parts += [(b - a, "done") for a, b in pairwise(ends)]
                parts.append((result.tokens - act.computed, "planned"))
                seen = False
            else:
                parts = [(result.tokens, "made" if seen else "planned")]
            prompts.append(PromptBar(result.name, i, parts, note))
        if act.kind == "broken":
            ends = [0, *act.ends]
            parts = [(b - a, "done") for a, b in pairwise(ends)]
            note = t(lang, "modes.prompt", tokens=act.ends[-1])
            prompts = [PromptBar("E", len(run.results), parts, note)]
        block = t(lang, "modes.block-of", tokens=MODE_BLOCK)
        lanes = [
            Lane(t(lang, "modes.lane-kv"), block, "kv", MODE_BLOCK, act.cached[0]),
            Lane(
                t(lang, "modes.lane-s"), block, "s", MODE_BLOCK, act.cached[1],
                fresh=act.fresh, running=act.computed, wrong=act.wrong,
            ),
        ]  # fmt: skip
        unit = MODE_UNIT if run.mode == "align" else MODE_BLOCK
        known = {"B": run.shared, "C": run.shared, "D": run.results[0].tokens}
        shown = lanes_svg(
            prompts, lanes, unit=unit,
            same=known.get(act.request, 0) // unit,
            unit_name=t(lang, "modes.units", unit=unit),
            flag=act.restore if act.restore else None,
            flag_name=t(lang, "modes.flag"),
            stops=[(at, t(lang, f"modes.stop-{word}")) for at, word in act.stops],
            label=self.sentence(step, lang),
        )  # fmt: skip
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        act = self.run.acts[step]
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'modes.why-{act.kind}', **act.values))}</p>"
        parts = [(t(lang, "common.in-step"), now), (t(lang, "modes.why"), reason)]
        if act.kind == "broken":
            said = f"<p><code>{esc(act.values['says'])}</code></p>"
            check = f"<p><code>{esc(act.values['check'])}</code></p>"
            damage = t(lang, "modes.damage", **act.values)
            parts += [
                (t(lang, "modes.pool-says"), said),
                (t(lang, "modes.check-says"), check),
                (t(lang, "modes.damage-title"), f'<p class="kd-bad">{esc(damage)}</p>'),
            ]
        if self.idle:
            nothing = f"<p>{esc(t(lang, 'modes.no-state'))}</p>"
            parts.append((t(lang, "modes.damage-title"), nothing))
        if act.lookup is not None:
            lines = "".join(f"<li>{esc(say(lang, line))}</li>" for line in act.lookup.why)
            parts.append((t(lang, "modes.lookup", who=act.request), f"<ul>{lines}</ul>"))
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        columns = ("prompt", "tokens", "known", "restored", "replayed", "ends", "states")
        rows = tuple(
            (
                r.name,
                r.tokens,
                r.match,
                r.restore,
                max(0, r.match - r.restore),
                ", ".join(f"{e:,}" for e in r.ends),
                ", ".join(f"{b:,}" for b in r.states) or "-",
            )
            for r in self.run.results
        )
        heads = tuple(t(lang, f"modes.column-{c}") for c in columns)
        return (Table(t(lang, "modes.table"), heads, rows),)

    def log(self, lang: str) -> Sequence[Row]:
        return [
            Row(i, act.request, act.kind, self.sentence(i, lang))
            for i, act in enumerate(self.run.acts)
        ]

    @property
    def requests(self) -> Sequence[str]:
        return tuple(r.name for r in self.run.results)

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "mode": str(run.mode),
            "shared": run.shared,
            "prompts": [asdict(r) for r in run.results],
            "broken": asdict(run.broken) if run.broken else None,
        }


def film(settings: Settings) -> Film:
    """The film of one setting; mode none has no state with a name that could be wrong."""
    s = settings
    shared = max(1, s["tokens"] * s["shared"] // 100)
    # All stores a state at every block, and nothing that it stores goes unless somebody says so.
    dense = s["retention"] == "dense" or (s["retention"] == "mode" and s["mode"] == "all")
    broken = "through" in s["breaks"]
    idle = broken and s["mode"] == "none"
    return ModesFilm(
        play_modes(
            s["mode"], s["budget"], s["tokens"], shared, dense,
            broken and not idle,
        ),
        idle,
    )  # fmt: skip


LESSON = Lesson(
    slug="modes",
    group="vllm",
    controls=(
        Choice("mode", ("align", "all", "none"), "align", width=210),
        Choice("retention", ("mode", "reachable", "dense"), "mode", width=210),
        Number("budget", 64, 2048, 512, 64),
        Number("tokens", 300, 2000, 1000, 10),
        Number("shared", 10, 90, 60, 5),
        Switches("breaks", ("through",)),
    ),
    film=film,
    terms=(
        ("mode", "-", "`mamba_cache_mode`: none, all (before 0.33), align"),
        ("chunk end", "`chunked_prefill_size`", "`_mamba_block_aligned_split`"),
        ("tail", "last track boundary", "prompt's last hash boundary"),
        ("junction", "`mamba_branching_seqlen`", "`shared_prefix_boundary`"),
        ("kept", "-", "`prefix_cache_retention_interval`: None, 0, N"),
    ),
    code=(
        ("code-stops", BlockStateCache.stops),
        ("code-end", BlockStateCache.chunk_end),
        ("code-check", BlockStateCache.check),
    ),
    notebook="partial",
    exercises=("ex19",),
    next=("partial", "tree"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
