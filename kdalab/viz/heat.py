"""A matrix as a small heat map, to be placed anywhere in a picture."""

from __future__ import annotations

import math

import numpy as np

from kdalab.viz import svg


def heat(
    matrix: np.ndarray, x: float, y: float, side: float, title: str, *, limit: float = 0.0
) -> str:
    """Rows by columns of cells in a square of ``side``; (x, y) is its top left corner.

    Negative values are blue, positive ones vermillion, 0 the page's own colour; strength is
    |value| over ``limit`` (by default the matrix's largest). ``title`` is the tooltip.
    """
    values = np.asarray(matrix, dtype=np.float64)
    rows, columns = values.shape
    finite = np.abs(values[np.isfinite(values)])
    top = limit or (float(finite.max()) if finite.size else 0.0)
    w, h = side / columns, side / rows
    cells = []
    for (r, c), value in np.ndenumerate(values):
        if not math.isfinite(value):
            cells.append(svg.rect(x + c * w, y + r * h, w, h, "nan"))
            continue
        strength = min(1.0, abs(value) / top) if top else 0.0
        if strength < 0.02:
            continue
        shape = svg.rect(x + c * w, y + r * h, w, h, "neg" if value < 0 else "pos")
        cells.append(shape.replace("<rect ", f'<rect fill-opacity="{strength:.2f}" ', 1))
    return svg.group("".join(cells) + svg.rect(x, y, side, side, "frame"), title=title)
