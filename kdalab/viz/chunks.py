"""Pieces of a sequence as maps of the state, and what becomes of them when they are composed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kdalab.viz import svg
from kdalab.viz.css import hue_class
from kdalab.viz.heat import heat

_SIDE, _TOP, _TILE = 92.0, 26.0, 30.0


@dataclass(frozen=True, slots=True)
class Labelled:
    """A matrix of the picture with its name, its reading for a tooltip, and its scale."""

    name: str
    title: str
    matrix: np.ndarray
    limit: float = 0.0


def chunks_svg(
    cuts: Sequence[int],
    groups: Sequence[tuple[int, int]],
    order: Sequence[int],
    marked: Sequence[int],
    formula: Sequence[Labelled | str],
    *,
    label: str,
    tokens_word: str,
) -> str:
    """The sequence in pieces, brackets over what is composed, and one line of matrices.

    Args:
        cuts: boundaries of the pieces in tokens, from 0 to the end.
        groups: (first, last) places of pieces under one bracket.
        order: which piece stands at each place.
        marked: places that this step is about.
        formula: matrices and the signs between them, left to right.
        label: the text alternative.
        tokens_word: "tokens" in the reader's language.
    """
    axis = svg.TokenAxis.for_tokens(cuts[-1], cell=1)
    sizes = [b - a for a, b in itertools.pairwise(cuts)]
    parts = [svg.text(axis.left, 14, f"{cuts[-1]:,} {tokens_word}", "small muted")]
    at = 0
    edges = [0]
    for place, piece in enumerate(order):
        size = sizes[piece]
        x, width = axis.x(at), axis.width(size)
        css = "tok done" if place in marked else "tok planned"
        shape = svg.rect(x + 1, _TOP, width - 2, _TILE, css, radius=4)
        name = svg.text(x + width / 2, _TOP + 20, f"{piece + 1}", "mid strong halo")
        parts.append(
            svg.group(shape + name, hue_class(piece), title=f"{piece + 1}: {size:,} {tokens_word}")
        )
        at += size
        edges.append(at)
    y = _TOP + _TILE + 7
    for first, last in groups:
        x0, x1 = axis.x(edges[first]) + 3, axis.x(edges[last + 1]) - 3
        parts.append(svg.path(f"M{x0:.1f} {y:.1f} v5 H{x1:.1f} v-5", "bracket"))
    y += 34
    x = axis.left
    for item in formula:
        if isinstance(item, str):
            parts.append(svg.text(x + 12, y + _SIDE / 2 + 6, item, "mid strong"))
            x += 24
            continue
        parts.append(svg.text(x + _SIDE / 2, y - 8, item.name, "mid"))
        parts.append(heat(item.matrix, x, y, _SIDE, item.title, limit=item.limit))
        x += _SIDE + 6
    return svg.document("".join(parts), y + _SIDE + 10, label, css_class="kd-chunks")
