"""The refusal matrix as a list of offers: what differs, the field that refuses, both values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kdalab.viz import svg

_ROW, _TOP = 20.0, 40.0
_COLUMNS = {"case": 8.0, "verdict": 292.0, "field": 380.0, "ours": 528.0, "theirs": 694.0}
_MARK = 268.0


@dataclass(frozen=True, slots=True)
class Offer:
    """One row: ``case`` in the reader's language, ``field`` and values as the check names them."""

    case: str
    refused: bool
    field: str
    ours: str
    theirs: str


def refusals_svg(
    offers: Sequence[Offer], shown: int, *, words: Mapping[str, str], label: str
) -> str:
    """The first ``shown`` offers have been judged, and the last of them just now.

    ``words``: "case", "verdict", "field", "ours", "theirs", "taken", "refused".
    """
    parts = [svg.text(x, 18, words[name], "small strong") for name, x in _COLUMNS.items()]
    parts.append(svg.path(f"M4 26 H{svg.WIDTH - 4}", "line"))
    for number, offer in enumerate(offers):
        y = _TOP + number * _ROW
        if number == shown - 1:
            parts.append(svg.rect(2, y - 14, svg.WIDTH - 4, _ROW, "now", radius=4))
        if number >= shown:
            row = svg.text(_COLUMNS["case"], y, offer.case, "small muted")
            parts.append(svg.group(row, "later"))
            continue
        ink = "small hatchink strong" if offer.refused else "small kd-good-ink"
        parts.append(svg.text(_COLUMNS["case"], y, offer.case, "small"))
        parts.append(_mark(_MARK, y - 4, offer.refused))
        verdict = words["refused" if offer.refused else "taken"]
        parts.append(svg.text(_COLUMNS["verdict"], y, verdict, ink))
        for name in ("field", "ours", "theirs"):
            value = getattr(offer, name)
            parts.append(svg.text(_COLUMNS[name], y, _short(value), "mono"))
    height = _TOP + len(offers) * _ROW
    return svg.document("".join(parts), height, label, css_class="kd-refusals")


def _mark(x: float, y: float, refused: bool) -> str:
    """A cross or a tick, so that the verdict does not rest on a colour."""
    if refused:
        return svg.path(f"M{x:.1f} {y - 4:.1f} l8 8 M{x + 8:.1f} {y - 4:.1f} l-8 8", "bracket")
    return svg.path(f"M{x - 1:.1f} {y:.1f} l4 4 l7 -9", "bracket")


def _short(text: str) -> str:
    return text if len(text) <= 21 else text[:20] + "…"
