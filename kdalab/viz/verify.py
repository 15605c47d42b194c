"""A verify step: drafted tokens, the state after each, and the one that is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.why import format_difference

_BOX, _LINE, _TOKENS, _STATES, _BELOW = 34.0, 30.0, 100.0, 178.0, 292.0


class Kept(Protocol):
    """The state after one token (``lessons.KeptState`` is one)."""

    @property
    def seen(self) -> int: ...
    @property
    def off(self) -> float: ...
    @property
    def fate(self) -> str: ...


def verify_svg(
    *,
    n_prompt: int,
    n_new: int,
    made: Sequence[str],
    wrong: Sequence[bool],
    boundary: int,
    tokens: Sequence[str],
    accepted: int,
    kept: Sequence[Kept],
    chosen: Sequence[str],
    slot_seen: int,
    slot_off: float,
    checkpoint: bool,
    words: Mapping[str, str],
    label: str,
) -> str:
    """The answer so far, one verify step in columns, and the two slots that remain.

    Args:
        n_prompt, n_new: tokens of the prompt and of the whole answer.
        made: generated tokens so far, as text; ``wrong`` marks those that plain decoding does not
            choose.
        boundary: where a checkpoint is wanted.
        tokens: what went into this step: the last known token, then the drafts. Empty: no step.
        accepted: drafts that were right.
        kept: the state after each of them.
        chosen: what the model chooses after each of them.
        slot_seen, slot_off: tokens that the active slot's state has seen by its count, and its max
            |difference| from plain decoding.
        checkpoint: whether the checkpoint at ``boundary`` has been taken.
        words: "answer", "boundary", "known", "right", "rejected", "committed", "passed",
            "caught", "active", "checkpoint", "none", "model", "draft", "off" in the reader's
            language.
        label: the text alternative.
    """
    parts = [svg.text(0, 12, words["answer"], "strong")]
    parts += _answer(n_prompt, n_new, made, wrong, boundary, words)
    count = max(1, len(tokens))
    step = min(104.0, (svg.WIDTH - 10) / count)
    for i, token in enumerate(tokens):
        middle = 48 + i * step if step > 90 else step * (i + 0.5)
        parts.append(_column(i, middle, step, token, accepted, kept[i], chosen[i], words))
    parts.append(_slots(slot_seen, slot_off, boundary, checkpoint, words))
    for i, state in enumerate(kept):
        middle = 48 + i * step if step > 90 else step * (i + 0.5)
        if state.fate in ("committed", "boundary"):
            parts.append(_down(middle, 48.0 if state.fate == "committed" else 460.0))
    return svg.document("".join(parts), _BELOW + 92, label, css_class="kd-verify")


def _answer(
    n_prompt: int,
    n_new: int,
    made: Sequence[str],
    wrong: Sequence[bool],
    boundary: int,
    words: Mapping[str, str],
) -> list[str]:
    wide = svg.WIDTH / n_new
    parts = []
    for i in range(n_new):
        x = i * wide
        where = f"{n_prompt + i:,}"
        css = "tok waiting" if i >= len(made) else "tok planned"
        shape = svg.rect(x + 1, _LINE, wide - 2, 22, css, radius=3, title=where)
        if i < len(made):
            if wrong[i]:
                shape += svg.hatch(x + 1, _LINE, wide - 2, 22)
            shape += svg.text(x + wide / 2, _LINE + 15, made[i], "small mid mono halo")
        parts.append(svg.group(shape, hue_class(0)))
    x = (boundary - n_prompt) * wide
    parts.append(svg.path(f"M{x:.1f} {_LINE - 8} V{_LINE + 30}", "pole"))
    parts.append(svg.text(x + 4, _LINE - 5, f"{words['boundary']} {boundary:,}", "small strong"))
    return parts


def _column(
    index: int,
    middle: float,
    step: float,
    token: str,
    accepted: int,
    state: Kept,
    chosen: str,
    words: Mapping[str, str],
) -> str:
    right = index <= accepted
    head = words["known"] if index == 0 else f"{words['draft']} {index}"
    parts = [svg.text(middle, _TOKENS - 18, head, "small mid muted")]
    wide = min(58.0, step - 10)
    box = svg.rect(middle - wide / 2, _TOKENS - 10, wide, 24, "tok planned" if right else "tomb",
                   radius=4)  # fmt: skip
    parts.append(svg.group(box, hue_class(0)))
    parts.append(svg.text(middle, _TOKENS + 6, token, "mid mono strong"))
    sign = words["known"] if index == 0 else words["right" if right else "rejected"]
    css = "small mid kd-good-ink" if right else "small mid hatchink"
    if index:
        parts.append(svg.text(middle, _TOKENS + 29, ("✓ " if right else "✗ ") + sign, css))
    y = _STATES
    x = middle - _BOX / 2
    stale = not right or state.off != 0
    box_shape = svg.state_box(x, y, _BOX, shared=state.fate == "boundary", stale=stale)
    if state.fate == "committed":
        high = svg.state_height(_BOX) + 14
        box_shape = svg.rect(x - 8, y - 7, _BOX + 16, high, "now", radius=8) + box_shape
    parts.append(box_shape)
    parts.append(svg.text(middle, y - 14, f"{state.seen:,}", "small mid strong"))
    fate = words["caught" if state.fate == "boundary" else state.fate]
    css = "small mid strong" if state.fate in ("committed", "boundary") else "small mid muted"
    parts.append(svg.text(middle, y + 66, fate, css))
    off = format_difference(state.off)
    css = "small mid kd-good-ink" if state.off == 0 else "small mid hatchink"
    parts.append(svg.text(middle, y + 80, f"{words['off']} {off}", css))
    title = f"{state.seen:,}: {fate}, max |difference| {off}; {words['model']}: {chosen}"
    return svg.group("".join(parts), title=title)


def _slots(seen: int, off: float, boundary: int, checkpoint: bool, words: Mapping[str, str]) -> str:
    y = _BELOW + 26
    parts = []
    parts.append(svg.state_box(31, y, _BOX, shared=False, stale=off != 0))
    bar = svg.rect(24, y, 3, svg.state_height(_BOX), "owner")
    parts.append(svg.group(bar + svg.badge(67, y - 1, "A", 0, 8), hue_class(0)))
    said = f"{words['active']}: {seen:,}"
    parts.append(svg.text(84, y + 18, said, "strong"))
    css = "small kd-good-ink" if off == 0 else "small hatchink"
    parts.append(svg.text(84, y + 36, f"max |difference| {format_difference(off)}", css))
    if checkpoint:
        parts.append(svg.state_box(443, y, _BOX, shared=True))
        parts.append(svg.text(494, y + 18, f"{words['checkpoint']}: {boundary:,}", "strong"))
    else:
        parts.append(svg.empty_box(443, y, _BOX, "free"))
        parts.append(svg.text(494, y + 18, words["none"], "muted"))
    return "".join(parts)


def _down(x: float, to: float) -> str:
    y0, y1 = _STATES + 86, _BELOW + 18
    curve = f"M{x:.1f} {y0} C{x:.1f} {y0 + 22} {to:.1f} {y0 + 6} {to:.1f} {y1 - 6}"
    head = f"M{to - 5:.1f} {y1 - 8} h10 l-5 8 z"
    return svg.path(curve, "move") + svg.path(head, "movehead")
