"""Blocks along a prompt: tokens, hash units, and one lane for each group's blocks or states.

Everything stands on one token axis, so that a block's end, a hash unit's end and a state's
boundary can be compared by eye.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kdalab.viz import svg
from kdalab.viz.css import hue_class

_LEFT, _RIGHT = 156.0, 836.0
_BAR, _BLOCK, _STATE = 18.0, 26.0, 20.0


@dataclass(frozen=True, slots=True)
class PromptBar:
    """A prompt: its letter and place in the order of arrival; ``parts`` are (tokens, look), where a
    look is "done", "made", "restored" or "planned". ``words`` are what
    stands in a part of that look, where it has room for more than its number."""

    letter: str
    index: int
    parts: Sequence[tuple[int, str]]
    note: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return sum(n for n, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Lane:
    """One group along the axis.

    ``kind`` "kv": ``cached`` are the boundaries up to which blocks are known; "s": those at which
    a state is cached. ``probes`` are a search's questions in order, (boundary, found);
    ``running`` a state that is not cached; ``wrong`` boundaries whose state is of another length.
    """

    name: str
    note: str
    kind: str
    block: int
    cached: Sequence[int]
    probes: Sequence[tuple[int, bool]] = ()
    fresh: Sequence[int] = ()
    running: int = 0
    wrong: Sequence[int] = ()


def lanes_svg(
    prompts: Sequence[PromptBar],
    lanes: Sequence[Lane],
    *,
    unit: int,
    same: int,
    unit_name: str,
    flag: int | None = None,
    flag_name: str = "",
    stops: Sequence[tuple[int, str]] = (),
    label: str,
) -> str:
    """Prompts above, hash units under them, then the lanes.

    Args:
        unit: tokens of one hash.
        same: units from the start whose hash both prompts have.
        unit_name: the row of hashes in the reader's language.
        flag: boundary of the restore point or the candidate, in tokens.
        stops: boundaries with a word, marked by a dashed line.
        label: the text alternative.
    """
    longest = max(p.tokens for p in prompts)
    cell = max([unit, *(lane.block for lane in lanes)])
    axis = svg.TokenAxis(-(-longest // cell) * cell, _LEFT, _RIGHT)
    parts: list[str] = []
    y = 36.0 if stops else 26.0
    top = y - 4
    for prompt in prompts:
        parts.append(_prompt(axis, y, prompt, [axis.x(at) for at, _ in stops]))
        y += _BAR + 8
    parts.append(_units(axis, y, unit, same, longest, unit_name))
    y += 24
    for lane in lanes:
        drawn, y = _lane(axis, y, lane)
        parts.append(drawn)
    parts.append(_stops(axis, top, y, stops))
    if flag is not None:
        x = axis.x(flag)
        parts.insert(0, svg.path(f"M{x:.1f} 4 V{y:.1f}", "pole"))  # behind what it crosses
        parts.append(svg.path(f"M{x:.1f} 4 l11 4.5 l-11 4.5 z", "pennant"))
        side = x > _RIGHT - 150
        parts.append(
            svg.text(
                x - 6 if side else x + 15, 13, f"{flag_name} {flag:,}",
                "small strong halo" + (" end" if side else ""),
            )
        )  # fmt: skip
    parts.append(_ruler(axis, y + 4, cell))
    return svg.document("".join(parts), y + 26, label, css_class="kd-lanes")


def _stops(axis: svg.TokenAxis, top: float, foot: float, stops: Sequence[tuple[int, str]]) -> str:
    """Dashed lines with their words; of two that stand close, one word goes left, one right."""
    parts, xs = [], [axis.x(boundary) for boundary, _ in stops]
    for i, (x, (_, word)) in enumerate(zip(xs, stops, strict=True)):
        parts.append(svg.path(f"M{x:.1f} {top:.1f} V{foot:.1f}", "parting"))
        left = i > 0 and x - xs[i - 1] < 70
        right = i + 1 < len(xs) and xs[i + 1] - x < 70
        css, shift = "mid", 0.0
        if left != right:
            css, shift = ("", 2.0) if left else ("end", 2.0)
        parts.append(svg.text(x + (shift if left else -shift), 26, word, f"small halo {css}"))
    return "".join(parts)


def _prompt(axis: svg.TokenAxis, y: float, prompt: PromptBar, lines: Sequence[float] = ()) -> str:
    """One prompt; a number that a dashed line would cross, at one of ``lines``, steps aside."""
    parts, at = [svg.badge(16, y + _BAR / 2, prompt.letter, prompt.index)], 0
    parts.append(svg.text(32, y + 13, prompt.note, "small"))
    for tokens, look in prompt.parts:
        if tokens:
            title = f"{prompt.letter}: {at:,} - {at + tokens:,}"
            shape = svg.rect(
                axis.x(at), y, axis.width(tokens), _BAR, f"tok {look}", radius=3, title=title
            )
            parts.append(svg.group(shape, hue_class(prompt.index)))
            if axis.width(tokens) > 40:
                css = "small mid halo" if look != "done" else "tiny mid onbadge"
                middle = axis.x(at + tokens / 2)
                if axis.width(tokens) > 110 and any(abs(middle - x) < 22 for x in lines):
                    middle += 34
                said = prompt.words.get(look, "")
                if not said or _wide(said) > axis.width(tokens) - 8:
                    said = f"{tokens:,}"
                shown = svg.text(middle, y + 13, said, css)
                parts.append(svg.group(shown, hue_class(prompt.index)))
        at += tokens
    return "".join(parts)


def _wide(text: str) -> float:
    """About how wide a small text is; a Chinese or Korean letter takes two places."""
    return 5.9 * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _units(axis: svg.TokenAxis, y: float, unit: int, same: int, tokens: int, name: str) -> str:
    parts = [svg.text(6, y + 9, name, "small muted")]
    for i in range(tokens // unit):
        css = "unit same" if i < same else "unit"
        title = f"{i * unit:,} - {(i + 1) * unit:,}"
        width = axis.width(unit)
        inset = min(1.0, width / 6)
        parts.append(svg.rect(axis.x(i * unit) + inset, y, width - 2 * inset, 9, css, title=title))
    return "".join(parts)


def _lane(axis: svg.TokenAxis, y: float, lane: Lane) -> tuple[str, float]:
    parts = [
        svg.text(6, y + 13, lane.name, "small strong"),
        svg.text(6, y + 26, lane.note, "small muted"),
    ]
    for start in range(0, axis.span, lane.block):
        parts.append(
            svg.rect(axis.x(start) + 1, y, axis.width(lane.block) - 2, _BLOCK + 6, "free", radius=4)
        )
    if lane.kind == "kv":
        parts.append(_kv(axis, y + 3, lane))
    else:
        parts.append(_states(axis, y + 3, lane))
    y += _BLOCK + 14
    if lane.kind == "s":  # below the boxes stand their boundaries
        y += 20 if lane.probes else 8
    if lane.probes:
        parts.append(_probes(axis, y + 4, lane.probes))
    return "".join(parts), y + 22


def _kv(axis: svg.TokenAxis, y: float, lane: Lane) -> str:
    parts, ends = [], sorted(set(lane.cached))
    for block in sorted({(end - 1) // lane.block for end in ends}):
        start = block * lane.block
        inside = [e for e in ends if start < e <= start + lane.block]
        end = inside[-1]
        x, width = axis.x(start) + 3, axis.width(end - start) - 4
        title = f"KV {start:,} - {end:,}"
        parts.append(svg.rect(x, y, width, _BLOCK, "kv own", radius=3, title=title))
        if width > 26:
            parts.append(svg.text(x + width / 2, y + 17, "KV", "tiny mid onkv"))
        if any(e in lane.fresh for e in inside):
            parts.append(svg.rect(x - 2, y - 2, width + 4, _BLOCK + 4, "now", radius=4))
    return "".join(parts)


def _states(axis: svg.TokenAxis, y: float, lane: Lane) -> str:
    parts = []
    shown = [(b, True) for b in lane.cached]
    if lane.running and lane.running not in lane.cached:
        shown.append((lane.running, False))
    last = -100.0
    for boundary, cached in sorted(shown):
        x = axis.x(boundary) - _STATE - 2
        if boundary in lane.wrong:
            parts.append(svg.state_box(x, y, _STATE, shared=False, stale=True))
        elif cached:
            parts.append(svg.state_box(x, y, _STATE, shared=False))
        else:
            parts.append(svg.empty_box(x, y, _STATE, "tomb"))
            parts.append(svg.text(x + _STATE / 2, y + 15, "S", "tiny mid"))
        if boundary in lane.fresh:
            height = svg.state_height(_STATE)
            parts.append(svg.rect(x - 3, y - 3, _STATE + 6, height + 6, "now", radius=6))
        if x - last > 34:
            parts.append(svg.text(x + _STATE, y + 41, f"{boundary:,}", "small end halo"))
            last = x
    return "".join(parts)


def _probes(axis: svg.TokenAxis, y: float, probes: Sequence[tuple[int, bool]]) -> str:
    """Each question where it was asked, numbered in order while they are few."""
    parts = []
    few = (
        len(probes) <= 12 and axis.width(min(abs(a - b) for (a, _), (b, _) in _pairs(probes))) > 15
    )
    for number, (boundary, found) in enumerate(probes, 1):
        x, css = axis.x(boundary), "probe hit" if found else "probe"
        edge = few or number in (1, len(probes))
        r = 7.0 if edge else 2.2
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" class="{css}">'
            f"<title>{boundary:,}</title></circle>"
        )
        if edge:
            ink = "tiny mid onprobe" if found else "tiny mid"
            parts.append(svg.text(x, y + 3, number, ink))
    return "".join(parts)


def _pairs(probes: Sequence[tuple[int, bool]]) -> list[tuple[tuple[int, bool], tuple[int, bool]]]:
    if len(probes) < 2:
        return [((0, False), (1 << 30, False))]
    return list(itertools.pairwise(probes))


def _ruler(axis: svg.TokenAxis, y: float, cell: int) -> str:
    step = cell
    while axis.width(step) < 56:
        step *= 2
    parts = [svg.path(f"M{axis.left:.1f} {y:.1f} H{axis.right:.1f}", "rule")]
    for at in range(0, axis.span + 1, step):
        parts.append(svg.path(f"M{axis.x(at):.1f} {y:.1f} v4", "line"))
        parts.append(svg.text(axis.x(at), y + 16, f"{at:,}", "small muted mid"))
    return "".join(parts)
