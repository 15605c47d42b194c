"""What is refused, offer by offer; what real models move, and when moving pays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from demos._film import Film, why_panel
from demos._text import t
from kdalab.lessons import real_bytes, refused_offers, worth_lines
from kdalab.phrases import say
from kdalab.units import format_bytes
from kdalab.viz.refusals import Offer, refusals_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.transfer_figures import WORTH_WORDS, ship_or_replay_figure

REAL_TOKENS = 100_000
"""Tokens of the request whose bytes are listed for real models."""


class MatrixFilm(Film):
    """One offer after the other."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.rows = refused_offers()
        self.last = len(self.rows) - 1
        self.opening = next(i for i, r in enumerate(self.rows) if r.field == "recurrent_layout")

    def sentence(self, step: int, lang: str) -> str:
        row = self.rows[step]
        if not row.refused:
            return t(lang, "transfer.step-taken", case=say(lang, row.case))
        return t(lang, "transfer.step-refused", case=say(lang, row.case), field=_field(row.field))

    def tone(self, step: int) -> str:
        return "evict" if self.rows[step].refused else "restore"

    def picture(self, step: int, lang: str) -> str:
        offers = [
            Offer(say(lang, r.case), r.refused, _field(r.field), r.ours, r.theirs)
            for r in self.rows
        ]
        names = ("case", "verdict", "field", "ours", "theirs", "refused", "taken")
        words = {n: t(lang, f"transfer.matrix-{n}") for n in names}
        label = self.sentence(step, lang)
        shown = refusals_svg(offers, step + 1, words=words, label=label)
        return f'<div class="kd-scroll">{shown}</div>'

    def why(self, step: int, lang: str) -> str:
        row = self.rows[step]
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        key = "matrix-why" if row.refused else "matrix-why-taken"
        parts = [
            (t(lang, "common.in-step"), now),
            (t(lang, "transfer.why"), f"<p>{esc(t(lang, f'transfer.{key}'))}</p>"),
        ]
        if row.refused:
            text = f"<p><code>{esc(row.message)}</code></p>"
            parts.append((t(lang, "transfer.says"), text))
        return why_panel(*parts)

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        return (matrix_table(lang), real_table(lang))

    def figures(self, lang: str) -> Sequence[Any]:
        return [worth_figure(self.rate, lang)]

    def data(self) -> dict[str, Any]:
        return {"refusals": [row._asdict() for row in self.rows]}


def _field(name: str) -> str:
    """A field's name; the format's own message has none."""
    return name if " " not in name else "version"


def matrix_table(lang: str) -> Table:
    """The refusal matrix as rows."""
    names = ("case", "verdict", "field", "ours", "theirs")
    rows = tuple(
        (
            say(lang, r.case),
            t(lang, f"transfer.matrix-{'refused' if r.refused else 'taken'}"),
            _field(r.field),
            r.ours,
            r.theirs,
        )
        for r in refused_offers()
    )
    columns = tuple(t(lang, f"transfer.matrix-{n}") for n in names)
    return Table(t(lang, "transfer.table-matrix"), columns, rows)


def real_table(lang: str) -> Table:
    """What a request of ``REAL_TOKENS`` tokens moves on real models, by kind."""
    rows = tuple(
        (
            k.model,
            format_bytes(k.latent),
            format_bytes(k.recurrent),
            format_bytes(k.conv),
            f"{k.share:.1%}",
        )
        for k in real_bytes(REAL_TOKENS)
    )
    columns = tuple(t(lang, f"transfer.column-{h}") for h in ("model", "kv", "s", "c", "share"))
    return Table(t(lang, "transfer.table-real", tokens=REAL_TOKENS), columns, rows)


@lru_cache(maxsize=16)
def worth_figure(rate: int, lang: str) -> Any:
    """Ship or replay, in the reader's language."""
    blanks = {k: f"{{{k}}}" for k in ("rate", "model", "state", "token", "floor")}
    words = {key: t(lang, f"transfer.figure-{key}", **blanks) for key in WORTH_WORDS}
    return ship_or_replay_figure(worth_lines(rate), words=words, height=420)
