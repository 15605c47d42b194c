"""A recorded run of the real engine as a film: prompts, tree, slots, why, log, tables, zoom.

Pages that run a scenario subclass or use ``EngineFilm``. What the engine says is English and goes
through the phrase book (``kdalab/phrases.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demos import _engine_draw as draw
from demos._film import Film, Row, Seen
from kdalab.errors import KdalabError
from kdalab.lessons import Recording
from kdalab.phrases import say, say_html
from kdalab.viz.tables import Table, node_table, pool_table, request_table


class EngineFilm(Film):
    """Everything that a recording can show. ``opening`` is the step to look at first."""

    def __init__(self, run: Recording, opening: int | None = None) -> None:
        self.run = run
        self.last = len(run.steps) - 1
        self.opening = self.last if opening is None else opening

    def first_of(self, *kinds: str, request: str = "") -> int:
        """The first step of one of these kinds (of that request), or the last step."""
        for index, step in enumerate(self.run.steps):
            if step.kind in kinds and request in ("", step.request):
                return index
        return self.last

    def sentence(self, step: int, lang: str) -> str:
        return say(lang, self.run.steps[step].sentence)

    def tone(self, step: int) -> str:
        return self.run.steps[step].tone

    def picture(self, step: int, lang: str) -> str:
        return say_html(lang, draw.picture_html(self.run, step))

    def why(self, step: int, lang: str) -> str:
        return say_html(lang, draw.why_panel(self.run, step))

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        run, view = self.run, self.run.view(step)
        tables = (
            request_table(view),
            node_table(view, run.page_bytes, run.checkpoint_bytes),
            pool_table(view, run.page_bytes, run.checkpoint_bytes),
            draw.measured_table(run),
        )
        return [said_table(table, lang) for table in tables]

    def log(self, lang: str) -> Sequence[Row]:
        rows, step = [], 0
        for index, event in enumerate(self.run.events):
            while step < self.last and self.run.steps[step].event_index <= index:
                step += 1
            rows.append(Row(step, event.request, event.name, say(lang, event.sentence())))
        return rows

    def pick(self, step: int, name: str, lang: str) -> Seen | None:
        thing, _, place = name.partition("/")
        layer, _, head = place.partition(".")
        try:
            seen = draw.zoom(self.run, step, thing)
        except KdalabError:
            return None
        matrix = ""
        if seen.slot is not None:
            a, b = (int(x) if x.isdigit() and len(x) < 4 else 0 for x in (layer, head))
            matrix = draw.matrix_html(self.run, step, seen.slot, thing, a, b, lang)
        return Seen(say(lang, seen.title), say_html(lang, seen.html) + matrix)

    def data(self) -> dict[str, Any]:
        return {
            "events": draw.events_of(self.run),
            "measured": [
                {
                    "request": m.request,
                    "tokens": m.n_tokens,
                    "restore": m.restore,
                    "logits": finite(m.logits),
                    "recurrent": finite(m.recurrent),
                    "conv": finite(m.conv),
                    "latent": finite(m.latent),
                    "first_difference": m.first_difference,
                }
                for m in self.run.measured
            ],
        }

    @property
    def requests(self) -> Sequence[str]:
        return tuple(self.run.texts)


def said_table(table: Table, lang: str) -> Table:
    """A table with its words in another language; numbers stay."""
    if lang == "en":
        return table
    rows = tuple(
        tuple(say(lang, c) if isinstance(c, str) else c for c in row) for row in table.rows
    )
    return Table(say(lang, table.caption), tuple(say(lang, c) for c in table.columns), rows)


def finite(value: float) -> float | str:
    """A number that JSON can hold; "NaN" or "inf" as text."""
    return value if value == value and abs(value) != float("inf") else str(value)
