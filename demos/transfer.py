"""**PD and EPD transfer**: latent KV piece by piece, the state once, and what is refused.

``python -m demos.transfer`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings, Switches
from demos._film import Film, Row, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.engine import receiving
from kdalab.lessons import (
    TRANSFER_FAULTS,
    Parcel,
    TransferRun,
    play_transfer,
    real_bytes,
    refused_offers,
    worth_lines,
)
from kdalab.lessons.player import shown_token
from kdalab.phrases import say
from kdalab.serve.incoming import Incoming
from kdalab.serve.outgoing import PrefillRole
from kdalab.transfer import refusal_matrix
from kdalab.transfer.worth import break_even
from kdalab.units import format_bytes
from kdalab.viz.refusals import Offer, refusals_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.transfer import transfer_svg
from kdalab.viz.transfer_figures import WORTH_WORDS, ship_or_replay_figure
from kdalab.viz.why import format_difference

_WORDS = (
    "prefill", "wire", "decode", "step", "state", "image", "held", "missing", "attempt", "no-token",
    "state-none", "state-waits", "state-here", "state-early", "taken", "twice", "kept", "early",
    "late", "unused", "damaged", "cut", "other",
)  # fmt: skip
_BAD = ("damaged", "cut", "other", "early", "unused")
_LANDED = ("taken", "late")
RATES = (2_000, 10_000, 50_000)
REAL_TOKENS = 100_000
"""Tokens of the request whose bytes are listed for real models."""


class TransferFilm(Film):
    """Asked for, piece by piece, decoded."""

    def __init__(self, run: TransferRun, rate: int) -> None:
        self.run, self.rate = run, rate
        self.steps: list[tuple[str, int]] = [("ask", 0)]
        attempt = 1
        for number, parcel in enumerate(run.parcels, 1):
            if parcel.attempt != attempt:
                attempt = parcel.attempt
                self.steps.append(("retry", number - 1))
            self.steps.append((self._key(parcel), number))
        self.steps.append(("decode", len(run.parcels)))
        self.last = len(self.steps) - 1
        told = [i for i, (key, _) in enumerate(self.steps) if key in (*_BAD, "twice", "kept")]
        state = [i for i, (key, _) in enumerate(self.steps) if key == "whole"]
        self.opening = (told or state or [self.last])[0]

    def _key(self, parcel: Parcel) -> str:
        if parcel.kind == "embedding":
            return "other" if parcel.fate == "other" else "embedding"
        if parcel.kind == "state" and parcel.fate == "taken":
            return "whole"
        return "piece" if parcel.fate == "taken" else parcel.fate

    def _values(self, step: int) -> dict[str, Any]:
        run, (_, shown) = self.run, self.steps[step]
        past = run.parcels[:shown]
        values: dict[str, Any] = {
            "tokens": run.n_tokens,
            "held": run.held,
            "rest": run.n_tokens - run.held,
            "saved": format_bytes(run.held * run.token_bytes),
            "chunk": run.chunk,
            "state": format_bytes(run.state_bytes),
            "generated": len(run.generated),
            "asked": run.asked[-1] if run.asked else 0,
            "early": run.early,
            "off": format_difference(run.difference),
        }
        if past:
            p = past[-1]
            values |= {
                "start": p.start,
                "end": p.end,
                "size": format_bytes(p.nbytes),
                "step": p.tick,
                "front": p.front,
                "missing": p.missing,
                "says": p.why,
            }
        return values

    def sentence(self, step: int, lang: str) -> str:
        key = self.steps[step][0]
        if key == "ask" and not self.run.held:
            key = "ask-cold"
        if key == "decode" and self.run.first_wrong is not None:
            key = "decode-wrong"
        return t(lang, f"transfer.step-{key}", **self._values(step))

    def tone(self, step: int) -> str:
        key = self.steps[step][0]
        if key in _BAD:
            return "evict"
        return {"whole": "restore", "decode": "finish"}.get(key, "plain")

    def picture(self, step: int, lang: str) -> str:
        return _picture(self, step, lang)

    def why(self, step: int, lang: str) -> str:
        run, values, key = self.run, self._values(step), self.steps[step][0]
        if key == "decode" and run.first_wrong is not None:
            values["at"] = run.first_wrong + 1
            key = "decode-wrong"
        parts = [
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>'),
            (t(lang, "transfer.why"), f"<p>{esc(t(lang, f'transfer.why-{key}', **values))}</p>"),
        ]
        says = values.get("says", "")
        if says and key in _BAD:
            heading = t(lang, "transfer.says")
            parts.append((heading, f"<p><code>{esc(says)}</code></p>"))
        sums = t(lang, "transfer.sums", **self._sums(step))
        parts.append((t(lang, "transfer.so-far"), f"<p>{esc(sums)}</p>"))
        if step == self.last:
            parts.append((t(lang, "transfer.outcome"), self._outcome(lang)))
        return why_panel(*parts)

    def _sums(self, step: int) -> dict[str, Any]:
        past = self.run.parcels[: self.steps[step][1]]
        return {
            "kv": format_bytes(sum(p.latent for p in past)),
            "s": format_bytes(sum(p.recurrent for p in past)),
            "c": format_bytes(sum(p.conv for p in past)),
            "e": format_bytes(sum(p.embedding for p in past)),
            "pieces": len(past),
            "attempts": max((p.attempt for p in past), default=1),
        }

    def _outcome(self, lang: str) -> str:
        run = self.run
        if run.first_wrong is None:
            text = t(lang, "transfer.same", n=len(run.generated), off=format_difference(0.0))
            return f'<p class="kd-good">{esc(text)}</p>'
        text = t(
            lang, "transfer.wrong", at=run.first_wrong + 1, n=len(run.alone),
            off=format_difference(run.difference),
        )  # fmt: skip
        return f'<p class="kd-bad">{esc(text)}</p>'

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        heads = ("attempt", "step", "what", "kv", "s", "c", "e", "frame", "fate")
        rows = tuple(
            (
                p.attempt,
                p.tick,
                _what(p, lang),
                p.latent,
                p.recurrent,
                p.conv,
                p.embedding,
                p.frame,
                t(lang, f"transfer.word-{p.fate}"),
            )
            for p in self.run.parcels
        )
        columns = tuple(t(lang, f"transfer.column-{h}") for h in heads)
        return (
            Table(t(lang, "transfer.table-pieces"), columns, rows),
            _real_table(lang),
            matrix_table(lang),
        )

    def log(self, lang: str) -> Sequence[Row]:
        return [Row(i, "A", key, self.sentence(i, lang)) for i, (key, _) in enumerate(self.steps)]

    def figures(self, lang: str) -> Sequence[Any]:
        return [worth_figure(self.rate, lang)]

    def data(self) -> dict[str, Any]:
        run = self.run
        return {
            "tokens": run.n_tokens,
            "held": run.held,
            "asked": list(run.asked),
            "pieces": [
                {
                    "attempt": p.attempt, "kind": p.kind, "start": p.start, "end": p.end,
                    "latent": p.latent, "recurrent": p.recurrent, "conv": p.conv,
                    "embedding": p.embedding, "frame": p.frame, "step": p.tick, "fate": p.fate,
                    "why": p.why,
                }
                for p in run.parcels
            ],
            "generated": list(run.generated),
            "one_engine": list(run.alone),
            "difference": str(run.difference),
            "first_wrong": run.first_wrong,
            "refusals": [row._asdict() for row in refused_offers()],
        }  # fmt: skip


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
        return (matrix_table(lang), _real_table(lang))

    def figures(self, lang: str) -> Sequence[Any]:
        return [worth_figure(self.rate, lang)]

    def data(self) -> dict[str, Any]:
        return {"refusals": [row._asdict() for row in self.rows]}


def _field(name: str) -> str:
    """A field's name; the format's own message has none."""
    return name if " " not in name else "version"


def _what(p: Parcel, lang: str) -> str:
    if p.kind == "latent":
        return t(lang, "transfer.what-latent", start=p.start, end=p.end)
    return t(lang, f"transfer.what-{p.kind}", end=p.end)


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


def _real_table(lang: str) -> Table:
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


@lru_cache(maxsize=256)
def _picture(film: TransferFilm, step: int, lang: str) -> str:
    run, (key, shown) = film.run, film.steps[step]
    past = run.parcels[:shown]
    landed = [(p.start, p.end) for p in past if p.kind == "latent" and p.fate in _LANDED]
    states = [p.fate for p in past if p.kind == "state" and p.fate not in ("cut", "damaged")]
    whole = "none"
    if states:
        whole = {"early": "early", "kept": "waits"}.get(states[-1], "here")
        if whole == "waits" and past[-1].missing == 0:
            whole = "here"
    done = max((p.tick for p in past), default=0)
    tokens = run.generated if key == "decode" else run.generated[:1] if whole == "here" else ()
    wrong = [a != b for a, b in zip(tokens, run.alone, strict=False)]
    words = {w: t(lang, f"transfer.word-{w}", n="{n}") for w in _WORDS}
    shown_svg = transfer_svg(
        n_tokens=run.n_tokens, held=run.held, image=run.image, chunks=run.chunks,
        parcels=run.parcels, shown=shown, now=key not in ("ask", "retry", "decode"),
        done_chunks=done, landed=landed, whole=whole,
        generated=[_text(x) for x in tokens], wrong=wrong, words=words,
        label=film.sentence(step, lang),
    )  # fmt: skip
    return f'<div class="kd-scroll">{shown_svg}</div>'


def _text(token: int) -> str:
    text = shown_token(token)
    return f"[{token}]" if text == "·" else text


def film(settings: Settings) -> Film:
    """The film of one setting. An embedding of another image needs an image, so it makes it EPD."""
    breaks, way = settings["breaks"], settings["way"]
    if way == "matrix":
        return MatrixFilm(settings["rate"])
    faults = tuple(f for f in TRANSFER_FAULTS if f in breaks)
    way = "epd" if "image" in faults else way
    run = play_transfer(way, settings["chunk"], settings["have"], faults, "early" in breaks)
    return TransferFilm(run, settings["rate"])


LESSON = Lesson(
    slug="transfer",
    group="systems",
    controls=(
        Choice("way", ("pd", "epd", "matrix"), "pd", 220),
        Choice("chunk", (64, 128, 256), 64),
        Choice("have", (0, 64, 128, 192), 64),
        Choice("rate", RATES, 10_000),
        Switches("breaks", ("early", *TRANSFER_FAULTS)),
    ),
    film=film,
    figures=1,
    legend=False,
    terms=(
        (
            "pieces while prefill goes on",
            "PD transfer by chunk",
            "KV connector, in chunks",
        ),
        (
            "the state, once",
            "`StateType.MAMBA`, with the last chunk",
            "NIXL: the last mamba state always",
        ),
        (
            "only missing latent KV travels",
            "decode matches KV alone, `_match_prefix_and_lock`",
            "NIXL: attention blocks that are missing",
        ),
        (
            "slot before the state",
            "`HybridMambaDecodeReqToTokenPool` preallocates",
            "blocks before the transfer",
        ),
        ("conv by q, k, v", "`conv_shard_groups`, `conv_slice_axis`", "three-read conv (NIXL)"),
        ("EPD", "encode instances", "encoder cache, EC connector"),
    ),
    code=(
        ("code-out", PrefillRole._advance),
        ("code-in", Incoming.take),
        ("code-land", receiving.land_state),
        ("code-matrix", refusal_matrix),
        ("code-worth", break_even),
    ),
    notebook="moving_state",
    exercises=("ex22", "ex23"),
    next=("joint", "unified", "invariants"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
