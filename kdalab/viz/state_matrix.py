"""One recurrent state as a heat map: the deepest zoom of every picture."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kdalab.errors import KdalabError
from kdalab.viz import svg

_LEFT, _TOP, _SIDE = 150.0, 30.0, 420.0


def state_matrix_svg(
    values: np.ndarray,
    layer: int,
    head: int,
    *,
    caption: str,
    say: Callable[[str], str] = str,
) -> str:
    """The V x K matrix of one layer and head; hovering a cell gives its channels and value.

    Negative values are blue, positive ones vermillion, and 0 is the page's own colour, so the
    picture reads the same in both themes; strength is |value| over the matrix's largest.

    Args:
        values: [KDA layer, value head, V, K].
        layer: index of the KDA layer.
        head: index of the value head.
        caption: whose state this is and at which boundary.
        say: puts each text into the reader's language.

    Raises:
        KdalabError: no such layer or head, or not a 4-dimensional array.
    """
    if values.ndim != 4:
        raise KdalabError(f"a state has axes [layer, head, V, K], not {values.ndim} of them")
    for what, index, size in (("layer", layer, values.shape[0]), ("head", head, values.shape[1])):
        if not 0 <= index < size:
            raise KdalabError(f"{what} {index} does not exist; use 0 to {size - 1}")
    matrix = np.asarray(values[layer, head], dtype=np.float64)
    n_v, n_k = matrix.shape
    finite = matrix[np.isfinite(matrix)]
    limit = float(np.abs(finite).max()) if finite.size else 0.0
    side = _SIDE / max(n_v, n_k)
    name = say("value channel {v}, key channel {k}: {x}")  # once, not a thousand times
    cells = [
        _cell(float(matrix[v, k]), v, k, limit, side, name) for v in range(n_v) for k in range(n_k)
    ]
    frame = svg.rect(_LEFT, _TOP, side * n_k, side * n_v, "frame")
    bottom = _TOP + side * n_v
    right = _LEFT + side * n_k + 24
    notes = [
        svg.text(_LEFT, 16, say(f"key channel 0 to {n_k - 1} →"), "small muted"),
        svg.text(_LEFT - 10, _TOP + 12, say("value channel"), "small muted end"),
        svg.text(_LEFT - 10, _TOP + 27, say(f"0 to {n_v - 1} ↓"), "small muted end"),
        svg.text(right, _TOP + 14, say(caption), "strong"),
        svg.text(right, _TOP + 34, say(f"KDA layer {layer}, head {head}"), ""),
        svg.text(right, _TOP + 54, say(f"largest |value| {limit:.4g}"), "muted"),
    ]
    notes += _scale(right, _TOP + 78, limit)
    label = (
        f"{caption}: recurrent state of KDA layer {layer}, head {head}, {n_v} value channels by "
        f"{n_k} key channels; largest absolute value {limit:.4g}."
    )
    return svg.document("".join([*cells, frame, *notes]), bottom + 8, say(label))


def _cell(value: float, v: int, k: int, limit: float, side: float, name: str) -> str:
    title = name.format(v=v, k=k, x=f"{value:.5g}")
    x, y = _LEFT + k * side, _TOP + v * side
    if not math.isfinite(value):
        return svg.rect(x, y, side, side, "nan", title=title)
    strength = abs(value) / limit if limit else 0.0
    shape = svg.rect(x, y, side, side, "neg" if value < 0 else "pos", title=title)
    return shape.replace("<rect ", f'<rect fill-opacity="{strength:.3f}" ', 1)


def _scale(x: float, y: float, limit: float) -> list[str]:
    parts = []
    for step in range(-5, 6):
        at = x + (step + 5) * 14
        patch = svg.rect(at, y, 14, 12, "neg" if step < 0 else "pos")
        parts.append(patch.replace("<rect ", f'<rect fill-opacity="{abs(step) / 5:.2f}" ', 1))
    parts.append(svg.rect(x, y, 154, 12, "frame"))
    for offset, value, css in ((0, -limit, ""), (77, 0.0, "mid"), (154, limit, "end")):
        parts.append(svg.text(x + offset, y + 26, f"{value:.3g}", f"small muted {css}"))
    return parts
