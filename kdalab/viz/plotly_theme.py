"""Plotly templates of both themes, built from the palette.

A template is handed to each figure and never registered globally. Paper and plot area have the
same colour from the first paint on, so a page does not flash plotly's grey before it draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.viz.palette import (
    DIVERGING,
    DIVERGING_DARK,
    FONT_UI,
    SEQUENTIAL,
    SERIES_COLOURS,
    Theme,
    theme,
    with_alpha,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Heights in pixels. Every figure has one: a figure without height can end up 0 high in a page.
HEIGHT_16_9 = 540
WIDTH_16_9 = 960
HEIGHT_4_3 = 600
WIDTH_4_3 = 800


def plotly_template(name: str = "light", *, transparent: bool = False) -> go.layout.Template:
    """The template of theme ``light`` or ``dark``.

    ``transparent`` lets the page's own background through, for figures inside a page.

    Raises:
        KdalabError: unknown theme.
    """
    import plotly.graph_objects as go

    look = theme(name)
    background = with_alpha(look.background, 0.0) if transparent else look.background
    axis = _axis(look)
    return go.layout.Template(
        layout={
            "paper_bgcolor": background,
            "plot_bgcolor": background,
            "font": {"family": FONT_UI, "size": 14, "color": look.text},
            "title": {"x": 0.0, "xref": "container", "xanchor": "left", "pad": {"l": 16},
                      "font": {"size": 19}},
            "colorway": list(SERIES_COLOURS),
            "colorscale": {
                "sequential": [list(stop) for stop in SEQUENTIAL],
                "diverging": [
                    list(stop) for stop in (DIVERGING if name == "light" else DIVERGING_DARK)
                ],
            },
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "bgcolor": with_alpha(look.background, 0.0),
                "font": {"size": 13},
                "title": {"font": {"size": 13, "color": look.muted}},
            },
            "hoverlabel": {
                "bgcolor": look.panel,
                "bordercolor": look.line,
                "font": {"family": FONT_UI, "size": 13, "color": look.text},
            },
            "annotationdefaults": {"font": {"size": 13, "color": look.text}},
            "margin": {"l": 84, "r": 24, "t": 84, "b": 64},
        }
    )  # fmt: skip


def style_figure(
    figure: go.Figure,
    *,
    title: str,
    subtitle: str = "",
    height: int = HEIGHT_16_9,
    width: int | None = None,
    theme_name: str = "light",
    transparent: bool = False,
) -> go.Figure:
    """Give a figure its template, title, explicit height and a stable zoom; returns the figure.

    ``width`` in pixels is for files; in a page it stays None and the figure fills its column.

    Raises:
        KdalabError: unknown theme, or a height that is not positive.
    """
    if height < 1:
        raise KdalabError(f"figure height {height} pixels; use 1 or more")
    look = theme(theme_name)
    heading: dict[str, Any] = {"text": title}
    if subtitle:
        heading["subtitle"] = {"text": subtitle, "font": {"size": 14, "color": look.muted}}
    figure.update_layout(
        template=plotly_template(theme_name, transparent=transparent),
        title=heading,
        height=height,
        width=width,
        autosize=width is None,
        uirevision="keep",
    )
    return figure


def _axis(look: Theme) -> dict[str, Any]:
    return {
        "gridcolor": look.grid,
        "linecolor": look.line,
        "tickcolor": look.line,
        "zerolinecolor": look.grid,
        "ticks": "outside",
        "showline": True,
        "automargin": True,
        "title": {"standoff": 12},
    }
