"""A figure made of SVG pictures instead of plotly: diagrams, trees, slots; written like any other.

A :class:`Drawing` is one picture or several, one below the other, with the same numbers as a table.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kdalab.errors import KdalabError
from kdalab.viz.css import stylesheet
from kdalab.viz.export import TABLE_HEADING, require_browser
from kdalab.viz.palette import FONT_UI, theme
from kdalab.viz.svg import WIDTH, esc

MARGIN, CAPTION, GAP = 20, 26, 14
TITLE = 34

_HEAD = re.compile(r'<svg class="(?P<css>[^"]*)" viewBox="0 0 [\d.]+ (?P<height>[\d.]+)"')


@dataclass(frozen=True, slots=True)
class Drawing:
    """Pictures of ``kdalab.viz``, each under its caption (or none), and their numbers.

    ``parts`` are (caption, SVG as :func:`kdalab.viz.svg.document` makes it); a caption without a
    picture is a line of text.
    """

    title: str
    parts: tuple[tuple[str, str], ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

    def svg(self, theme_name: str = "light") -> str:
        """All parts as one SVG with its style sheet inside.

        Raises:
            KdalabError: unknown theme, or a part that is no picture of ``kdalab.viz``.
        """
        look = theme(theme_name)
        body, y = [_line(self.title, MARGIN + 14, 19, look.text)], float(MARGIN + TITLE)
        for caption, picture in self.parts:
            if not picture:
                body.append(_line(caption, y + 14, 14, look.muted))
                y += CAPTION - 4
                continue
            found = _HEAD.match(picture)
            if found is None:
                raise KdalabError(f"{picture[:60]!r} is no picture of kdalab.viz.svg")
            if caption:
                body.append(_line(caption, y + 14, 14, look.muted))
                y += CAPTION
            height = float(found["height"])
            placed = f'<svg x="{MARGIN}" y="{y:g}" width="{WIDTH}" height="{height:g}" '
            # The class would stretch it to the whole width; the outer picture has it for the rules.
            inner = picture.removeprefix("<svg ").replace('class="kd-svg', 'class="kd-part', 1)
            body.append(placed + inner)
            y += height + GAP
        width, tall = WIDTH + 2 * MARGIN, y - GAP + MARGIN
        return (
            f'<svg class="kd-svg" viewBox="0 0 {width} {tall:g}" width="{width}" '
            f'height="{tall:g}" data-theme="{esc(theme_name)}" role="img" '
            f'aria-label="{esc(self.title)}" xmlns="http://www.w3.org/2000/svg">'
            f"<style>{stylesheet()}</style>"
            f'<rect width="100%" height="100%" fill="{look.background}"/>{"".join(body)}</svg>'
        )

    def json(self) -> str:
        """Title, pictures and numbers as JSON text, equal for equal drawings."""
        data = {
            "title": self.title,
            "pictures": [{"caption": caption, "svg": svg} for caption, svg in self.parts],
            "table": {"columns": self.columns, "rows": self.rows},
        }
        return json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    def page(self, theme_name: str = "light", *, lang: str = "en") -> str:
        """One self-contained HTML page: the picture, and its numbers as a table."""
        look = theme(theme_name)
        return (
            f'<!DOCTYPE html>\n<html lang="{esc(lang)}">\n<head><meta charset="utf-8">'
            f"<title>{html.escape(self.title)}</title>\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>body{{margin:16px;background:{look.background};color:{look.text};"
            f"font-family:{FONT_UI}}}svg{{max-width:100%;height:auto}}"
            f"table{{border-collapse:collapse;font-size:14px}}"
            f"th,td{{padding:4px 12px;border-bottom:1px solid {look.grid};text-align:left}}"
            "summary{cursor:pointer}</style>\n</head>\n"
            f"<body>\n{self.svg(theme_name)}\n{self._table(lang)}</body>\n</html>\n"
        )

    def _table(self, lang: str) -> str:
        if not self.columns:
            return ""
        head = "".join(f'<th scope="col">{esc(c)}</th>' for c in self.columns)
        rows = "".join(
            "<tr>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>\n"
            for row in self.rows
        )
        return (
            f"<details open><summary>{TABLE_HEADING[lang]}</summary>"
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></details>\n"
        )


def write_drawing(
    drawing: Drawing,
    file: Path,
    kind: str,
    *,
    theme_name: str = "light",
    scale: float = 2.0,
    lang: str = "en",
) -> Path:
    """Write a drawing as ``kind``; html, svg and json need no browser. Returns the path.

    Raises:
        KdalabError: unknown format or theme, or the file cannot be written.
        NoBrowserError: png or pdf, and no browser.
    """
    texts = {
        "svg": lambda: drawing.svg(theme_name),
        "json": drawing.json,
        "html": lambda: drawing.page(theme_name, lang=lang),
    }
    if kind in texts:
        data = texts[kind]().encode()
    elif kind in ("png", "pdf"):
        data = _photograph(drawing.svg(theme_name), kind, scale)
    else:
        raise KdalabError(f"unknown figure format {kind!r}; use html, svg, png, pdf or json")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    except OSError as error:
        raise KdalabError(f"{file}: cannot be written ({error.strerror})") from error
    return file


def _photograph(svg: str, kind: str, scale: float) -> bytes:
    """Chromium's own command line draws the picture; nothing is fetched."""
    browser = require_browser()
    size = re.search(r'width="(\d+)" height="([\d.]+)"', svg)
    assert size is not None
    width, height = int(size[1]), int(float(size[2]) + 0.5)
    with tempfile.TemporaryDirectory() as folder:
        page, target = Path(folder, "page.html"), Path(folder, f"picture.{kind}")
        page.write_text(
            '<!DOCTYPE html><meta charset="utf-8"><style>html,body{margin:0}svg{display:block}'
            f"@page{{size:{width}px {height + 1}px;margin:0}}</style>{svg}",
            "utf-8",
        )
        ask = (
            [f"--screenshot={target}", f"--window-size={width},{height}",
             f"--force-device-scale-factor={scale:g}"]
            if kind == "png"
            else [f"--print-to-pdf={target}", "--no-pdf-header-footer"]
        )  # fmt: skip
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-background-networking", f"--user-data-dir={folder}/profile", *ask,
             page.as_uri()],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if not target.is_file():
            lines: Sequence[str] = done.stderr.strip().splitlines() or ["no message"]
            raise KdalabError(f"{browser} could not draw the {kind} ({lines[-1]})")
        return target.read_bytes()


def _line(content: str, y: float, size: int, colour: str) -> str:
    return (
        f'<text x="{MARGIN}" y="{y:g}" style="font:{size}px {esc(FONT_UI)};fill:{colour}">'
        f"{esc(content)}</text>"
    )
