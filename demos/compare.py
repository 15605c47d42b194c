"""**Side by side**: SGLang's way and vLLM's way on the same requests, with the same bytes.

``python -m demos.compare`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings, Switches
from demos._film import Film, Row, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import BlockStateCache, RadixStateCache
from kdalab.lessons import Asked, BothRun, run_both
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.side_by_side import SideRow, side_by_side_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

NAMES = (
    "256-again", "400-in-256", "400-coarse", "junction", "fan-out", "again", "96-in-128",
    "4480-coarse", "905k-every-400k",
)  # fmt: skip


class CompareFilm(Film):
    """Request after request through both, then the account."""

    def __init__(self, run: BothRun, kvonly: bool, scenario: str) -> None:
        self.run, self.kvonly, self.scenario = run, kvonly, scenario
        self.asked = run.asked
        self.kinds = [*["request"] * len(self.asked), "account", *["kvonly"] * kvonly]
        self.last = len(self.kinds) - 1
        differs = [i for i, a in enumerate(self.asked) if a.radix.restore != a.block.restore]
        self.first = differs[0] if differs else None
        self.opening = self.last if kvonly or self.first is None else self.first

    def _values(self, step: int) -> dict[str, Any]:
        c = self.run.comparison
        a = self.asked[min(step, len(self.asked) - 1)]
        return {
            "request": a.request.removeprefix("prompt "),
            "tokens": a.n_tokens,
            "radix": a.radix.restore,
            "block": a.block.restore,
            "gap": abs(a.radix.restore - a.block.restore),
            "requests": c.requests,
            "different": c.requests - c.same,
            "radix_hit": c.radix.hit_tokens,
            "block_hit": c.block.hit_tokens,
            "radix_known": c.radix.known_tokens,
            "block_known": c.block.known_tokens,
            "radix_over": c.radix.replayed_tokens,
            "block_over": c.block.replayed_tokens,
        }

    def _key(self, step: int) -> str:
        kind = self.kinds[step]
        if kind != "request":
            return kind
        a = self.asked[step]
        if a.radix.restore == a.block.restore:
            return "same" if a.radix.restore else "cold"
        return "radix" if a.radix.restore > a.block.restore else "block"

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"compare.step-{self._key(step)}", **self._values(step))

    def tone(self, step: int) -> str:
        tones = {"cold": "compute", "account": "finish", "kvonly": "evict"}
        return tones.get(self._key(step), "restore")

    def picture(self, step: int, lang: str) -> str:
        ways = [t(lang, f"compare.way-{w}") for w in ("radix", "block")]
        rows = [
            SideRow(
                a.request,
                a.n_tokens,
                [
                    (way, one.match, one.restore)
                    for way, one in zip(ways, (a.radix, a.block), strict=True)
                ],
                a.radix.restore != a.block.restore,
            )
            for a in self.asked
        ]
        words = {k: t(lang, f"compare.word-{k}") for k in ("scale", "restored", "replay", "new")}
        shown = side_by_side_svg(rows, step, label=self.sentence(step, lang), words=words)
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        kind = self.kinds[step]
        parts: list[tuple[str, str] | str] = [
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>')
        ]
        if kind == "request":
            if step == (len(self.asked) - 1 if self.first is None else self.first):
                parts.append(self._lead(lang))
            parts += _reasons(self.asked[step], lang)
        else:
            parts.append(self._lead(lang))
            parts.append(f"<p>{esc(t(lang, f'compare.why-{kind}', **self._values(step)))}</p>")
            if self.first is not None:
                parts.append(f"<p>{esc(t(lang, 'compare.first', **self._values(self.first)))}</p>")
                parts += _reasons(self.asked[self.first], lang)
        return why_panel(*parts)

    def _lead(self, lang: str) -> tuple[str, str]:
        """What makes the two restore where they do, in this scenario."""
        said = t(lang, f"compare.lead-{self.scenario}")
        return t(lang, "compare.why"), f"<p>{esc(said)}</p>"

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        c = self.run.comparison
        ways = tuple(t(lang, f"compare.way-{w}") for w in ("radix", "block"))
        tokens = ("hit_tokens", "known_tokens", "replayed_tokens", "further", "states_written",
                  "states_read", "copies", "evicted_states")  # fmt: skip
        sizes = ("copied_bytes", "held_bytes", "padding_bytes", "unfilled_bytes", "peak_bytes")
        rows: list[tuple[str | int, ...]] = [
            (t(lang, f"compare.row-{k}"), f"{getattr(c.radix, k):,}", f"{getattr(c.block, k):,}")
            for k in tokens
        ]
        rows += [
            (
                t(lang, f"compare.row-{k}"),
                *(format_bytes(getattr(w, k)) for w in (c.radix, c.block)),
            )
            for k in sizes
        ]
        if c.radix.first_token is not None and c.block.first_token is not None:
            times = (c.radix.first_token.mean, c.block.first_token.mean)
            rows.append((t(lang, "compare.row-first"), *(f"{s * 1e3:.1f} ms" for s in times)))
        found = tuple(
            (a.request, a.n_tokens, a.radix.match, a.radix.restore, a.block.match, a.block.restore)
            for a in self.asked
        )
        columns = tuple(
            t(lang, f"compare.column-{k}")
            for k in ("request", "tokens", "radix-match", "radix", "block-match", "block")
        )
        return (
            Table(t(lang, "compare.table"), (t(lang, "compare.column-what"), *ways), tuple(rows)),
            Table(t(lang, "compare.table-requests"), columns, found),
        )

    def log(self, lang: str) -> Sequence[Row]:
        rows, step = [], 0
        for chapter in self.run.chapters:
            names = ", ".join(chapter.requests)
            at = min(step, len(self.asked) - 1)
            for way, lines in (("radix", chapter.radix), ("block", chapter.block)):
                word = t(lang, f"compare.way-{way}")
                rows += [Row(at, names, word, say(lang, line)) for line in lines]
            step += len(chapter.requests)
        return rows

    @property
    def requests(self) -> Sequence[str]:
        return tuple(", ".join(c.requests) for c in self.run.chapters)

    def data(self) -> dict[str, Any]:
        chapters = [asdict(c) for c in self.run.chapters]
        asked = [asdict(a) for a in self.asked]
        return {**self.run.comparison.as_dict(), "chapters": chapters, "asked": asked}


def _reasons(asked: Asked, lang: str) -> list[tuple[str, str] | str]:
    """Both lists of reasons for one request."""
    parts: list[tuple[str, str] | str] = []
    for way, found in (("radix", asked.radix), ("block", asked.block)):
        lines = "".join(
            f'<li class="{css}">{esc(say(lang, line))}</li>'
            for line in found.why
            for css in ("binds" if line.startswith("binding") else "",)
        )
        head = f"{t(lang, f'compare.way-{way}')}: {found.restore:,}"
        parts.append((head, f"<ul>{lines}</ul>"))
    return parts


@lru_cache(maxsize=16)
def _ran(name: str) -> BothRun:
    return run_both(name, repeats=1)


def film(settings: Settings) -> Film:
    """The film of one setting."""
    name = settings["scenario"]
    return CompareFilm(_ran(name), "kvonly" in settings["breaks"], name)


LESSON = Lesson(
    slug="compare",
    group="systems",
    controls=(
        Choice("scenario", NAMES, "256-again", width=320),
        Switches("breaks", ("kvonly",)),
    ),
    film=film,
    legend=False,
    terms=(
        ("tree", "`MambaRadixCache`, since 0.5.23 `UnifiedRadixCache`", "-"),
        ("blocks", "-", "`HybridKVCacheCoordinator`, `MambaManager`"),
        ("restore point", "`match_prefix`: the last node with a state",
         "`find_longest_cache_hit`"),
    ),
    code=(("code-radix", RadixStateCache.lookup), ("code-block", BlockStateCache.lookup)),
    notebook="sglang_and_vllm",
    exercises=("ex24",),
    next=("restore", "tree"),
)  # fmt: skip


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
