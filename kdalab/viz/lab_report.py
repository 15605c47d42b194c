"""One self-contained page about a trace: figures inline, tables, assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.viz.palette import FONT_MONO, FONT_UI, LIGHT
from kdalab.viz.svg import esc

if TYPE_CHECKING:
    import plotly.graph_objects as go

Cells = Sequence[Sequence[str]]
FIGURE_HEIGHT = 560  # pixels; a legend of eight names takes a third of it on a telephone


def report_html(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """A page of (heading, HTML) sections that needs no network: plotly's script is in the first
    figure's section (see ``figure_html``)."""
    body = "".join(f"<section><h2>{esc(head)}</h2>{html}</section>" for head, html in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{esc(title)}</title><style>{_CSS}</style></head>"
        f"<body><h1>{esc(title)}</h1>{body}</body></html>\n"
    )


def figure_html(figure: go.Figure, first: bool) -> str:
    """A figure as a part of a page; the first one brings plotly's script, inline. Its legend goes
    below, so that a telephone's width is left to the drawing."""
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.16, "yanchor": "top"}
    figure.update_layout(
        legend=below, margin={"l": 56, "r": 16, "b": 140}, height=FIGURE_HEIGHT, autosize=True
    )
    figure.update_xaxes(title_standoff=4)
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=first,
        config={"displaylogo": False, "responsive": True},
    )
    return html


def rows_html(rows: Cells, header: Sequence[str] = (), names: int = 1) -> str:
    """A table; the first ``names`` columns name, the others hold numbers."""

    def line(kind: str, cells: Sequence[str]) -> str:
        marks = [" class='name'" if place < names else "" for place in range(len(cells))]
        return "".join(
            f"<{kind}{mark}>{esc(c)}</{kind}>" for c, mark in zip(cells, marks, strict=True)
        )

    head = f"<thead><tr>{line('th', header)}</tr></thead>" if header else ""
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<div class='wide'><table>{head}<tbody>{body}</tbody></table></div>"


def text_html(text: str, warning: bool = False) -> str:
    """A paragraph; a warning stands out."""
    return f"<p{' class=warning' if warning else ''}>{esc(text)}</p>"


def list_html(lines: Sequence[str]) -> str:
    """Sentences, one a line; nothing where there is none."""
    items = "".join(f"<li>{esc(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def code_html(lines: Sequence[str]) -> str:
    """Lines of a command."""
    return "<pre>" + "\n".join(esc(line) for line in lines) + "</pre>"


_CSS = (
    f"body{{font:15px/1.5 {FONT_UI};color:{LIGHT.text};background:{LIGHT.background};"
    "max-width:1080px;margin:0 auto;padding:24px}"
    "h1{font-size:26px;overflow-wrap:anywhere}@media(max-width:600px){body{padding:12px}}"
    f".warning{{border-left:4px solid {LIGHT.text};padding-left:12px}}"
    "h2{font-size:19px;margin-top:40px}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    f"td,th{{padding:4px 14px 4px 0;border-bottom:1px solid {LIGHT.grid};text-align:right}}"
    ".name{text-align:left;white-space:pre-wrap}.wide{overflow-x:auto}th{vertical-align:bottom}"
    f"pre{{font-family:{FONT_MONO};background:{LIGHT.panel};padding:12px;white-space:pre-wrap;"
    "overflow-wrap:anywhere}"
    f"li{{color:{LIGHT.muted}}}"
)
