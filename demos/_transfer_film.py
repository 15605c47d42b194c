"""A transfer as a film: asked for, piece by piece, decoded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from demos._film import Film, Row, why_panel
from demos._text import t
from demos._transfer_matrix import matrix_table, real_table, worth_figure
from kdalab.lessons import Parcel, TransferRun, refused_offers
from kdalab.lessons.player import shown_token
from kdalab.units import format_bytes
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.transfer import transfer_svg
from kdalab.viz.why import format_difference

_WORDS = (
    "prefill", "wire", "decode", "step", "state", "image", "held", "missing", "attempt", "no-token",
    "state-none", "state-waits", "state-here", "state-early", "taken", "twice", "kept", "early",
    "late", "unused", "damaged", "cut", "other",
)  # fmt: skip
_BAD = ("damaged", "cut", "other", "early", "unused")
_LANDED = ("taken", "late")


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
            real_table(lang),
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


def _what(p: Parcel, lang: str) -> str:
    if p.kind == "latent":
        return t(lang, "transfer.what-latent", start=p.start, end=p.end)
    return t(lang, f"transfer.what-{p.kind}", end=p.end)


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
    begun = whole in ("here", "early")  # the first token comes with the state
    tokens = run.generated if key == "decode" else run.generated[:1] if begun else ()
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
