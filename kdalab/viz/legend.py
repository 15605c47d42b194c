"""The legend of the pictures: the same shapes, small, with their names."""

from __future__ import annotations

from kdalab.viz import svg
from kdalab.viz.css import hue_class


def legend_html() -> str:
    """What the shapes of the restore pictures mean, as one wrapping line of HTML."""
    box = svg.state_height(14)
    items = [
        (_icon(svg.rect(1, 7, 10, 10, "kv") + svg.rect(13, 7, 10, 10, "kv"), 24), "KV latent page"),
        (
            _icon(svg.state_box(5, (24 - box) / 2, 14, shared=False), 24),
            "S recurrent + C conv state",
        ),
        (_icon(svg.state_box(5, (24 - box) / 2, 14, shared=True), 24), "shared, read-only"),
        (
            _icon(
                svg.group(svg.rect(1, 3, 3, 18, "owner"), hue_class(0))
                + svg.state_box(7, (24 - box) / 2, 14, shared=False),
                24,
            ),
            "private, owner's letter and bar",
        ),
        (_icon(svg.lock(6, 6, 11), 24), "locked: someone reads it"),
        (_icon(svg.empty_box(4, 2, 14, "tomb"), 24), "tombstone: KV without a state"),
        (_icon(svg.rect(4, 5, 13, 13, "free"), 24), "free"),
        (_icon(svg.rect(4, 5, 13, 13, "now", radius=3), 24), "touched in this step"),
        (
            _icon(
                svg.path("M6 3 V22", "pole") + svg.path("M6 3 l11 4.5 l-11 4.5 z", "pennant"), 20
            ),
            "restore point",
        ),
        (_icon(svg.path("M2 16 v-5 H22 v5", "bracket"), 24), "token match"),
        (
            _icon(
                svg.group(svg.path("M5 6 l6 6 l-6 6 M12 6 l6 6 l-6 6", "chevron"), hue_class(1)), 24
            ),
            "replay",
        ),
        (
            _icon(svg.group(svg.rect(2, 5, 18, 14, "tok done"), hue_class(1)), 24),
            "new tokens",
        ),
        (_icon(svg.path("M10 1 V23", "gridpoint"), 20), "checkpoint spacing"),
        (
            _icon(svg.rect(3, 4, 16, 16, "s", radius=3) + svg.hatch(3, 4, 16, 16), 22),
            "stale: wrong on purpose",
        ),
    ]
    spans = "".join(f"<span>{icon}{svg.esc(label)}</span>" for icon, label in items)
    return f'<div class="kd-legend" role="note" aria-label="Legend">{spans}</div>'


def _icon(shape: str, width: int) -> str:
    return (
        f'<svg class="kd-svg" viewBox="0 0 {width} 24" width="{width}" height="24" '
        f'aria-hidden="true" xmlns="http://www.w3.org/2000/svg">{shape}</svg>'
    )
