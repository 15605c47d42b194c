"""One self-contained page about a trace: figures inline, tables, assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdalab.viz.palette import FONT_MONO, FONT_UI, LIGHT
from kdalab.viz.svg import esc

if TYPE_CHECKING:
    import plotly.graph_objects as go

Cells = Sequence[Sequence[str]]


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
    """A figure as a part of a page; the first one brings plotly's script, inline."""
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=first, config={"displaylogo": False}
    )
    return html


def rows_html(rows: Cells, header: Sequence[str] = ()) -> str:
    """A table; the first column names, the others hold numbers."""
    head = "".join(f"<th>{esc(h)}</th>" for h in header)
    lines = "".join(
        "<tr>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<div class='wide'><table>{f'<tr>{head}</tr>' if head else ''}{lines}</table></div>"


def list_html(lines: Sequence[str]) -> str:
    """Sentences, one a line."""
    return "<ul>" + "".join(f"<li>{esc(line)}</li>" for line in lines) + "</ul>"


def code_html(lines: Sequence[str]) -> str:
    """Lines of a command."""
    return "<pre>" + "\n".join(esc(line) for line in lines) + "</pre>"


_CSS = (
    f"body{{font:15px/1.5 {FONT_UI};color:{LIGHT.text};background:{LIGHT.background};"
    "max-width:1080px;margin:0 auto;padding:24px}"
    "h1{font-size:26px}h2{font-size:19px;margin-top:40px}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    f"td,th{{padding:4px 14px 4px 0;border-bottom:1px solid {LIGHT.grid};text-align:right}}"
    "td:first-child,th:first-child{text-align:left}.wide{overflow-x:auto}"
    f"pre{{font-family:{FONT_MONO};background:{LIGHT.panel};padding:12px;overflow-x:auto}}"
    f"li{{color:{LIGHT.muted}}}"
)
