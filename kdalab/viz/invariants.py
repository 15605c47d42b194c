"""Rules and what their absence costs, a row each; the tokens of one run beside the right ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.why import format_difference

_ROW, _TOP = 24.0, 44.0
_X = {"rule": 8.0, "who": 312.0, "state": 412.0, "wrong": 606.0, "check": 690.0}
_BAR, _LOW, _HIGH = 120.0, -6.0, 1.0
"""Bars are logarithmic, from 1e-6 to 10."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule: its name, who polluted whom (letters), the largest difference, the first wrong
    token as text, the check. ``run`` is False for one that has not been switched off yet."""

    name: str
    polluter: str = ""
    victim: str = ""
    difference: float = 0.0
    wrong: str = ""
    check: str = ""
    run: bool = True
    good: bool = False


def rules_svg(
    rows: Sequence[RuleRow],
    here: int,
    made: Sequence[str],
    right: Sequence[str],
    *,
    words: Mapping[str, str],
    label: str,
) -> str:
    """The rows, ``here`` marked, and under them the victim's tokens over the right ones.

    ``words``: "rule", "who", "state", "wrong", "check", "made", "right", "scale".
    """
    parts = [svg.text(x, 18, words[name], "small strong") for name, x in _X.items()]
    parts.append(svg.text(_X["state"], 31, words["scale"], "tiny muted"))
    parts.append(svg.path(f"M4 36 H{svg.WIDTH - 4}", "line"))
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        if number == here:
            parts.append(svg.rect(2, y - 2, svg.WIDTH - 4, _ROW - 1, "now", radius=4))
        parts.append(_row(row, y + 14))
    y = _TOP + len(rows) * _ROW + 12
    if right:
        parts.append(_tokens(made, right, y, words))
    return svg.document("".join(parts), y + (72 if right else 4), label, css_class="kd-rules")


def _row(row: RuleRow, y: float) -> str:
    if not row.run:
        return svg.group(svg.text(_X["rule"], y, row.name, "small muted"), "later")
    parts = [svg.text(_X["rule"], y, row.name, "small strong" if row.good else "small")]
    x = _X["who"] + 9
    if row.polluter:
        parts.append(_who(row.polluter, x, y - 4))
        x += 0 if len(row.polluter) == 1 else 14
        parts.append(svg.path(f"M{x + 16:.1f} {y - 4:.1f} h14", "pole"))
        parts.append(svg.path(f"M{x + 30:.1f} {y - 7.5:.1f} v7 l6 -3.5 z", "pennant"))
        x += 50
    parts.append(_who(row.victim, x, y - 4))
    parts.append(svg.path(f"M{_X['state']} {y - 11:.1f} v14", "line"))
    if math.isnan(row.difference):
        parts.append(svg.hatch(_X["state"] + 1, y - 10, _BAR, 12))
    elif row.difference > 0:
        share = (math.log10(row.difference) - _LOW) / (_HIGH - _LOW)
        wide = _BAR * min(1.0, max(0.02, share))
        parts.append(svg.rect(_X["state"] + 1, y - 10, wide, 12, "score saving"))
    text = format_difference(row.difference)
    parts.append(svg.text(_X["state"] + _BAR + 8, y, text, "small"))
    ink = "small kd-good-ink" if row.good else "small"
    parts.append(svg.text(_X["wrong"], y, row.wrong, ink))
    parts.append(svg.text(_X["check"], y, row.check, "mono"))
    return "".join(parts)


def _who(name: str, x: float, y: float) -> str:
    """A request's letter; a longer name as text."""
    if len(name) == 1:
        return svg.badge(x, y, name, max(0, ord(name) - ord("A")))
    return svg.text(x - 9, y + 4, name[:7], "tiny")


def _tokens(made: Sequence[str], right: Sequence[str], y: float, words: Mapping[str, str]) -> str:
    parts = []
    for line, (name, tokens) in enumerate((("right", right), ("made", made))):
        top = y + line * 30
        parts.append(svg.text(8, top + 16, words[name], "small"))
        for place, token in enumerate(tokens):
            x = 240 + place * 60.0
            box = svg.rect(x, top, 54, 23, "tok made", radius=4)
            parts.append(svg.group(box, hue_class(1)))
            if line and token != right[place]:
                parts.append(svg.hatch(x, top, 54, 23))
            parts.append(svg.text(x + 27, top + 16, token, "mid mono halo"))
    return "".join(parts)
