"""What the tour shows: each part as HTML, a pure function of the place and the language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlencode

from demos import _page
from demos._lesson import check_names
from demos._nav import Listed
from demos._text import t
from demos._tour_stops import STOPS, Told, told, told_at
from kdalab.errors import KdalabError
from kdalab.viz.svg import esc

OPEN = "-"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is: a stop (``len(STOPS)`` is the score) and one sign a stop answered.

    ``answers`` holds the number of the option chosen, or "-": all that an open page keeps.
    """

    at: int = 0
    answers: str = OPEN * len(STOPS)

    @property
    def done(self) -> bool:
        """Whether this is the score."""
        return self.at >= len(STOPS)

    @property
    def answer(self) -> str | None:
        """The option chosen here, if any."""
        sign = OPEN if self.done else self.answers[self.at]
        return None if sign == OPEN else STOPS[self.at].options[int(sign)]

    def moved(self, at: int) -> Place:
        """The nearest stop to ``at`` that exists."""
        return Place(min(max(at, 0), len(STOPS)), self.answers)

    def answered(self, option: str) -> Place:
        """With a prediction here; the first one counts.

        Raises:
            KdalabError: not an option of this stop.
        """
        if self.done or self.answer is not None:
            return self
        options = STOPS[self.at].options
        if option not in options:
            raise KdalabError(f"no answer {str(option)[:40]!r} here; use {', '.join(options)}")
        sign = str(options.index(option))
        return Place(self.at, self.answers[: self.at] + sign + self.answers[self.at + 1 :])

    def query(self, lang: str) -> str:
        """The page's address here."""
        pairs = [("stop", str(self.at + 1)), ("answers", self.answers)]
        return urlencode(pairs + ([("lang", lang)] if lang else []))


def read_place(query: dict[str, str]) -> Place:
    """The place that a link names.

    Raises:
        KdalabError: a stop that is no number, answers that no reader can have given, or a name
            or a language that the tour does not know.
    """
    check_names(query, ("stop", "answers"))
    stop, answers = query.get("stop", "1"), query.get("answers", OPEN * len(STOPS))
    if not re.fullmatch(r"[0-9]{1,3}", stop):
        raise KdalabError(f"stop={stop[:20]!r} in the link is not a whole number")
    if not 1 <= int(stop) <= len(STOPS) + 1:
        raise KdalabError(
            f"stop={int(stop)} in the link; the tour has the stops 1 to {len(STOPS) + 1}"
        )
    fits = len(answers) == len(STOPS) and all(
        sign == OPEN or sign in "0123456789"[: len(s.options)]
        for sign, s in zip(answers, STOPS, strict=True)
    )
    if not fits:
        raise KdalabError(
            f"answers={answers[:30]!r} in the link: give {len(STOPS)} signs, the number of an "
            f"answer or {OPEN}"
        )
    return Place(0, answers).moved(int(stop) - 1)


def right_answers(place: Place) -> list[bool | None]:
    """For each stop: predicted rightly, wrongly, or not at all."""
    return [
        None if sign == OPEN else x.stop.options[int(sign)] == x.right
        for sign, x in zip(place.answers, told(), strict=True)
    ]


def say(lang: str, x: Told, part: str) -> str:
    """One of the stop's texts, with the run's numbers in it."""
    return t(lang, f"tour.{x.stop.name}-{part}", **x.values)


def choices(place: Place, lang: str) -> list[tuple[str, str]]:
    """The options here as (text, name)."""
    if place.done:
        return []
    x = told_at(place.at)
    return [(say(lang, x, option), option) for option in x.stop.options]


def question_html(place: Place, lang: str, chosen: str = "") -> str:
    """The doubt and what is asked, or the score, whose links keep the language ``chosen``."""
    if place.done:
        return _score_html(place, lang, chosen)
    x = told_at(place.at)
    count = t(lang, "tour.count", n=place.at + 1, of=len(STOPS))
    return (
        f'<div class="kd-tour-ask"><p class="count">{esc(count)}</p>'
        f"<h2>{esc(say(lang, x, 'doubt'))}</h2><p>{esc(say(lang, x, 'ask'))}</p></div>"
    )


