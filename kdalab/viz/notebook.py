"""Pictures and tables of ``kdalab.viz`` in a notebook, with their style sheet.

``show`` is for live notebooks; ``picture`` makes an image that viewers show that run no HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kdalab.viz.css import stylesheet
from kdalab.viz.drawing import Drawing
from kdalab.viz.svg import standalone
from kdalab.viz.tables import Table, table_html

if TYPE_CHECKING:
    from IPython.display import SVG

_BOX = """
.kd-box { background: var(--kd-bg); padding: 14px; max-width: 900px; overflow-x: auto; }
.kd-box .kd-table td:not(.num), .kd-box .kd-table th:not(.num) { text-align: left !important; }
.kd-box .kd-table td { white-space: normal; overflow-wrap: anywhere; min-width: 4em; }
.kd-box ul { margin: 10px 0 0 !important; padding: 0 !important; }
"""


def show(*parts: str) -> None:
    """Display HTML and SVG of ``kdalab.viz``, one below the other."""
    from IPython.display import HTML, display

    box = f'<div class="kd-box">{"".join(parts)}</div>'
    display(HTML(f"<style>{stylesheet()}{_BOX}</style>{box}"))


def show_table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Display a table; cells are shown as ``str`` gives them."""
    show(table_html(Table(caption, tuple(columns), tuple(tuple(row) for row in rows))))


def picture(svg: str | Drawing) -> SVG:
    """One picture as an image of its own."""
    from IPython.display import SVG

    if isinstance(svg, Drawing):
        return SVG(svg.svg())
    return SVG(standalone(svg).replace("<style>", "<style>.kd-svg{background:var(--kd-bg)}", 1))
