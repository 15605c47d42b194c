"""**Checkpoint density**: how many tokens apart checkpoints should stand, by replaying a trace.

``python -m demos.density`` opens this page alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import gradio as gr

from demos import _page, _work
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from demos._trace_note import trace_note
from demos._uploads import UPLOADS, Upload
from kdalab.cache import parse_placement
from kdalab.lab.live import LiveReplay
from kdalab.lessons import (
    DENSITY_REQUESTS,
    DensityPoint,
    DensityReplays,
    DensityRun,
    best_interval,
    play_density,
)
from kdalab.lessons.uploads import UploadedTrace, read_upload
from kdalab.spec import preset
from kdalab.units import format_bytes
from kdalab.viz.density import WORDS, Curve, DensityRow, density_figure, density_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

GIB = 2**30
MODELS = ("kimi-k3", "kimi-linear-48b", "glm-5.3-flash", "qwen3-next-80b")
REQUESTS = (100, 250, 500, 1000, 2500, 5000, 10_000, 20_000)
MAX_REPLAYED = 3
"""Replayed parts or models of one file that are kept."""
_STEPS = ("prompt", "match", "restore", "replay", "new", "left", "trace")


class DensityFilm(Film):
    """One prompt's costs, then the whole trace's."""

    def __init__(
        self, run: DensityRun, shown: bool, breaks: Sequence[str], other: str, best: int
    ) -> None:
        self.run, self.budgeted, self.breaks = run, shown, breaks
        self.other, self.best = other, best
        self.kinds = [*_STEPS, *breaks]
        self.last = len(self.kinds) - 1
        self.opening = self.last

    @property
    def _points(self) -> Sequence[DensityPoint]:
        return self.run.tight if self.budgeted else self.run.free

    @property
    def _here(self) -> DensityPoint:
        return self.run.here[1 if self.budgeted else 0]

    def _values(self) -> dict[str, Any]:
        run, p = self.run, self._here
        n, known = run.n_tokens, max(p.match, p.restore)
        left = n // p.interval - p.restore // p.interval
        best = max(self._points, key=lambda q: (q.hit_share, q.interval))
        # The borrowed interval, or the nearest one that the blocks of this trace allow.
        other = min(self._points, key=lambda q: abs(q.interval - (self.best or best.interval)))
        return {
            "request": run.request,
            "tokens": n,
            "interval": p.interval,
            "match": p.match,
            "restore": p.restore,
            "replay": known - p.restore,
            "new": n - known,
            "work": f"{run.flops.between(p.restore, known) / 1e12:,.1f}",
            "all_work": f"{run.flops.between(0, n) / 1e12:,.1f}",
            "left": left,
            "left_bytes": format_bytes(left * run.checkpoint_bytes),
            "kv_bytes": format_bytes(int(n * run.token_bytes)),
            "one": format_bytes(run.checkpoint_bytes),
            "budget": format_bytes(run.budget) if self.budgeted else "∞",
            "requests": run.requests,
            "hit": f"{p.hit_share:.1%}",
            "known": f"{p.known_share:.1%}",
            "over": p.replayed_tokens,
            "written": p.states_written,
            "read": p.states_read,
            "evicted": p.evicted_states,
            "states": format_bytes(p.state_bytes),
            "kv": format_bytes(p.kv_bytes),
            "best": best.interval,
            "best_hit": f"{best.hit_share:.1%}",
            "lost": f"{max(0.0, best.hit_share - p.hit_share) * 100:.1f}",
            "other": other.interval,
            "other_hit": f"{other.hit_share:.1%}",
            "other_lost": f"{(best.hit_share - other.hit_share) * 100:.1f}",
        }

    def sentence(self, step: int, lang: str) -> str:
        values = self._values() | {"other_trace": t(lang, f"density.other-{self.other}")}
        return t(lang, f"density.step-{self._told(step)}", **values)

    def _told(self, step: int) -> str:
        """The step's phrase: an interval that is the best itself loses nothing against another."""
        kind, values = self.kinds[step], self._values()
        is_best = kind == "trace" and values["interval"] == values["best"]
        return "trace-best" if is_best else kind

    def tone(self, step: int) -> str:
        tones = {"restore": "restore", "replay": "compute", "left": "snapshot", "trace": "finish"}
        kind = self.kinds[step]
        return "evict" if kind in self.breaks else tones.get(kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        run, kind, values = self.run, self.kinds[step], self._values()
        told = values["other" if kind == "borrowed" else "interval"]
        stage = _STEPS.index(kind) if kind in _STEPS else len(_STEPS) - 1
        rows = []
        for p in self._points:
            left = run.n_tokens // p.interval - p.restore // p.interval
            nbytes = format_bytes(left * run.checkpoint_bytes)
            note = {3: f"{max(0, p.match - p.restore):,} {t(lang, 'density.tokens-word')}",
                    5: f"{left:,} × S = {nbytes}"}  # fmt: skip
            text = note.get(stage, f"{p.hit_share:.1%}" if stage > 5 else f"{p.restore:,}")
            if stage < 2:
                text = f"{p.match:,}" if stage else ""
            if kind == "kvonly":
                text = f"{p.known_share:.1%} → {p.hit_share:.1%}"
            rows.append(DensityRow(p.interval, p.restore, p.match, text, p.interval == told))
        words = {k: t(lang, f"density.word-{k}", **values)
                 for k in ("head", "prompt", "restored", "replay", "new", "left")}  # fmt: skip
        column = t(lang, f"density.note-{stage if kind in _STEPS else kind}")
        shown = density_svg(
            rows, run.n_tokens, stage=min(stage, 5), label=self.sentence(step, lang),
            words={**words, "note": column},
        )  # fmt: skip
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        values, kind = self._values(), self._told(step)
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'density.why-{kind}', **values))}</p>"
        facts = f'<p class="muted">{esc(t(lang, "density.facts", **values))}</p>'
        return why_panel((t(lang, "common.in-step"), now), (t(lang, "density.why"), reason), facts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        names = ("interval", "hit", "replayed", "states", "kv", "written", "read", "evicted",
                 "restore", "match")  # fmt: skip
        columns = tuple(t(lang, f"density.column-{c}") for c in names)

        def rows(points: Sequence[DensityPoint]) -> tuple[tuple[str | int, ...], ...]:
            return tuple(
                (
                    p.interval, f"{p.hit_share:.1%}", p.replayed_tokens,
                    format_bytes(p.state_bytes), format_bytes(p.kv_bytes), p.states_written,
                    p.states_read, p.evicted_states, p.restore, p.match,
                )
                for p in points
            )  # fmt: skip

        budget = format_bytes(self.run.budget)
        return (
            Table(t(lang, "density.table-tight", budget=budget), columns, rows(self.run.tight)),
            Table(t(lang, "density.table-free"), columns, rows(self.run.free)),
        )

    def figures(self, lang: str) -> Sequence[Any]:
        def curve(points: Sequence[DensityPoint]) -> Curve:
            return Curve(
                [p.interval for p in points],
                [p.hit_share for p in points],
                [p.state_bytes for p in points],
            )

        words = {key: t(lang, f"density.figure-{key}") for key in WORDS}
        run = self.run
        here = self._here.interval
        return [density_figure(curve(run.free), curve(run.tight), run.budget, here, words=words)]

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "trace": run.trace, "model": run.model, "block_tokens": run.block_tokens,
            "budget_bytes": run.budget,
            "requests": run.requests, "input_tokens": run.input_tokens,
            "checkpoint_bytes": run.checkpoint_bytes, "request": run.request,
            "request_tokens": run.n_tokens,
            "free": [asdict(p) for p in run.free], "tight": [asdict(p) for p in run.tight],
        }  # fmt: skip


