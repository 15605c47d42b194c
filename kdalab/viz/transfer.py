"""A state on its way: what prefill has computed, what is on the wire, what is in place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from kdalab.units import format_bytes
from kdalab.viz import svg
from kdalab.viz.css import hue_class

_AXIS_RIGHT, _STATE_X = 742.0, 786.0
_WIRE, _HIGH = 116.0, 92.0
_DECODE = 316.0


class Parcel(Protocol):
    """What is drawn of a piece (``lessons.parcels.Parcel`` is one)."""

    @property
    def attempt(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def latent(self) -> int: ...
    @property
    def recurrent(self) -> int: ...
    @property
    def conv(self) -> int: ...
    @property
    def embedding(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def tick(self) -> int: ...
    @property
    def fate(self) -> str: ...


SPOILED = ("damaged", "cut", "other", "unused")


def transfer_svg(
    *,
    n_tokens: int,
    held: int,
    image: tuple[int, int] | None,
    chunks: Sequence[tuple[int, int, int]],
    parcels: Sequence[Parcel],
    shown: int,
    now: bool,
    done_chunks: int,
    landed: Sequence[tuple[int, int]],
    whole: str,
    generated: Sequence[str],
    wrong: Sequence[bool],
    words: Mapping[str, str],
    label: str,
) -> str:
    """Three rows on top of each other.

    Args:
        n_tokens: of the prompt; both token axes have this scale.
        held: tokens whose latent KV was on the decode side before.
        image: [start, end) of an image in the prompt.
        chunks: (start, end, attempt) that prefill computes; the first ``done_chunks`` by now.
        parcels: the whole story in order of arrival; the first ``shown`` by now. Bars are in
            bytes, to one scale.
        now: whether the last of them is what this step is about.
        landed: [start, end) of latent KV in place on the decode side, beside what it held.
        whole: the state there: "none", "waits" (for latent KV), "here", or "early" (it decodes,
            and latent KV is missing).
        generated: tokens as text, and whether each is another than one engine's (``wrong``).
        words: "prefill", "wire", "decode", "step", "state", "image", "held", "missing", "tokens",
            "attempt", and each fate, in the reader's language.
        label: the text alternative.
    """
    axis = svg.TokenAxis(n_tokens, right=_AXIS_RIGHT)
    parts = [_prefill(axis, chunks, done_chunks, image, words, n_tokens)]
    parts.append(_wire(parcels, shown, now, words))
    parts.append(_decode(axis, held, landed, whole, words, n_tokens))
    x = axis.left
    for text, bad in zip(generated, wrong, strict=True):
        css = "s" if bad else "made"
        box = svg.rect(x, _DECODE + 70, 46, 22, f"tok {css}" if not bad else "dimmed", radius=4)
        parts.append(svg.group(box, hue_class(0)))
        if bad:
            parts.append(svg.hatch(x, _DECODE + 70, 46, 22))
        parts.append(svg.text(x + 23, _DECODE + 85, text, "mid mono halo"))
        x += 52
    if not generated:
        parts.append(svg.text(axis.left, _DECODE + 85, words["no-token"], "small muted"))
    return svg.document("".join(parts), _DECODE + 98, label, css_class="kd-transfer")


def _prefill(
    axis: svg.TokenAxis,
    chunks: Sequence[tuple[int, int, int]],
    done: int,
    image: tuple[int, int] | None,
    words: Mapping[str, str],
    n_tokens: int,
) -> str:
    parts = [svg.text(0, 14, words["prefill"], "strong")]
    y = 28.0
    for number, (start, end, _) in enumerate(chunks):
        css = "tok done" if number < done else "tok waiting"
        box = svg.rect(axis.x(start) + 1, y, axis.width(end - start) - 2, 26, css, radius=3)
        parts.append(svg.group(box, hue_class(0), title=f"{start:,} - {end:,}"))
        if axis.width(end - start) > 24:
            ink = "onbadge small" if number < done else "mid small muted"
            group = svg.text(axis.x((start + end) / 2), y + 17, str(number + 1), ink)
            parts.append(svg.group(group, hue_class(0)))
    if image is not None:
        left, right = axis.x(image[0]), axis.x(image[1])
        parts.append(_hexagon((left + right) / 2, y + 36, 8))
        parts.append(svg.path(f"M{left:.1f} {y + 27:.1f} H{right:.1f}", "bracket"))
        parts.append(svg.text(right + 8, y + 40, words["image"], "small muted"))
    below = y + (54 if image is not None else 42)
    for at in sorted({0, n_tokens, *(c[1] for c in chunks)}):
        if at in (0, n_tokens) or axis.x(n_tokens) - axis.x(at) > 40:
            parts.append(svg.text(axis.x(at), below, f"{at:,}", "small mid muted"))
    return "".join(parts)


def _wire(parcels: Sequence[Parcel], shown: int, now: bool, words: Mapping[str, str]) -> str:
    parts = [svg.text(0, _WIRE, words["wire"], "strong")]
    base = _WIRE + 30 + _HIGH
    most = max((p.nbytes for p in parcels), default=1)
    wide = min(86.0, (svg.WIDTH - 50) / max(1, len(parcels)))
    x = 44.0
    attempt = parcels[0].attempt if parcels else 1
    for number, parcel in enumerate(parcels):
        if parcel.attempt != attempt:
            attempt = parcel.attempt
            if number < shown:
                line = f"M{x - wide * 0.08:.1f} {_WIRE + 12} V{base + 44:.1f}"
                parts.append(svg.path(line, "parting"))
                name = words["attempt"].format(n=attempt)
                parts.append(svg.text(x, _WIRE + 18, name, "small muted"))
        parts.append(_bar(parcel, x, base, wide, most, number, shown, now, words))
        x += wide
    parts.append(svg.path(f"M40 {base:.1f} H{svg.WIDTH - 4}", "line"))
    return "".join(parts)


def _bar(
    parcel: Parcel,
    x: float,
    base: float,
    wide: float,
    most: int,
    number: int,
    shown: int,
    now: bool,
    words: Mapping[str, str],
) -> str:
    box = wide * 0.62
    mid, y = x + wide * 0.42, base
    sizes = (("kv", parcel.latent), ("s", parcel.recurrent), ("c", parcel.conv),
             ("e", parcel.embedding))  # fmt: skip
    parts, left = [], mid - box / 2
    name = words["state"] if parcel.kind == "state" else f"{parcel.start:,}-{parcel.end:,}"
    if parcel.kind == "embedding":
        name = words["image"]
    if number >= shown:
        return svg.text(mid, base + 13, name, "small mid muted later")
    for css, size in sizes:
        high = _HIGH * size / most
        if not size:
            continue
        y -= high
        parts.append(svg.rect(left, y, box, high, css, radius=1.5))
        if high > 15:
            tag = {"kv": "KV", "s": "S", "c": "C", "e": "E"}[css]
            parts.append(svg.text(mid, y + high / 2 + 4, tag, f"tiny mid on{css}"))
    high = base - y
    if parcel.fate in SPOILED:
        parts.append(svg.hatch(left, y, box, high))
    if parcel.fate == "cut":
        parts.append(svg.path(f"M{left - 5:.1f} {y + high / 2:.1f} h{box + 10:.1f}", "parting"))
    parts.append(svg.text(mid, y - 5, format_bytes(parcel.nbytes), "small mid"))
    parts.append(svg.text(mid, base + 13, name, "small mid muted"))
    bad = parcel.fate in SPOILED or parcel.fate == "early"
    ink = "small mid strong hatchink" if bad else "small mid strong"
    parts.append(svg.text(mid, base + 26, words[parcel.fate], ink))
    if parcel.tick:
        step = words["step"].format(n=parcel.tick)
        parts.append(svg.text(mid, base + 39, step, "small mid muted"))
    if now and number == shown - 1:
        deep = 64 if parcel.tick else 50
        half = min(42.0, wide / 2)
        parts.append(svg.rect(mid - half, y - 18, 2 * half, high + deep, "now", radius=5))
    title = f"{name}: {parcel.nbytes:,} bytes, {words[parcel.fate]}"
    return svg.group("".join(parts), title=title)


def _decode(
    axis: svg.TokenAxis,
    held: int,
    landed: Sequence[tuple[int, int]],
    whole: str,
    words: Mapping[str, str],
    n_tokens: int,
) -> str:
    y = _DECODE + 14
    parts = [svg.text(0, _DECODE, words["decode"], "strong")]
    free = svg.rect(axis.x(0), y, axis.width(n_tokens), 26, "free", radius=3)
    parts.append(svg.group(free, title=words["missing"]))
    if held:
        wide = axis.width(held)
        parts.append(svg.rect(axis.x(0) - 2.5, y - 2.5, wide + 5, 31, "shared", radius=5))
        parts.append(svg.rect(axis.x(0), y, wide, 26, "kv", radius=3, title=words["held"]))
        parts.append(svg.lock(axis.x(0) + 5, y + 6, 11))
        if wide > 120:
            parts.append(svg.text(axis.x(held / 2), y + 17, words["held"], "small mid onkv"))
    for start, end in landed:
        wide = axis.width(end - start)
        parts.append(svg.rect(axis.x(start) + 1, y, wide - 2, 26, "kv own", radius=3,
                              title=f"{start:,} - {end:,}"))  # fmt: skip
        if wide > 34:
            parts.append(svg.text(axis.x((start + end) / 2), y + 17, "KV", "small mid onkv"))
    for at in sorted({0, held, n_tokens}):
        parts.append(svg.text(axis.x(at), y + 42, f"{at:,}", "small mid muted"))
    size = 32.0
    top = y - 8
    if whole == "none":
        parts.append(svg.empty_box(_STATE_X, top, size, "tomb"))
    else:
        mark = svg.rect(_STATE_X - 8, top - 2, 4, svg.state_height(size) + 4, "owner")
        parts.append(svg.group(mark, hue_class(0)))
        parts.append(svg.state_box(_STATE_X, top, size, shared=False))
    ink = "small mid hatchink" if whole == "early" else "small mid muted"
    parts.append(svg.text(_STATE_X + size / 2, top + 60, words[f"state-{whole}"], ink))
    return "".join(parts)


def _hexagon(x: float, y: float, r: float) -> str:
    points = [
        (x + r * math.cos(math.pi / 3 * i), y + r * math.sin(math.pi / 3 * i)) for i in range(6)
    ]
    d = "M" + " L".join(f"{a:.1f} {b:.1f}" for a, b in points) + " z"
    return svg.path(d, "e") + svg.text(x, y + 3, "E", "tiny mid one")
