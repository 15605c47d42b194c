"""The prompts as lines of tokens over one axis: match, restore point, replay and new tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kdalab.engine.view import RequestView, View
from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.svg import TokenAxis

TOP = 30
ROW = 62
CELL_Y = 23
CELL_H = 17
_CHAR = 6.62
_WINDOW = 118


def prompt_svg(
    view: View,
    texts: Mapping[str, Sequence[str]],
    axis: TokenAxis,
    *,
    spacing: int,
    page_tokens: int,
    focus: str = "",
    faults: Mapping[str, str] | None = None,
) -> str:
    """Every prompt of a scenario as it stands in ``view``, aligned at token 0.

    Args:
        view: what has happened so far.
        texts: printable text of each token of each prompt, in order of arrival.
        axis: the scale, shared with ``tree_svg``.
        spacing: tokens between checkpoints, marked on the axis.
        page_tokens: tokens of one latent page; one cell is drawn for each.
        focus: the request that the step concerns; its text is shown where it parts from the
            others.
        faults: requests whose state is wrong on purpose, with the fault's name.
    """
    names = list(texts)
    rows = [
        _row(view.requests.get(name), name, i, len(texts[name]), TOP + ROW * i, axis, page_tokens)
        for i, name in enumerate(names)
    ]
    bottom = TOP + ROW * len(names)
    strip, strip_height = _strip(view, texts, focus, bottom + 4)
    notes = "".join(
        svg.text(
            axis.right, TOP + ROW * names.index(n) + 11, f"on purpose: {f}", "small end strong"
        )
        for n, f in (faults or {}).items()
        if n in names
    )
    content = _axis(axis, spacing, bottom) + "".join(rows) + notes + strip
    label = "Prompts as lines of tokens. " + " ".join(
        f"{r.name}: {r.n_tokens} tokens, token match {r.token_match}, restore point {r.restore}."
        for r in view.requests.values()
    )
    return svg.document(content, bottom + strip_height, label, css_class="kd-prompts")


def _axis(axis: TokenAxis, spacing: int, bottom: float) -> str:
    parts = [svg.text(0, 12, "tokens", "small muted")]
    for at in range(0, axis.span + 1, 64):
        x = axis.x(at)
        on_grid = at and at % spacing == 0
        parts.append(svg.text(x, 12, f"{at:,}", f"small mid {'strong' if on_grid else 'muted'}"))
        parts.append(svg.path(f"M{x:.1f} 16 v5", "line"))
        if on_grid:
            parts.append(svg.path(f"M{x:.1f} 16 V{bottom:.0f}", "gridpoint"))
    parts.append(svg.path(f"M{axis.x(0):.1f} 16 H{axis.x(axis.span):.1f}", "line"))
    return "".join(parts)


def _row(
    request: RequestView | None,
    name: str,
    index: int,
    n_tokens: int,
    y: float,
    axis: TokenAxis,
    page: int,
) -> str:
    top = y + CELL_Y
    parts = [svg.badge(16, top + CELL_H / 2, name, index)]
    shown = request or RequestView(name, n_tokens)
    parts += [
        _cell(shown, at, min(at + page, n_tokens), axis, top) for at in range(0, n_tokens, page)
    ]
    if shown.generated:
        x = axis.x(n_tokens)
        width = axis.width(len(shown.generated))
        title = f"{name}: {len(shown.generated)} generated tokens"
        parts.append(svg.rect(x + 2, top, width, CELL_H, "tok made", title=title))
    if shown.phase != "waiting" or shown.token_match:
        parts.append(_marks(shown, y, axis))
    else:
        parts.append(svg.text(axis.x(0), y + 54, f"{n_tokens:,} tokens, waiting", "small muted"))
    css = hue_class(index) + ("" if request is not None else " later")
    return svg.group("".join(parts), css)


def _cell(request: RequestView, start: int, end: int, axis: TokenAxis, top: float) -> str:
    x, width = axis.x(start) + 0.75, axis.width(end - start) - 1.5
    where = f"{request.name}: tokens {start:,} to {end:,}"
    if request.phase == "waiting" and not request.token_match:
        return svg.rect(x, top, width, CELL_H, "tok waiting", title=f"{where}, waiting")
    if end <= request.restore:
        return svg.rect(x, top, width, CELL_H, "tok restored", title=f"{where}, restored")
    done = end <= request.computed
    how = "done" if done else "planned"
    if start >= request.token_match:
        title = f"{where}, new, {'computed' if done else 'to be computed'}"
        return svg.rect(x, top, width, CELL_H, f"tok {how}", title=title)
    title = f"{where}, known text, {'replayed' if done else 'to be replayed'}"
    middle, half = x + width / 2, min(4.0, width / 4)
    chevrons = " ".join(
        f"M{middle + dx - half / 2:.1f} {top + 4.5:.1f} l{half:.1f} {CELL_H / 2 - 4.5:.1f} "
        f"l{-half:.1f} {CELL_H / 2 - 4.5:.1f}"
        for dx in ((-half, half) if width > 14 else (0.0,))
    )
    css = "chevron done" if done else "chevron"
    return svg.rect(x, top, width, CELL_H, f"tok {how}", title=title) + svg.path(chevrons, css)


def _marks(request: RequestView, y: float, axis: TokenAxis) -> str:
    parts = []
    match, restore, n = request.token_match, request.restore, request.n_tokens
    if match:
        x0, x1 = axis.x(0), axis.x(match)
        parts.append(svg.path(f"M{x0:.1f} {y + 20} v-4 H{x1:.1f} v4", "bracket"))
        beside = 16 if restore == match else 5
        label = f"token match {match:,}"
        if x1 + beside + 6.2 * len(label) < axis.right:
            parts.append(svg.text(x1 + beside, y + 19, label, "small strong"))
        else:
            parts.append(svg.text(x1 - 4, y + 12, label, "small strong end"))
        parts.append(_flag(axis.x(restore), y))
        flag_label = f"restore point {restore:,}"
        if restore == 0:
            parts.append(svg.text(axis.x(0) + 15, y + 11, flag_label, "small strong"))
        else:
            parts.append(svg.text(axis.x(restore) - 5, y + 11, flag_label, "small strong end"))
    spans = [("restored", 0, restore), ("replay", restore, match), ("new", max(match, restore), n)]
    for word, start, end in spans:
        label = f"{word} {end - start:,}"
        if end - start > 0 and axis.width(end - start) > 5.6 * len(label):
            css = "small mid strong" if word == "replay" else "small mid muted"
            parts.append(svg.text(axis.x((start + end) / 2), y + 54, label, css))
    if request.generated:
        x = axis.x(n + len(request.generated)) + 6
        parts.append(svg.text(x, y + 36, f"+{len(request.generated)}", "small muted"))
    return "".join(parts)


def _flag(x: float, y: float) -> str:
    pole = svg.path(f"M{x:.1f} {y + 2} V{y + CELL_Y + CELL_H + 3}", "pole")
    return pole + svg.path(f"M{x:.1f} {y + 2} l11 4.5 l-11 4.5 z", "pennant")


def _strip(
    view: View, texts: Mapping[str, Sequence[str]], focus: str, y: float
) -> tuple[str, float]:
    """The texts themselves around the point where the focused prompt parts from the others."""
    request = view.requests.get(focus)
    others = [n for n in texts if n != focus and n in view.requests]
    if request is None or not others or focus == next(iter(texts)):
        return "", 4
    own = texts[focus]
    other = max(others, key=lambda n: _common(own, texts[n]))
    match, restore = request.token_match, request.restore
    first = max(0, min(match - 78, max(len(own), len(texts[other])) - _WINDOW))
    names = sorted((other, focus), key=list(texts).index)
    parts = [svg.path(f"M0 {y - 2:.1f} H{svg.WIDTH}", "rule")]
    for row, name in enumerate(names):
        base = y + 34 + 18 * row
        index = list(texts).index(name)
        window = texts[name][first : first + _WINDOW]
        if len(texts[name]) > first + _WINDOW:
            window = [*window[:-1], "…"]
        if name == focus and match > restore:
            a, b = max(restore, first), min(match, first + len(window))
            x0, width = 44 + (a - first) * _CHAR, (b - a) * _CHAR
            band = svg.rect(x0, base - 11, width, 15, "band")
            parts.append(svg.group(band, hue_class(index)))
        parts.append(svg.badge(16, base - 4, name, index, 7.5))
        parts.append(
            f'<text x="44" y="{base:.1f}" class="mono" xml:space="preserve" '
            f'textLength="{len(window) * _CHAR:.1f}">{svg.esc("".join(window))}</text>'
        )
    if match or request.phase != "waiting":  # before its look-up nobody knows what is known
        x = 44 + (match - first) * _CHAR
        parts.append(svg.path(f"M{x:.1f} {y + 18:.1f} V{y + 60:.1f}", "parting"))
        word = f"known to {match:,}" if match else "nothing known"
        parts.append(svg.text(x + 4, y + 15, word, "small strong"))
    if first <= restore < match:
        rx = 44 + (restore - first) * _CHAR
        parts.append(svg.path(f"M{rx:.1f} {y + 18:.1f} V{y + 60:.1f}", "parting"))
        parts.append(svg.text(rx + 4, y + 15, f"state of {restore:,}", "small strong"))
    start = f"text from token {first:,}"
    if match - first > 40:
        parts.append(svg.text(44, y + 15, start, "small muted"))
    return "".join(parts), 70


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
