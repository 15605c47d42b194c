"""Pages that stand elsewhere in the tree, and the parts of the navigation that follow from it."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

import status

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"contributing.md": "CONTRIBUTING.md", "kernels.md": "kernels/README.md"}
"""Page of the book -> file of the tree."""

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)")


def moved(target: str) -> str:
    """The text of a page, with its links turned to where the book has what they point at."""
    source = PAGES[target]
    homes = {path: page for page, path in PAGES.items()}

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        page = homes.get(path, path.removeprefix("docs/"))
        return f"]({page}{match[2] or ''})"

    return _LINK.sub(link, (ROOT / source).read_text("utf-8"))


def notebooks() -> list[Path]:
    """Every notebook of the tree, in order."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def notebook_title(path: Path) -> str:
    """The first heading of a notebook; its name where it has none."""
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        found = re.search(r"^# (.+)$", "".join(cell["source"]), re.MULTILINE)
        if cell["cell_type"] == "markdown" and found:
            return found[1]
    return path.stem


def mended(html: str) -> str:
    """A notebook's page with links to pages, not to files, and with one heading an anchor.

    A link to a notebook that is not in the tree becomes plain text.

    The notebook converter repeats an id where two headings are alike; the page's own table of
    contents counts on.
    """
    names = {path.name for path in notebooks()}
    seen: dict[str, int] = {}

    def link(match: re.Match[str]) -> str:
        there = f"{match[1]}.ipynb" in names
        return f'<a href="{match[1]}.html">{match[2]}</a>' if there else match[2]

    def anchor(match: re.Match[str]) -> str:
        count = seen.get(match[2], -1) + 1
        seen[match[2]] = count
        return f'{match[1]}id="{match[2]}"' if not count else f'{match[1]}id="{match[2]}_{count}"'

    html = re.sub(r'<a href="(\w+)\.ipynb">(.*?)</a>', link, html)
    return re.sub(r'(<h[1-6] (?:[^>]* )?)id="([^"]+)"', anchor, html)


def notebook_list() -> str:
    """A table of the notebooks and of the mechanisms that name them, for ``notebooks/index.md``."""
    lines = ["| notebook | question | mechanisms |", "|---|---|---|"]
    for path in notebooks():
        named = [m for m in status.mechanisms() if path.stem in m.notebook]
        pages = ", ".join(f"[{m.title}](../mechanisms/{m.slug}.md)" for m in named) or "-"
        lines.append(f"| {{{{ notebook {path.stem} }}}} | {notebook_title(path)} | {pages} |")
    return "\n".join(lines) + "\n"


def fill_nav(nav: list[Any]) -> None:
    """Put every mechanism and every notebook into its section, behind what stands there already."""
    parts = {
        "Mechanisms": [f"mechanisms/{one.slug}.md" for one in status.mechanisms()],
        "Notebooks": [
            {f"{path.stem[:2]} {notebook_title(path)}": f"notebooks/{path.name}"}
            for path in notebooks()
        ],
    }
    for section in nav:
        for title, items in parts.items():
            if isinstance(section, dict) and title in section:
                section[title] += items
