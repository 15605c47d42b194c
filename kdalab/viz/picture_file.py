"""The picture of a page as a file of its own: SVG where it is drawn, HTML where it is a table."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kdalab.viz.css import stylesheet
from kdalab.viz.svg import WIDTH, esc

_SVG = re.compile(r"<svg([^>]*)>(.*?)</svg>", re.S)
_BOX = re.compile(r'viewBox="0 0 [\d.]+ ([\d.]+)"')
_CLASS = re.compile(r'class="([^"]*)"')
_GAP, _EDGE = 12, 16


@dataclass(frozen=True, slots=True)
class PictureFile:
    """A file: its name's ending, its media type, its text."""

    suffix: str
    media_type: str
    text: str


def picture_file(shown: str, title: str, theme_name: str = "light") -> PictureFile:
    """What a page shows, with its style sheet inside.

    Pictures under each other become one SVG; where anything but pictures is shown (a table) the
    file is an HTML page.
    """
    beside = re.sub(r"<[^>]*>", "", _SVG.sub("", shown)).strip()
    parts = _SVG.findall(shown)
    if beside or not parts:
        return PictureFile("html", "text/html", _page(shown, title, theme_name))
    drawn, top = [], float(_EDGE)
    for attributes, content in parts:
        height = _BOX.search(attributes)
        names = _CLASS.search(attributes)
        drawn.append(
            f'<g class="{names.group(1) if names else "kd-svg"}" '
            f'transform="translate({_EDGE} {top:g})">{content}</g>'
        )
        top += (float(height.group(1)) if height else 0.0) + _GAP
    width, height_all = WIDTH + 2 * _EDGE, top - _GAP + _EDGE
    return PictureFile(
        "svg",
        "image/svg+xml",
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height_all:g}" '
        f'width="{width}" height="{height_all:g}" data-theme="{esc(theme_name)}">'
        f"<title>{esc(title)}</title><style>{esc_style(stylesheet())}</style>"
        f'<rect width="100%" height="100%" style="fill: var(--kd-bg)"/>{"".join(drawn)}</svg>',
    )


def esc_style(css: str) -> str:
    """A style sheet as XML text; ``>`` and quotes may stand there as they are."""
    return css.replace("&", "&amp;").replace("<", "&lt;")


def _page(shown: str, title: str, theme_name: str) -> str:
    return (
        f'<!DOCTYPE html><html data-theme="{esc(theme_name)}"><head><meta charset="utf-8">'
        f"<title>{esc(title)}</title><style>{stylesheet()}"
        "body { background: var(--kd-bg); color: var(--kd-text); font-family: var(--kd-ui); }"
        f"</style></head><body>{shown}</body></html>"
    )
