"""What a page shows: a finished run as a film of steps. Pages subclass ``Film``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdalab.viz.svg import esc
from kdalab.viz.tables import Table, table_html

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the event log: its step, whose it is, its name, what happened."""

    step: int
    request: str
    event: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a picked thing is: a title and HTML."""

    title: str
    html: str


class Film(ABC):
    """A finished run of one page at one setting: immutable once made, shared by every visitor.

    Steps are numbered 0 .. ``last``. Texts come in the language asked for.
    """

    last: int = 0
    opening: int = 0

    @abstractmethod
    def sentence(self, step: int, lang: str) -> str:
        """What happens in this step, in one sentence."""

    def tone(self, step: int) -> str:
        """The step's mark on the bar: plain, restore, copy, snapshot, evict, finish."""
        return "plain"

    @abstractmethod
    def picture(self, step: int, lang: str) -> str:
        """The picture as HTML (SVG from ``kdalab.viz``); what has ``data-pick`` can be picked."""

    @abstractmethod
    def why(self, step: int, lang: str) -> str:
        """Inside of the *why* panel: what happened, the binding constraint, the numbers."""

    @abstractmethod
    def tables(self, step: int, lang: str) -> Sequence[Table]:
        """The numbers of the picture."""

    def log(self, lang: str) -> Sequence[Row]:
        """The event log; empty for a page without events."""
        return ()

    def figures(self, lang: str) -> Sequence[go.Figure]:
        """Plotly figures of the whole run, as many as the page says; they don't change by step."""
        return ()

    def pick(self, step: int, name: str, lang: str) -> Seen | None:
        """What a picked thing ("node:3") is; None for what cannot be looked at."""
        return None

    @abstractmethod
    def data(self) -> dict[str, Any]:
        """Everything as plain data, for the download and the API."""

    @property
    def requests(self) -> Sequence[str]:
        """Names that the log can be filtered by."""
        return ()


def why_panel(*parts: tuple[str, str] | str) -> str:
    """The *why* panel from (heading, HTML) pairs or plain HTML."""
    shown = [p if isinstance(p, str) else f"<h3>{esc(p[0])}</h3>{p[1]}" for p in parts]
    return f'<div class="kd-why">{"".join(shown)}</div>'


def without_copy(why: str, sentence: str) -> str:
    """The panel without the section that only says ``sentence``, which stands under the step bar.

    A panel that says nothing else stays as it is.
    """
    copy = rf'<h3>[^<]*</h3><p class="now[^"]*">{re.escape(esc(sentence))}</p>(?=<h3)'
    return re.sub(copy, "", why, count=1)


def tables_html(tables: Sequence[Table]) -> str:
    """Tables under each other."""
    return "<br>".join(table_html(table) for table in tables)


def log_html(film: Film, step: int, request: str, lang: str, caption: str, head: Row) -> str:
    """The log as a table, this step's lines marked; ``request`` "" shows all."""
    rows = [row for row in film.log(lang) if request in ("", row.request)]
    table = Table(
        caption,
        ("#", head.request, head.event, head.sentence),
        tuple((i, row.request or "-", row.event, row.sentence) for i, row in enumerate(rows)),
    )
    here = [i for i, row in enumerate(rows) if row.step == step]
    return f'<div class="kd-log">{table_html(table, here)}</div>'
