"""**Groups, padding, packed**: how layers of unlike sizes share blocks, in bytes to scale.

``python -m demos.groups`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches
from demos._film import Film, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import GroupKind, attention_block, group_layers, packed_layout, padded_layout
from kdalab.lessons import GroupingRun, LayoutBytes, play_groups
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.block_bytes import BlockRow, Piece, block_bytes_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table

_STEPS = ("state", "round", "pad", "groups", "places", "packed", "fitted", "total")


class GroupsFilm(Film):
    """From one layer's page to all layers' blocks."""

    def __init__(self, run: GroupingRun, breaks: tuple[str, ...]) -> None:
        self.run, self.breaks = run, breaks
        refused = ["refused"] * ("small" in breaks and bool(run.refusal))
        self.kinds = [*_STEPS[:3], *refused, *_STEPS[3:]]
        self.last = len(self.kinds) - 1
        telling = "refused" if refused else "places" if breaks else "groups"
        self.opening = self.kinds.index(telling)

    def _values(self) -> dict[str, Any]:
        run = self.run
        padded, packed, fitted = run.layouts
        states = [i for i, g in enumerate(padded.layout.groups) if g.kind is GroupKind.STATE]
        layers = [len(g.layers) for g in padded.layout.groups]
        empty = max(layers) * len(layers) - sum(layers)
        return {
            "model": run.model.name,
            "tp": run.tp,
            "align": run.align,
            "state": format_bytes(run.state_bytes),
            "state_bytes": run.state_bytes,
            "token": run.token_bytes,
            "exact": f"{run.exact:,.1f}",
            "block": run.block,
            "smaller": run.block - run.align,
            "page": format_bytes(run.page_bytes),
            "page_bytes": run.page_bytes,
            "lost": run.page_bytes - run.state_bytes,
            "share": f"{100 * (run.page_bytes - run.state_bytes) / run.page_bytes:.1f}",
            "groups": len(layers),
            "full": layers[0],
            "state_layers": sum(layers[i] for i in states),
            "places": max(layers),
            "empty": empty,
            "place": format_bytes(sum(padded.places)),
            "pages": format_bytes(sum(padded.pages)),
            "stride": format_bytes(padded.layout.stride),
            "packed_lost": format_bytes(sum(packed.places)),
            "packed_stride": format_bytes(packed.layout.stride),
            "fitted": fitted.block,
            "fitted_stride": format_bytes(fitted.layout.stride),
            "fitted_kv": format_bytes(fitted.places[0]),
            "fitted_state": format_bytes(sum(fitted.places[1:])),
            "context": run.context,
            "states": run.states,
            "lost_padded": format_bytes(padded.lost_total),
            "lost_packed": format_bytes(packed.lost_total),
            "lost_fitted": format_bytes(fitted.lost_total),
            "used": format_bytes(padded.used_total),
        }

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"groups.step-{self.kinds[step]}", **self._values())

    def tone(self, step: int) -> str:
        return "evict" if self.kinds[step] == "refused" else "plain"

    def picture(self, step: int, lang: str) -> str:
        kind = self.kinds[step]
        if kind in ("state", "round", "pad", "refused"):
            parts, top = self._one_layer(kind, lang)
        elif kind == "total":
            parts, top = self._totals(lang)
        else:
            parts, top = self._blocks(kind, lang)
        shown = block_bytes_svg(
            parts, top=top, scale=t(lang, "groups.scale"), label=self.sentence(step, lang)
        )
        return f'<div class="kd-scroll">{shown}</div>'

    def _one_layer(self, kind: str, lang: str) -> tuple[list[tuple[str, list[BlockRow]]], int]:
        """One layer's page of either kind."""
        run = self.run
        exact, step = run.state_bytes, run.align * run.token_bytes
        tokens = {"state": 0, "refused": run.block - run.align}.get(kind, run.block)
        steps = tokens // run.align or -(-exact // step)
        steps = min(steps, 96)
        kv_bytes = tokens * run.token_bytes or exact
        cut = [kv_bytes * i // steps for i in range(steps + 1)]
        name = t(lang, "groups.tokens", tokens=tokens) if tokens else f"{run.exact:,.1f}"
        kv = BlockRow(
            t(lang, "groups.row-kv"), name if tokens else t(lang, "groups.exact", exact=name),
            [Piece("kv", b - a, f"{b - a:,} B") for a, b in pairwise(cut)],
            format_bytes(kv_bytes), kind == "round",
        )  # fmt: skip
        recurrent = exact - run.conv_bytes
        pieces = [
            Piece("s", recurrent, t(lang, "groups.recurrent", bytes=recurrent)),
            Piece("c", run.conv_bytes, t(lang, "groups.conv", bytes=run.conv_bytes)),
        ]
        total = exact
        if kind == "pad":
            lost = run.page_bytes - exact
            pieces.append(Piece("pad", lost, t(lang, "groups.padding", bytes=lost)))
            total = run.page_bytes
        state = BlockRow(
            t(lang, "groups.row-state"), t(lang, "groups.one-state"), pieces,
            format_bytes(total), kind in ("state", "pad"),
        )  # fmt: skip
        return [(t(lang, "groups.one-layer"), [state, kv])], run.page_bytes

    def _blocks(self, kind: str, lang: str) -> tuple[list[tuple[str, list[BlockRow]]], int]:
        """A block of every group; the packed layouts beside the padded one."""
        padded, packed, fitted = self.run.layouts
        shown = [padded]
        if kind == "packed":
            shown.append(packed)
        if kind == "fitted":
            shown.append(fitted)
        top = max(x.layout.stride for x in self.run.layouts)
        parts = []
        for layout in shown:
            heading = t(
                lang, f"groups.layout-{layout.name}", block=layout.block,
                stride=format_bytes(layout.layout.stride),
            )  # fmt: skip
            parts.append((heading, self._rows(layout, lang, kind)))
        return parts, top

    def _rows(self, layout: LayoutBytes, lang: str, kind: str) -> list[BlockRow]:
        rows = []
        for i, group in enumerate(layout.layout.groups):
            spec, full = group.spec, group.kind is GroupKind.FULL
            pieces: list[Piece] = []
            for layer in group.layers:
                where = t(lang, "groups.layer", layer=layer + 1)
                pad = spec.held_bytes - spec.page_bytes
                if full:
                    pieces.append(Piece("kv", spec.page_bytes, f"{where}: {spec.page_bytes:,} B"))
                else:
                    pieces.append(
                        Piece("s", spec.recurrent_bytes, f"{where}: {spec.page_bytes:,} B")
                    )
                    pieces.append(Piece("c", spec.conv_bytes, f"{where}: {spec.conv_bytes:,} B"))
                if pad:
                    title = t(lang, "groups.padding", bytes=pad)
                    pieces.append(Piece("pad", pad, f"{where}: {title}"))
            if layout.places[i]:
                title = t(lang, "groups.empty", bytes=layout.places[i])
                pieces.append(Piece("empty", layout.places[i], title))
            number = (
                i
                if full
                else i - sum(g.kind is GroupKind.FULL for g in layout.layout.groups[:i]) + 1
            )
            name = t(lang, "groups.group-kv" if full else "groups.group-state", number=number)
            lost = layout.pages[i] + layout.places[i]
            rows.append(
                BlockRow(
                    name, t(lang, "groups.layers", layers=len(group.layers)), pieces,
                    t(lang, "groups.lost", bytes=format_bytes(lost)),
                    kind == "places" and layout.places[i] > 0,
                )
            )  # fmt: skip
        return rows

    def _totals(self, lang: str) -> tuple[list[tuple[str, list[BlockRow]]], int]:
        rows = []
        for layout in self.run.layouts:
            pieces = [
                Piece("kv", layout.used_total, t(lang, "groups.data", bytes=layout.used_total)),
                Piece("pad", layout.page_total, t(lang, "groups.padding", bytes=layout.page_total)),
                Piece(
                    "empty", layout.place_total, t(lang, "groups.empty", bytes=layout.place_total)
                ),
            ]
            name = t(lang, f"groups.short-{layout.name}")
            note = t(lang, "groups.tokens", tokens=layout.block)
            lost = t(lang, "groups.lost", bytes=format_bytes(layout.lost_total))
            rows.append(BlockRow(name, note, pieces, lost))
        top = max(x.used_total + x.lost_total for x in self.run.layouts)
        return [(t(lang, "groups.total-heading", **self._values()), rows)], top

    def why(self, step: int, lang: str) -> str:
        kind, values = self.kinds[step], self._values()
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        reason = f"<p>{esc(t(lang, f'groups.why-{kind}', **values))}</p>"
        parts: list[tuple[str, str] | str] = [
            (t(lang, "common.in-step"), now),
            (t(lang, "groups.why"), reason),
        ]
        if kind == "refused":
            said = f'<p class="kd-bad">{esc(say(lang, self.run.refusal))}</p>'
            parts.append((t(lang, "groups.layout-says"), said))
        if "single" in self.breaks and kind in ("places", "total"):
            damage = t(lang, "groups.damage", **values)
            parts.append((t(lang, "groups.broken"), f'<p class="kd-bad">{esc(damage)}</p>'))
        parts.append(f'<p class="muted">{esc(self.run.model.source)}</p>')
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        rows: list[tuple[str | int, ...]] = []
        for layout in self.run.layouts:
            name = t(lang, f"groups.short-{layout.name}")
            for i, group in enumerate(layout.layout.groups):
                rows.append(
                    (name, layout.block, group.name, len(group.layers), group.spec.page_bytes,
                     layout.used[i], layout.pages[i], layout.places[i], layout.layout.stride)
                )  # fmt: skip
            rows.append(
                (name, layout.block, t(lang, "groups.all"), "", "", layout.used_total,
                 layout.page_total, layout.place_total,
                 layout.used_total + layout.lost_total)
            )  # fmt: skip
        columns = (
            "layout", "block", "group", "layers", "page", "data", "padding", "places", "stride",
        )  # fmt: skip
        heads = tuple(t(lang, f"groups.column-{c}") for c in columns)
        shown = tuple(tuple(f"{c:,}" if isinstance(c, int) else c for c in row) for row in rows)
        return (Table(t(lang, "groups.table", **self._values()), heads, shown),)

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "model": run.model.name,
            "state_bytes": run.state_bytes,
            "token_bytes": run.token_bytes,
            "state_equals_tokens": run.exact,
            "block": run.block,
            "page_bytes": run.page_bytes,
            "layouts": [
                {
                    "name": x.name,
                    "block": x.block,
                    "stride": x.layout.stride,
                    "groups": [[g.name, len(g.layers)] for g in x.layout.groups],
                    "page_padding": list(x.pages),
                    "place_padding": list(x.places),
                    "used_total": x.used_total,
                    "lost_total": x.lost_total,
                }
                for x in run.layouts
            ],
        }


