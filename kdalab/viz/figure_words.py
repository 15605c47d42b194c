"""The words of figures: those of plot scripts by key, and finished figures by the phrase book."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdalab.errors import KdalabError
from kdalab.phrases import say
from kdalab.resources import resource_dir
from kdalab.words import catalogue

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


def figure_words(name: str, lang: str = "en") -> dict[str, str]:
    """Every text of ``plot_scripts/text/NAME.toml`` in ``lang``, by its key, on top of those that
    all figures share (``common.toml``). Placeholders are left for ``str.format``.

    Raises:
        KdalabError: no such file, or one that lacks a language.
    """
    words = catalogue(resource_dir("plot_scripts") / "text")
    own = words.under(name)
    if not own:
        raise KdalabError(f"no words for the figure {name!r}; add plot_scripts/text/{name}.toml")
    keys = [*words.under("common"), *own]
    entries = ((key.split(".", 1)[1], words.entries[key]) for key in keys)
    return {key: text.get(lang, text["en"]) for key, text in entries}


def trace_words(words: dict[str, str], name: str, requests: int, file: str | None) -> str:
    """Which trace a figure draws, in the language of ``words``."""
    return words["made-up" if file is None else "file"].format(n=requests, name=name)
