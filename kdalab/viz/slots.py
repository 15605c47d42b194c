"""Memory, slot by slot: active states, checkpoints, latent pages, and who owns each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kdalab.engine.view import View
from kdalab.memory.slots import CACHE
from kdalab.units import format_bytes
from kdalab.viz import svg
from kdalab.viz.css import hue_class

_BOX = 26.0
_STEP = 44.0
_TOP = 50.0
_PAGE = 13.0
_PAGE_STEP = 17.0
_PAGES_A_ROW = 48
_PAGE_TOP = 136.0


def slots_svg(
    view: View,
    names: Sequence[str],
    *,
    page_tokens: int,
    page_bytes: int,
    state_bytes: int,
    highlight: Collection[str] = (),
    moves: Sequence[tuple[str, str]] = (),
    faults: Mapping[str, str] | None = None,
) -> str:
    """The three pools of ``view``.

    Private slots carry their owner's letter and hue, shared ones a double outline, free ones a
    dashed outline. ``highlight`` is what this step touched, ``moves`` what it copied, both named
    "active:0", "checkpoint:2", "page:17". ``faults`` hatches a request's state as wrong.
    """
    places: dict[str, tuple[float, float]] = {}
    parts = [
        _active(view, names, places, faults or {}, state_bytes),
        _checkpoints(view, places, state_bytes),
        _pages(view, names, places, page_tokens, page_bytes),
    ]
    # Under the shapes, so that a ring never covers an owner's letter.
    parts = [_mark(places[h], h) for h in highlight if h in places] + parts
    parts += [_arrow(a, b, places) for a, b in moves if a in places and b in places]
    rows = -(-len(view.pages) // _PAGES_A_ROW)
    counts = pool_counts(view)
    label = "Memory. " + " ".join(
        f"{pool}: {c['private']} private, {c['cached']} cached, {c['free']} free."
        for pool, c in counts.items()
    )
    height = _PAGE_TOP + 8 + rows * _PAGE_STEP
    return svg.document("".join(parts), height, label, css_class="kd-slots", targets=True)


def pool_counts(view: View) -> dict[str, dict[str, int]]:
    """Private, cached, free and total of each pool; the first three add up to the last."""
    pages = view.pages
    cached = sum(p == CACHE for p in pages)
    free = sum(p is None for p in pages)
    held = sum(c is not None for c in view.checkpoints)
    busy = sum(a is not None for a in view.active)
    return {
        "active states": _count(busy, 0, len(view.active)),
        "checkpoints": _count(0, held, len(view.checkpoints)),
        "latent pages": _count(len(pages) - cached - free, cached, len(pages)),
    }


def _count(private: int, cached: int, total: int) -> dict[str, int]:
    return {
        "private": private,
        "cached": cached,
        "free": total - private - cached,
        "total": total,
    }


def _heading(x: float, y: float, title: str, detail: str) -> str:
    wide = 7.1 * len(title)
    return svg.text(x, y, title, "strong") + svg.text(x + wide + 8, y, detail, "small muted")


def _active(
    view: View,
    names: Sequence[str],
    places: dict[str, tuple[float, float]],
    faults: Mapping[str, str],
    state_bytes: int,
) -> str:
    parts = [_heading(0, 12, "Active states", "private, writable")]
    for slot, owner in enumerate(view.active):
        x = 8 + slot * _STEP
        places[f"active:{slot}"] = (x, _TOP)
        key = f"active:{slot}"
        if owner is None:
            shape = svg.empty_box(x, _TOP, _BOX, "free")
            tip = f"active slot {slot}: free"
        else:
            fault = faults.get(owner, "")
            shape = svg.state_box(
                x,
                _TOP,
                _BOX,
                shared=False,
                stale=fault not in ("", "drop_conv"),
                conv_stale=fault == "drop_conv",
            )
            shape += _owner_bar(x - 5, _TOP, svg.state_height(_BOX), names, owner)
            shape += svg.badge(x + _BOX + 1, _TOP - 2, owner, _index(names, owner), 7)
            tip = f"active slot {slot}: private to {owner}, {format_bytes(state_bytes)}"
        shape += svg.text(x + _BOX / 2, _TOP + 54, slot, "small mid muted")
        parts.append(svg.group(shape, title=tip, pick=key))
    return "".join(parts)


def _checkpoints(view: View, places: dict[str, tuple[float, float]], state_bytes: int) -> str:
    left = max(4, len(view.active)) * _STEP + 50
    room = (svg.WIDTH - left) / max(1, len(view.checkpoints))
    step = min(_STEP, room)
    box = min(_BOX, step - 10)
    detail = f"shared, read-only; {format_bytes(state_bytes)} each"
    parts = [_heading(left, 12, "Checkpoints", detail)]
    for slot, node in enumerate(view.checkpoints):
        x = left + 6 + slot * step
        places[f"checkpoint:{slot}"] = (x, _TOP)
        if node is None:
            shape = svg.empty_box(x, _TOP, box, "free")
            tip = f"checkpoint {slot}: free"
        else:
            at = view.nodes[node].end
            readers = view.readers(node)
            shape = svg.state_box(x, _TOP, box, shared=True)
            shape += svg.text(x + box / 2, _TOP - 7, f"{at:,}", "small mid strong")
            tip = f"checkpoint {slot}: state of {at:,} tokens, node {node}"
            if readers:
                tip += f", on the path of {', '.join(readers)}"
        shape += svg.text(x + box / 2, _TOP + 54, slot, "small mid muted")
        parts.append(svg.group(shape, title=tip, pick=f"checkpoint:{slot}"))
    return "".join(parts)


def _pages(
    view: View,
    names: Sequence[str],
    places: dict[str, tuple[float, float]],
    page_tokens: int,
    page_bytes: int,
) -> str:
    count = pool_counts(view)["latent pages"]
    detail = (
        f"{page_tokens} tokens, {format_bytes(page_bytes)} each; not to the scale of the states. "
        f"{count['cached']} cached + {count['private']} private + {count['free']} free = "
        f"{count['total']}"
    )
    parts = [_heading(0, _PAGE_TOP - 8, "Latent pages (KV)", detail)]
    filled = _filled(view, page_tokens)
    for page, owner in enumerate(view.pages):
        x = 4 + page % _PAGES_A_ROW * _PAGE_STEP + page % _PAGES_A_ROW // 4 * 2.4
        y = _PAGE_TOP + page // _PAGES_A_ROW * _PAGE_STEP
        places[f"page:{page}"] = (x, y)
        if owner is None:
            shape, tip = svg.rect(x, y, _PAGE, _PAGE, "free"), f"page {page}: free"
        elif owner == CACHE:
            shape = svg.rect(x, y, _PAGE, _PAGE, "kv")
            shape += svg.rect(x + 2, y + 2, _PAGE - 4, _PAGE - 4, "kv-in")
            tip = f"page {page}: in the tree, shared, read-only"
        else:
            written = page in filled
            css = "kv own" if written else "kv reserved"
            shape = svg.rect(x, y, _PAGE, _PAGE, css) + _owner_bar(x, y, _PAGE, names, owner)
            ink = "tiny mid onkv" if written else "tiny mid"
            shape += svg.text(x + _PAGE / 2 + 1, y + 9.6, owner, ink)
            tip = f"page {page}: private to {owner}, {'written' if written else 'reserved'}"
        parts.append(svg.group(shape, title=tip))
    return "".join(parts)


def _filled(view: View, page_tokens: int) -> set[int]:
    """Private pages that hold at least one written token."""
    written: set[int] = set()
    for request in view.requests.values():
        if request.is_running:
            written.update(request.pages[: -(-request.computed // page_tokens)])
    return written


def _owner_bar(x: float, y: float, height: float, names: Sequence[str], owner: str) -> str:
    return svg.group(svg.rect(x, y, 3, height, "owner"), hue_class(_index(names, owner)))


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def _mark(place: tuple[float, float], name: str) -> str:
    x, y = place
    if name.startswith("page:"):
        return svg.rect(x - 1.8, y - 1.8, _PAGE + 3.6, _PAGE + 3.6, "now", radius=2)
    return svg.rect(x - 6.5, y - 6, _BOX + 13, svg.state_height(_BOX) + 12, "now", radius=8)


def _arrow(start: str, end: str, places: Mapping[str, tuple[float, float]]) -> str:
    """A copy from one slot to another, over the tops of the boxes and their labels."""
    x0, y0 = _over(start, places)
    x1, y1 = _over(end, places)
    curve = f"M{x0:.1f} {y0:.1f} C{x0:.1f} 14 {x1:.1f} 14 {x1:.1f} {y1 - 5:.1f}"
    head = f"M{x1 - 5:.1f} {y1 - 7:.1f} h10 l-5 8 z"
    return svg.path(curve, "move") + svg.path(head, "movehead")


def _over(name: str, places: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    return places[name][0] + _BOX / 2, _TOP - (19 if name.startswith("checkpoint:") else 8)
