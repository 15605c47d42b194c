"""State slots with their owners, now and over the steps; copies and donations as arrows."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Protocol

from kdalab.viz import svg
from kdalab.viz.css import hue_class

_BOX, _TOP, _LEFT = 34.0, 76.0, 8.0


class Slot(Protocol):
    """What is drawn of a slot (``lessons.SlotView`` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def readers(self) -> tuple[str, ...]: ...
    @property
    def of(self) -> int: ...
    @property
    def over(self) -> int: ...


def owners_svg(
    slots: Sequence[Slot],
    names: Sequence[str],
    *,
    words: Mapping[str, str],
    label: str,
    moves: Sequence[tuple[str, str]] = (),
    queued: Sequence[tuple[str, str]] = (),
    highlight: Sequence[str] = (),
    wrong: Sequence[str] = (),
) -> str:
    """One row of state slots.

    Args:
        slots: in the order of the pool; a gap is left where the names' kind changes.
        names: requests in order of arrival, for their hues.
        words: roles, "pool", "active-pool", "checkpoint-pool", "queued", "given" in the reader's
            language.
        label: the text alternative.
        moves: (from, to) of states that moved in this step; from a slot to itself: a donation.
        queued: copies that are decided and not made yet.
        highlight: names of slots that the step is about.
        wrong: requests whose state is wrong on purpose.
    """
    places = _places(slots)
    kinds = {s.name.split(":")[0] for s in slots}
    parts = []
    if len(kinds) == 1 or _is_one_pool(slots):
        parts.append(svg.text(0, 12, words["pool"], "strong"))
    else:
        parts.append(svg.text(0, 12, words["active-pool"], "strong"))
        first = next(s for s in slots if s.name.startswith("checkpoint"))
        parts.append(svg.text(places[first.name] - 8, 12, words["checkpoint-pool"], "strong"))
    rings = {h.split(":")[1] if _is_one_pool(slots) else h for h in highlight}
    for number, slot in enumerate(slots):
        x = places[slot.name]
        key = str(number) if _is_one_pool(slots) else slot.name
        if key in rings:
            high = svg.state_height(_BOX) + 14
            parts.append(svg.rect(x - 8, _TOP - 7, _BOX + 16, high, "now", radius=8))
        parts.append(_slot(slot, x, number, names, words, wrong))
    at = {s.name: places[s.name] for s in slots}
    if _is_one_pool(slots):
        for i, s in enumerate(slots):
            at[f"active:{i}"] = at[f"checkpoint:{i}"] = places[s.name]
    known = [(a, b) for a, b in moves if a in at and b in at]
    parts += [_arrow(at[a], at[b], "", words) for a, b in known if at[a] != at[b]]
    for number, (a, b) in enumerate(queued):
        note = "" if number else words["queued"]
        parts.append(_arrow(at[a], at[b], note, words))
    # A donation's word stands over the arcs that pass it.
    parts += [_arrow(at[a], at[b], "", words) for a, b in known if at[a] == at[b]]
    return svg.document("".join(parts), 174, label, css_class="kd-owners", targets=True)


def history_svg(
    steps: Sequence[Sequence[Slot]],
    names: Sequence[str],
    step: int,
    *,
    words: Mapping[str, str],
    label: str,
    copies: Sequence[tuple[int, int, int]] = (),
    ahead: bool = True,
) -> str:
    """Owner of every slot over the steps: a row a slot, a column a step.

    ``copies`` are (step, row from, row to). The column of ``step`` is framed.
    Without ``ahead`` the columns after it stay empty.
    """
    one = _is_one_pool(steps[0])
    left, row, top = 66.0 if one else 96.0, 13.0, 26.0
    wide = min(34.0, (svg.WIDTH - left - 6) / max(1, len(steps)))
    parts = [svg.text(0, 12, words["history"], "strong")]
    for number in range(len(steps[0])):
        y = top + number * row
        first = steps[0][number]
        pool = "active" if first.name.startswith("active") else "checkpoint"
        name = str(number) if one else f"{words[pool]} {number_of(first)}"
        parts.append(svg.text(left - 8, y + 9.5, name, "small end muted"))
        parts.append(svg.path(f"M{left} {y + 6:.1f} H{left + wide * len(steps):.1f}", "rule"))
        for column, slots in enumerate(steps if ahead else steps[: step + 1]):
            parts.append(_past(slots[number], left + column * wide, y, wide, row, names, words))
    for column, a, b in copies:
        if column > step and not ahead:
            continue
        x = left + (column + 0.5) * wide
        y0, y1 = top + a * row + 6, top + b * row + 6
        tip = 4 if y1 > y0 else -4
        parts.append(svg.path(f"M{x:.1f} {y0:.1f} V{y1 - tip:.1f}", "pole"))
        head = f"M{x - 3.5:.1f} {y1 - tip:.1f} h7 l-3.5 {tip} z"
        parts.append(svg.path(head, "pennant"))
    high = row * len(steps[0])
    parts.append(svg.rect(left + step * wide, top - 3, wide, high + 5, "now", radius=3))
    return svg.document("".join(parts), top + high + 6, label, css_class="kd-history")


def _is_one_pool(slots: Sequence[Slot]) -> bool:
    numbers = [s.name.split(":")[1] for s in slots]
    return len(set(numbers)) == len(numbers)


def _places(slots: Sequence[Slot]) -> dict[str, float]:
    split = not _is_one_pool(slots)
    step = min(64.0, (svg.WIDTH - 2 * _LEFT - 40 * split) / len(slots))
    places, gap = {}, 0.0
    for number, slot in enumerate(slots):
        if split and slot.name == "checkpoint:0":
            gap = 40.0
        places[slot.name] = _LEFT + number * step + gap + 4
    return places


def _slot(
    slot: Slot,
    x: float,
    number: int,
    names: Sequence[str],
    words: Mapping[str, str],
    wrong: Sequence[str],
) -> str:
    middle = x + _BOX / 2
    who = slot.owner or words[slot.role]
    seen = seen_of(slot)
    title = f"{slot.name.split(':')[1]}: {who}, {words[slot.role]}"
    if seen:
        title += f", {words['seen'].format(tokens=seen)}"
    if slot.role == "free":
        shape = svg.empty_box(x, _TOP, _BOX, "free")
    elif slot.role in ("spare", "waiting"):
        shape = svg.empty_box(x, _TOP, _BOX, "tomb") + _bar(x, names, slot.owner)
    elif slot.role == "alias":
        shape = svg.empty_box(x, _TOP, _BOX, "tomb") + _bar(x, names, slot.owner)
        shape += svg.text(middle, _TOP + 27, f"= {slot.of}", "mid strong")
    elif slot.role == "overwritten":
        shape = svg.state_box(x, _TOP, _BOX, shared=True, stale=True)
    else:
        stale = slot.owner in wrong
        shape = svg.state_box(x, _TOP, _BOX, shared=slot.role == "cached", stale=stale)
        if slot.role == "cached":
            if slot.readers:
                shape += svg.lock(x + _BOX - 4, _TOP - 9, 11)
        else:
            shape += _bar(x, names, slot.owner)
    if slot.owner:
        shape += svg.badge(x + _BOX + 1, _TOP - 1, slot.owner, names.index(slot.owner), 8)
    shape += svg.text(middle, _TOP - 12, seen, "small mid strong") if seen else ""
    shape += svg.text(middle, _TOP + 67, number_of(slot), "small mid muted")
    shape += _inside(middle, _TOP + 81, words[slot.role], "small")
    return svg.group(shape, title=title, pick=slot.name)


def _inside(middle: float, y: float, words: str, css_class: str) -> str:
    """Small words around ``middle``, moved where the picture's edge would cut them."""
    half = sum(11.5 if unicodedata.east_asian_width(c) in "WF" else 6.8 for c in words) / 2
    if middle < half:
        return svg.text(1, y, words, css_class)
    if middle > svg.WIDTH - half:
        return svg.text(svg.WIDTH - 1, y, words, f"{css_class} end")
    return svg.text(middle, y, words, f"{css_class} mid")


def number_of(slot: Slot) -> str:
    """The slot's number in its pool."""
    return slot.name.split(":")[1]


def seen_of(slot: Slot) -> str:
    """Tokens that the slot's state has seen, and what has been written over them; "" of none."""
    own = f"{slot.tokens:,}" if slot.tokens else ""
    return f"{own} + {slot.over:,}" if slot.over else own


def _bar(x: float, names: Sequence[str], owner: str) -> str:
    bar = svg.rect(x - 5, _TOP, 3, svg.state_height(_BOX), "owner")
    return svg.group(bar, hue_class(names.index(owner)))


def _arrow(x0: float, x1: float, note: str, words: Mapping[str, str]) -> str:
    a, b, y = x0 + _BOX / 2, x1 + _BOX / 2, _TOP - 24
    if a == b:
        return _inside(a, y - 9, words["given"], "small strong halo")
    curve = f"M{a:.1f} {y:.1f} C{a:.1f} 24 {b:.1f} 24 {b:.1f} {y - 5:.1f}"
    head = f"M{b - 5:.1f} {y - 7:.1f} h10 l-5 8 z"
    text = svg.text((a + b) / 2, y - 2, note, "small mid strong halo") if note else ""
    return svg.path(curve, "move") + svg.path(head, "movehead") + text


def _past(
    slot: Slot,
    x: float,
    y: float,
    wide: float,
    high: float,
    names: Sequence[str],
    words: Mapping[str, str],
) -> str:
    if slot.role == "free":
        return ""
    who = slot.owner or words["cached"]
    title = f"{number_of(slot)}: {who}, {words[slot.role]}"
    if slot.role == "cached":
        box = svg.rect(x, y + 1, wide, high - 2, "s", title=title)
        return box + svg.path(f"M{x:.1f} {y + high / 2:.1f} h{wide:.1f}", "inner")
    if slot.role == "overwritten":
        box = svg.rect(x, y + 1, wide, high - 2, "s", title=title)
        return box + svg.hatch(x, y + 1, wide, high - 2)
    css = {"active": "tok done", "kept": "tok made"}.get(slot.role, "tok waiting")
    box = svg.rect(x, y + 1, wide, high - 2, css, title=title)
    if wide >= 12 and "waiting" not in css:
        box += svg.text(x + wide / 2, y + high - 3.5, slot.owner, "tiny onbadge")
    return svg.group(box, hue_class(names.index(slot.owner)))