def verdict_html(place: Place, lang: str, chosen: str) -> str:
    """Before the prediction where to look it up; after it, what the run says and why."""
    if place.done:
        return ""
    x = told_at(place.at)
    title = x.lesson.title(lang)
    if place.answer is None:
        text = t(lang, "tour.look-up", page=title)
        return f'<p class="kd-note">{_link(x.link(x.after, chosen), text)}</p>'
    right = place.answer == x.right
    verdict = t(lang, "tour.right") if right else ""
    verdict = verdict or t(lang, "tour.wrong", answer=say(lang, x, x.right))
    css, sign = ("kd-good", "✓") if right else ("kd-bad", "✗")
    step = _link(x.link(x.after, chosen), t(lang, "tour.see", page=title))
    return (
        f'<div class="kd-why" aria-live="polite"><p class="{css}">{sign} {esc(verdict)}</p>'
        f"<h3>{esc(t(lang, 'tour.found'))}</h3><p>{esc(say(lang, x, 'told'))}</p>"
        f"<h3>{esc(t(lang, 'tour.why'))}</h3><p>{esc(say(lang, x, 'why'))}</p><p>{step}</p></div>"
    )


def choose_first_html(lang: str) -> str:
    """In the verdict's place, when nothing was chosen."""
    return f'<p class="kd-bad" aria-live="polite">{esc(t(lang, "tour.choose-first"))}</p>'


def picture_html(place: Place, lang: str) -> str:
    """The page's own picture: what poses the question, and after the prediction what answers it."""
    if place.done:
        return ""
    x = told_at(place.at)
    step = x.before if place.answer is None else x.after
    which = "before" if place.answer is None else "after"
    head = t(lang, f"tour.picture-{which}", page=x.lesson.title(lang))
    return (
        f'<p class="kd-note kd-tour-from"><b>{esc(head)}</b> {esc(x.film.sentence(step, lang))}</p>'
        f"{x.picture(place.answer is not None, lang)}"
    )


def address_html(place: Place, chosen: str) -> str:
    """Carries the address to the browser's address bar."""
    return f'<div data-query="{esc(place.query(chosen))}"></div>'


def _score_html(place: Place, lang: str, chosen: str) -> str:
    """How many, and each doubt as a link to the step that answers it."""
    marks = right_answers(place)
    total = t(lang, "tour.score", right=sum(mark is True for mark in marks), of=len(STOPS))
    if None in marks:
        total += " " + t(lang, "tour.score-left", open=marks.count(None))
    if all(marks):
        total += " " + t(lang, "tour.score-all")
    rows = []
    for x, mark in zip(told(), marks, strict=True):
        kind = {True: "right", False: "wrong", None: "open"}[mark]
        css = {"right": "kd-good", "wrong": "kd-bad", "open": "muted"}[kind]
        sign = {"right": "✓", "wrong": "✗", "open": "·"}[kind]
        rows.append(
            f'<li><span class="{css}">{sign} {esc(t(lang, f"tour.score-{kind}"))}</span> '
            f"{_link(x.link(x.after, chosen), say(lang, x, 'doubt'))}</li>"
        )
    return (
        f'<div class="kd-tour-ask"><h2>{esc(t(lang, "tour.finish"))}</h2><p>{esc(total)}</p>'
        f"<p>{esc(t(lang, 'tour.score-review'))}</p>"
        f'<ol class="kd-tour-score">{"".join(rows)}</ol></div>'
    )


def next_html(place: Place, pages: tuple[Listed, ...], lang: str, chosen: str) -> str:
    """Beside the score: the pages that no question was about."""
    if not place.done:
        return ""
    seen = {x.lesson.slug for x in told()}
    keep = f"?lang={chosen}" if chosen else ""
    others = "".join(
        f"<li>{_link(f'./{p.slug}{keep}', p.title(lang))}: "
        f"{esc(t(lang, f'{p.slug}.question'))}</li>"
        for p in pages
        if p.slug not in seen and p.slug != "tour"
    )
    head = esc(t(lang, "tour.score-next"))
    return f'<div class="kd-tour-ask"><h2>{head}</h2><ul>{others}</ul></div>'


def _link(href: str, text: str) -> str:
    return f'<a href="{esc(href)}">{esc(text)}</a>'


def heading(lang: str) -> str:
    """The page's question and sentence."""
    return _page.heading_html(t(lang, "tour.question"), t(lang, "tour.sentence"))
