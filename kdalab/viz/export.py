"""Writing a figure to a file: html and json without a browser, svg, png and pdf with one."""

from __future__ import annotations

import html
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdalab.errors import KdalabError
from kdalab.viz.palette import FONT_UI, theme
from kdalab.viz.plotly_theme import HEIGHT_16_9, WIDTH_16_9

if TYPE_CHECKING:
    import plotly.graph_objects as go

FORMATS: tuple[str, ...] = ("html", "svg", "png", "pdf", "json")
#: Formats that kaleido draws in a headless browser.
IMAGE_FORMATS: tuple[str, ...] = ("svg", "png", "pdf")

#: Names under which a Chromium is looked for on PATH, the way kaleido does.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


class NoBrowserError(KdalabError):
    """svg, png and pdf are drawn by a Chromium browser, and none was found."""


def attach_table(
    figure: go.Figure, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> go.Figure:
    """Keep the same numbers as a table in the figure's metadata; returns the figure.

    Written to html it appears folded below the picture; a page can show it from there as well.
    """
    figure.update_layout(
        meta={"table": {"columns": list(columns), "rows": [list(row) for row in rows]}}
    )
    return figure


def table_of(figure: go.Figure) -> tuple[list[str], list[list[str]]]:
    """Columns and rows that :func:`attach_table` stored; empty lists when there are none."""
    meta = figure.layout.meta
    found: Any = meta.get("table") if isinstance(meta, dict) else None
    if not found:
        return [], []
    return list(found["columns"]), [list(row) for row in found["rows"]]


def find_browser() -> str | None:
    """The Chromium that kaleido would start: ``BROWSER_PATH`` or the first on PATH, else None."""
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if Path(named).is_file() else None
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def require_browser() -> str:
    """As :func:`find_browser`.

    Raises:
        NoBrowserError: none found; the message says how to get one or do without.
    """
    found = find_browser()
    if found is None:
        raise NoBrowserError(
            "svg, png and pdf need a Chromium browser, and none was found. Install one "
            "('apt install chromium' on Debian and Ubuntu), or set BROWSER_PATH to its program, "
            "or write html or json, which need none"
        )
    return found


def figure_json(figure: go.Figure) -> str:
    """The figure as JSON text, equal for equal figures: sorted keys, no random ids."""
    data = json.loads(figure.to_json())
    return json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


TABLE_HEADING = {
    "en": "The same numbers as a table",
    "zh": "同样的数字，用表格列出",
    "ko": "같은 숫자를 표로",
}


def figure_html(
    figure: go.Figure, *, title: str, theme_name: str = "light", lang: str = "en"
) -> str:
    """One self-contained page: plotly.js inline, the picture and its numbers as a table.

    The page is called what the figure is called, and ``title`` where the figure has no title.

    Raises:
        KdalabError: unknown theme.
    """
    import plotly.graph_objects as go

    look = theme(theme_name)
    fluid = go.Figure(figure).update_layout(width=None, autosize=True)  # fills the window
    picture = fluid.to_html(
        full_html=False,
        include_plotlyjs=True,
        div_id="figure",
        config={"displaylogo": False, "responsive": True},
    )
    safe = html.escape(figure.layout.title.text or title)
    return (
        f'<!DOCTYPE html>\n<html lang="{lang}">\n<head><meta charset="utf-8">'
        f"<title>{safe}</title>\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>body{{margin:16px;background:{look.background};color:{look.text};"
        f"font-family:{FONT_UI}}}table{{border-collapse:collapse;font-size:14px}}"
        f"th,td{{padding:4px 12px;border-bottom:1px solid {look.grid};text-align:right}}"
        "td{white-space:nowrap}th:first-child,td:first-child{text-align:left}summary{cursor:pointer}"
        ".table{overflow-x:auto}</style>\n</head>\n"
        f'<body>\n<div role="figure" aria-label="{safe}">{picture}</div>\n'
        f"{_table_html(figure, lang)}</body>\n</html>\n"
    )


def write_figure(
    figure: go.Figure,
    path: str | Path,
    *,
    format: str | None = None,
    title: str = "",
    theme_name: str = "light",
    scale: float = 2.0,
    lang: str = "en",
) -> Path:
    """Write one figure; the format is the path's ending unless named. Returns the path.

    Missing folders are made. ``scale`` multiplies the pixels of a png.

    Raises:
        KdalabError: unknown format, or the file cannot be written.
        NoBrowserError: an image format and no browser.
    """
    file = Path(path)
    kind = (format or file.suffix.lstrip(".")).lower()
    if kind not in FORMATS:
        raise KdalabError(f"unknown figure format {kind!r}; use one of {', '.join(FORMATS)}")
    if kind in IMAGE_FORMATS:
        data = _draw(figure, kind, scale)
    elif kind == "json":
        data = figure_json(figure).encode()
    else:
        page = figure_html(figure, title=title or file.stem, theme_name=theme_name, lang=lang)
        data = page.encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    except OSError as error:
        raise KdalabError(f"{file}: cannot be written ({error.strerror})") from error
    return file


@contextmanager
def browser_session(formats: Sequence[str]) -> Iterator[None]:
    """Keep one browser open while several images are drawn; does nothing for html and json.

    Raises:
        NoBrowserError: an image format and no browser.
    """
    if not set(formats) & set(IMAGE_FORMATS):
        yield
        return
    require_browser()
    import kaleido

    kaleido.start_sync_server(silence_warnings=True)
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


def _draw(figure: go.Figure, kind: str, scale: float) -> bytes:
    browser = require_browser()
    try:
        with warnings.catch_warnings():
            # plotly hands kaleido options that an open session has no use for.
            warnings.filterwarnings("ignore", message="The kopts argument is ignored")
            return figure.to_image(
                format=kind,
                width=figure.layout.width or WIDTH_16_9,
                height=figure.layout.height or HEIGHT_16_9,
                scale=scale if kind == "png" else 1.0,
            )
    except Exception as error:  # kaleido and the browser raise many kinds
        raise KdalabError(
            f"{browser} could not draw the {kind} ({type(error).__name__}: {error}); "
            "html and json need no browser"
        ) from error


def _table_html(figure: go.Figure, lang: str) -> str:
    columns, rows = table_of(figure)
    if not columns:
        return ""
    head = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>\n"
        for row in rows
    )
    return (
        f'<details open><summary>{TABLE_HEADING[lang]}</summary><div class="table"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div></details>\n"
    )
