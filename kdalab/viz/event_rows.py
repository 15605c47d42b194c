"""Figure: the events of one request in order, each at the tokens that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.viz.palette import KIND_STYLES, SERIES_COLOURS, request_colour, theme
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

KINDS = ("known", "restored", "replayed", "computed", "decoded", "state", "other")
"""What a row can be; "state" rows stand at one boundary."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """Event number ``index`` of the log: its name, its sentence, and tokens [start, end)."""

    index: int
    name: str
    said: str
    kind: str
    start: int
    end: int


def event_rows_figure(
    rows: Sequence[EventRow],
    n_tokens: int,
    words: Mapping[str, str],
    *,
    request: int = 0,
    theme_name: str = "light",
    height: int | None = None,
    width: int | None = None,
) -> go.Figure:
    """Time runs down, tokens to the right; a bar is a stretch of tokens, a mark one boundary.

    Args:
        n_tokens: of the prompt; a line marks its end.
        words: "title", "subtitle", "x", "prompt", and a word for each of ``KINDS``.
        request: index of the request, for its hue.
        height: pixels; None for one that fits the rows.

    Raises:
        KdalabError: no row.
    """
    import plotly.graph_objects as go

    if not rows:
        raise KdalabError("no event to draw")
    look, figure = theme(theme_name), go.Figure()
    state = KIND_STYLES[StateKind.KDA_RECURRENT].colour
    looks: dict[str, tuple[str, str]] = {
        "known": (KIND_STYLES[StateKind.MLA_KV].colour, ""),
        "restored": (state, ""),
        "replayed": (SERIES_COLOURS[4], ">"),
        "computed": (request_colour(request), ""),
        "decoded": (request_colour(request), "."),
    }
    names = [f"{row.index}  {row.name}" for row in rows]
    for kind in KINDS:
        mine = [(name, row) for name, row in zip(names, rows, strict=True) if row.kind == kind]
        if not mine:
            continue
        shared: dict[str, Any] = {
            "y": [name for name, _ in mine],
            "customdata": [row.said for _, row in mine],
            "name": words[kind],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        if kind in looks:
            colour, pattern = looks[kind]
            figure.add_bar(
                x=[max(1, row.end - row.start) for _, row in mine],
                base=[row.start for _, row in mine], orientation="h",
                marker={"color": colour, "line": {"color": look.background, "width": 1},
                        "pattern": {"shape": {">": "/"}.get(pattern, pattern), "size": 7,
                                    "fillmode": "overlay", "fgcolor": look.background}},
                text=[f"{row.start:,} - {row.end:,}" if row.start else f"{row.end:,}"
                      for _, row in mine],
                textposition="outside", cliponaxis=False, **shared,
            )  # fmt: skip
        else:
            figure.add_scatter(
                x=[row.end for _, row in mine], mode="markers+text", cliponaxis=False,
                text=[f"{row.end:,}" if kind == "state" else "" for _, row in mine],
                textposition="middle right",
                marker={"symbol": "square" if kind == "state" else "line-ns-open", "size": 13,
                        "color": state if kind == "state" else look.line}, **shared,
            )  # fmt: skip
    figure.add_vline(x=n_tokens, line={"color": look.line, "width": 1, "dash": "dash"})
    figure.add_annotation(
        x=n_tokens, y=1, yref="paper", yanchor="bottom", showarrow=False,
        text=words["prompt"].format(n=n_tokens), font={"size": 12, "color": look.muted},
    )  # fmt: skip
    style_figure(
        figure, title=words["title"], subtitle=words["subtitle"], width=width,
        height=height or 250 + 25 * len(rows), theme_name=theme_name,
    )  # fmt: skip
    last = max(n_tokens, *(row.end for row in rows))
    figure.update_xaxes(title=words["x"], range=[0, last * 1.1])
    figure.update_yaxes(
        categoryorder="array", categoryarray=list(reversed(names)), showgrid=True,
        tickfont={"size": 12},
    )  # fmt: skip
    figure.update_layout(
        barmode="overlay", bargap=0.25, title={"y": 0.96, "yanchor": "top"}, margin={"t": 110},
        legend={"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top"},
    )  # fmt: skip
    return figure