def film(settings: Settings) -> Film:
    """The film of one setting.

    Raises:
        KdalabError: as ``play_density``.
    """
    name, model, budget = settings["trace"], settings["model"], settings["budget"] * GIB
    trace: str | DensityReplays = name
    if name == "file":
        trace = _replays(UPLOADS.get(settings["file"]), settings["requests"], model)
    run = play_density(trace, model, budget, settings["interval"])
    other = next(known for known in DENSITY_REQUESTS if known != name)
    borrowed = "borrowed" in settings["breaks"]
    best = best_interval(other, model, budget) if borrowed else 0
    return DensityFilm(run, settings["memory"] == "budget", settings["breaks"], other, best)


_own: WeakKeyDictionary[UploadedTrace, OrderedDict[tuple[int, str], DensityReplays]]
_own = WeakKeyDictionary()
_own_lock = Lock()


def _replays(read: UploadedTrace, count: int, model: str) -> DensityReplays:
    """The replays of a file's first requests; they are gone when the file is."""
    count = min(count, len(read.trace.requests))
    with _own_lock:
        kept = _own.setdefault(read, OrderedDict())
        if (count, model) not in kept:
            kept[count, model] = DensityReplays(read.first(count), preset(model), _next_replay)
        kept.move_to_end((count, model))
        while len(kept) > MAX_REPLAYED:
            kept.popitem(last=False)
        return kept[count, model]


def _next_replay() -> None:
    _work.at("density.at-replay", 0)


LESSON = Lesson(
    slug="density",
    group="prefix",
    controls=(
        Choice("preset", ("agents", "roomy", "small-model", "chat"), "agents", width=200),
        Choice("trace", tuple(DENSITY_REQUESTS), "agent-like", own="file"),
        Choice("requests", REQUESTS, 2500, width=140),
        Choice("model", MODELS, "kimi-k3"),
        Choice("memory", ("budget", "unlimited"), "budget", width=140),
        Number("budget", 4, 1024, 16),
        Number("interval", 512, 65536, 4096, 512),
        Switches("breaks", ("borrowed", "kvonly")),
        Upload("file", _page.MAX_UPLOAD_BYTES, read_upload, trace_note, "trace"),
    ),
    presets={
        "agents": {"trace": "agent-like", "model": "kimi-k3", "budget": 16, "interval": 4096},
        "roomy": {"trace": "agent-like", "model": "kimi-k3", "budget": 256, "interval": 4096},
        "small-model": {
            "trace": "agent-like", "model": "kimi-linear-48b", "budget": 4, "interval": 4096,
        },
        "chat": {"trace": "chat-like", "model": "kimi-linear-48b", "budget": 64, "interval": 4096},
    },
    film=film,
    figures=1,
    legend=False,
    terms=(
        ("interval", "`--chunked-prefill-size` (one state a chunk)",
         "`prefix_cache_retention_interval`"),
        ("replay", "tokens prefilled again after `cow_mamba`", "tokens after the hit, recomputed"),
        ("eviction of a checkpoint", "`evict_component`, leaves a tombstone", "free block reused"),
    ),
    code=(("code-replay", LiveReplay.run), ("code-placement", parse_placement)),
    notebook="density",
    exercises=("ex10", "ex11"),
    next=("restore", "tree"),
)  # fmt: skip


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