def film(settings: Settings) -> Film:
    """The film of one setting.

    Raises:
        KdalabError: a TP size that the model's heads do not divide by.
    """
    s = settings
    run = play_groups(
        s["model"], s["tp"], s["kv"], s["align"], s["context"], s["states"],
        "single" in s["breaks"],
    )  # fmt: skip
    return GroupsFilm(run, s["breaks"])


_MODELS = ("kimi-k3", "kimi-linear-48b", "glm-5.3-flash", "qwen3-next-80b")

LESSON = Lesson(
    slug="groups",
    group="vllm",
    controls=(
        Choice("model", _MODELS, "kimi-k3", width=180),
        Choice("tp", (1, 2, 4, 8), 8, width=110),
        Choice("kv", ("fp8", "bf16"), "fp8", width=110),
        Choice("align", (16, 64, 128), 128),
        Choice("context", (32768, 131072, 1048576), 131072),
        Number("states", 1, 64, 8),
        Switches("breaks", ("small", "single")),
    ),
    film=film,
    legend=False,
    terms=(
        ("group", "a pool for each kind of state", "`KVCacheGroupSpec`: layers of equal spec"),
        ("page", "a row of the pool", "`page_size_bytes`, `page_size_padded`"),
        ("padded layout", "-", "one tensor a position, equal pages"),
        ("packed layout", "-", "`block_stride`"),
        ("rounding", "-", "`align * cdiv(mamba_page, align * bytes_per_token)`"),
    ),
    code=(
        ("code-block", attention_block),
        ("code-groups", group_layers),
        ("code-padded", padded_layout),
        ("code-packed", packed_layout),
    ),
    notebook="groups",
    exercises=("ex16", "ex17"),
    next=("sizes", "partial"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
