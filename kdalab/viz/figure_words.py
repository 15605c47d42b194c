"""A finished figure in another language: its words go through the phrase book."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.phrases import say

if TYPE_CHECKING:
    import plotly.graph_objects as go


def said_figure(lang: str, figure: go.Figure) -> go.Figure:
    """``figure`` with title, axes, legend, annotations and hover texts in ``lang``, in place.

    What the phrase book does not know stays as it is, so figures that were given their words in
    the reader's language come out unchanged.
    """
    if lang == "en":
        return figure
    layout = figure.layout
    titles = [layout.title, layout.title.subtitle, layout.legend.title]
    titles += [axis.title for axis in (*figure.select_xaxes(), *figure.select_yaxes())]
    for found in (*titles, *layout.annotations):
        if found.text:
            found.text = say(lang, found.text)
    for trace in figure.data:
        if trace.name:
            trace.name = say(lang, trace.name)
        group = getattr(trace, "legendgrouptitle", None)
        if group is not None and group.text:
            group.text = say(lang, group.text)
        if "hovertemplate" in trace and trace.hovertemplate:
            body, extra, rest = trace.hovertemplate.partition("<extra>")
            name = rest.removesuffix("</extra>")
            trace.hovertemplate = say(lang, body) + (
                f"<extra>{say(lang, name)}</extra>" if extra else ""
            )
    return figure
