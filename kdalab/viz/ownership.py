"""Figure: who owns which state slot over the steps of a run; a row a slot, a bar a tenure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.viz.palette import (
    KIND_STYLES,
    contrast_ratio,
    request_colour,
    theme,
)
from kdalab.viz.plotly_theme import HEIGHT_16_9, style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Tenure:
    """One owner of one slot from step ``start`` up to and without ``end``. ``owner`` is the index
    of a request, or -1 for the cache; ``role`` a key of the words, ``text`` stands in the bar."""

    slot: int
    start: int
    end: int
    owner: int
    role: str
    text: str


def ownership_figure(
    slots: Sequence[str],
    tenures: Sequence[Tenure],
    requests: Sequence[str],
    steps: Sequence[str],
    words: Mapping[str, str],
    *,
    theme_name: str = "light",
    height: int = HEIGHT_16_9,
    width: int | None = None,
) -> go.Figure:
    """Bars over the steps; a request's in its hue with its letter, the cache's in that of a state.

    Args:
        slots: names of the rows, from the top.
        steps: what happened in each step, for the tooltips.
        words: "title", "subtitle", "x", "y", "cache", "request" (with {name}), and a word a role.

    Raises:
        KdalabError: no slot or no step.
    """
    import plotly.graph_objects as go

    if not slots or not steps:
        raise KdalabError("no slot or no step to draw")
    figure, look = go.Figure(), theme(theme_name)
    state = KIND_STYLES[StateKind.KDA_RECURRENT]
    for owner in [*range(len(requests)), -1]:
        mine = [t for t in tenures if t.owner == owner]
        if not mine:
            continue
        colour = state.colour if owner < 0 else request_colour(owner)
        pale, dark = sorted((look.background, look.text), key=lambda c: contrast_ratio(c, colour))
        name = words["cache"] if owner < 0 else words["request"].format(name=requests[owner])
        figure.add_bar(
            x=[t.end - t.start for t in mine], base=[t.start for t in mine],
            y=[slots[t.slot] for t in mine], orientation="h", name=name,
            text=[t.text for t in mine], textposition="inside", insidetextanchor="middle",
            textangle=0, textfont={"color": dark, "size": 12}, constraintext="none",
            marker={"color": colour, "line": {"color": look.background, "width": 1},
                    "pattern": {"shape": ["" if t.role in ("active", "cached") else "/"
                                          for t in mine],
                                "fgcolor": pale, "solidity": 0.15, "fillmode": "overlay"}},
            customdata=[f"{words[t.role]}: {t.start} - {t.end}<br>{steps[t.start]}" for t in mine],
            hovertemplate="%{y}, %{customdata}<extra>" + name + "</extra>",
        )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], height=height, width=width,
        theme_name=theme_name,
    )  # fmt: skip
    figure.update_layout(
        barmode="overlay", bargap=0.25,
        legend={"orientation": "h", "x": 0, "y": -0.15, "yanchor": "top"}, margin={"b": 100},
    )  # fmt: skip
    figure.update_xaxes(title=words["x"], range=[0, len(steps)], dtick=5, tick0=0)
    figure.update_yaxes(
        title=words["y"], categoryorder="array", categoryarray=list(reversed(slots))
    )
    return figure
