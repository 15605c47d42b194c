"""The common page: question, picture and why, steps, controls, what breaks, what is folded away.

A page is a ``Lesson``: its words under its own name in the catalogue, its controls, and a function
from settings to a ``Film``. Languages, links, log, downloads and API are the same for all.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import gradio as gr

from demos._controls import (
    Choice,
    Control,
    Number,
    Settings,
    Switches,
    Text,
    checked,
    query_of,
    step_of_link,
)
from demos._film import Film, tables_html, without_copy
from demos._kept import Kept
from demos._text import t
from demos._uploads import Upload
from kdalab.errors import InvariantError, KdalabError
from kdalab.phrases import say
from kdalab.words import LANGUAGES

Code = Sequence[tuple[str, Callable[..., Any]]]


@dataclass(frozen=True)
class Lesson:
    """One page.

    Args:
        slug: its address, and its name in the catalogue: ``<slug>.title``, ``.question``,
            ``.sentence``, ``.<control>``, ``.about`` (what is true on this page and how it was
            measured), ``.signs`` (what its picture's own signs mean, where it has some).
        group: key of its group of pages in ``common.group-<group>``.
        controls: in the order of the row; ``Switches`` stand under "what breaks if".
        film: settings to a finished run. Cached; raises KdalabError for what cannot run.
        presets: for the ``Choice`` named ``preset``: its value -> what it sets.
        preset: that control's key.
        figures: how many plotly figures the film has.
        terms: rows (here, SGLang, vLLM).
        code: (key of the sentence why it matters, function) pairs.
        notebook: a word in the name of its notebook.
        exercises: names of exercises, as ``kdalab check`` takes them.
        next: slugs of pages to try next.
        long: a run may take many seconds: it shows how far it is (``_work.at``), and can be
            stopped.
    """

    slug: str
    group: str
    controls: tuple[Control, ...]
    film: Callable[[Settings], Film]
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    preset: str = "preset"
    figures: int = 0
    legend: bool = True
    terms: Sequence[tuple[str, str, str]] = ()
    code: Code = ()
    notebook: str = ""
    exercises: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    long: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kept", Kept(self.film, 32))
        object.__setattr__(self, "_drawn", lru_cache(maxsize=32)(self._draw))

    @property
    def default(self) -> Settings:
        """Every control at its default."""
        return checked(self.controls, {})

    def play(self, settings: Settings) -> Film:
        """The film of these settings; the same settings give the same film, so it is kept."""
        kept: Kept[Settings, Film] = self._kept  # type: ignore[attr-defined]
        return kept(settings)

    def drawn(self, settings: Settings, step: int, lang: str) -> tuple[str, str, str]:
        """The picture, the *why* and the tables of a step as HTML; the last few dozen are kept."""
        shown: tuple[str, str, str] = self._drawn(settings, step, lang)  # type: ignore[attr-defined]
        return shown

    def _draw(self, settings: Settings, step: int, lang: str) -> tuple[str, str, str]:
        film = self.play(settings)
        tables = tables_html(film.tables(step, lang))
        why = without_copy(film.why(step, lang), film.sentence(step, lang))
        return film.picture(step, lang), why, tables

    def forget(self, tickets: Collection[str]) -> None:
        """Let go of the films of files that are void now."""
        kept: Kept[Settings, Film] = self._kept  # type: ignore[attr-defined]
        keys = [c.key for c in self.uploads]
        kept.forget(lambda settings: any(settings[key] in tickets for key in keys))
        if tickets:
            self._drawn.cache_clear()  # type: ignore[attr-defined]

    def settings(self, given: dict[str, Any]) -> Settings:
        """Settings from a link or a script: a preset's values, and what is given beside it.

        Raises:
            KdalabError: as ``checked``.
        """
        base: dict[str, Any] = {}
        if self.preset in given:
            chosen = checked(
                [c for c in self.controls if c.key == self.preset],
                {self.preset: given[self.preset]},
            )
            base = dict(self.presets.get(str(chosen[self.preset]), {}))
        return checked(self.controls, base | given)

    def chosen(self, preset: Any, now: dict[str, Any]) -> Settings:
        """Settings after a preset was chosen: what no preset sets stays as it is ``now``.

        Raises:
            KdalabError: as ``checked``.
        """
        named = {key for values in self.presets.values() for key in values}
        kept = {key: value for key, value in now.items() if key not in named}
        return self.settings(kept | {self.preset: preset})

    def changed(self, settings: Settings) -> bool:
        """Whether a control differs from what the chosen preset sets; what breaks does not count.

        What no preset sets, and what this one leaves out, is compared with its default.
        """
        values = settings.as_dict()
        base = self.default.as_dict() | self.presets.get(str(values.get(self.preset)), {})
        counted = [c.key for c in self.row + self.texts if c.key != self.preset]
        return bool(self.presets) and any(values[key] != base[key] for key in counted)

    def query(self, settings: Settings, step: int | None = None, lang: str = "") -> str:
        """The page's address at these settings."""
        named = dict(settings.values).get(self.preset)
        first = next((c.default for c in self.controls if c.key == self.preset), None)
        # The first preset is not named, and sets nothing: its values are the controls' defaults.
        base = self.presets.get(str(named), {}) if named != first else {}
        return query_of(self.controls, settings, step, lang, base)

    def title(self, lang: str) -> str:
        """The page's short name."""
        return t(lang, f"{self.slug}.title")

    @property
    def row(self) -> list[Control]:
        """Controls of the row."""
        return [c for c in self.controls if isinstance(c, Choice | Number)]

    @property
    def broken(self) -> list[Switches]:
        """What breaks if ..."""
        return [c for c in self.controls if isinstance(c, Switches)]

    @property
    def texts(self) -> list[Text]:
        """Boxes to type into."""
        return [c for c in self.controls if isinstance(c, Text)]

    @property
    def uploads(self) -> list[Upload]:
        """Files of the visitor's own."""
        return [c for c in self.controls if isinstance(c, Upload)]


def guard(function: Callable[..., Any], *args: Any, lang: str = "en") -> Any:
    """Call; what is wrong with the input becomes a message on the page, in the page's language.

    Gradio shows a message as HTML, and ours may quote what a visitor typed: markup becomes text.
    """
    try:
        return function(*args)
    except (KdalabError, InvariantError) as error:
        shown = html.escape(say(lang, str(error)), quote=False)
        title = t(lang, "common.refused")
        raise gr.Error(shown, title=title, print_exception=False) from error


def told(function: Callable[..., Any], *args: Any) -> Any:
    """Call; what is wrong with the input becomes the answer of the API, as it is."""
    try:
        return function(*args)
    except (KdalabError, InvariantError) as error:
        raise gr.Error(str(error), print_exception=False) from error


def clipped(step: Any, film: Film) -> int:
    """A step that exists, from any number."""
    if isinstance(step, bool) or not isinstance(step, int | float) or step != step:
        return film.opening
    return min(max(int(max(-1, min(step, 1_000_000))), 0), film.last)


def numbers_of(lesson: Lesson) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The page's function for scripts: settings in (missing ones are defaults), numbers out."""

    def numbers(settings: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(settings, dict):
            raise gr.Error("settings: give an object with names and values", print_exception=False)
        chosen = told(lesson.settings, settings)
        film = told(lesson.play, chosen)
        return {
            "query": lesson.query(chosen, film.opening),
            "settings": chosen.as_dict(),
            "steps": [
                {"step": i, "tone": film.tone(i), "sentence": film.sentence(i, "en")}
                for i in range(film.last + 1)
            ],
            "data": film.data(),
        }

    names = ", ".join(c.key for c in lesson.controls)
    numbers.__doc__ = f"{t('en', f'{lesson.slug}.question')} Settings: {names}."
    return numbers


def joined(pairs: Iterable[tuple[str, str]], lists: Collection[str] = ()) -> dict[str, str]:
    """An address's values by name: of a name that comes twice the last value counts, but one of
    ``lists``, as switches are, has them all."""
    query: dict[str, str] = {}
    for key, value in pairs:
        both = key in query and key in lists
        query[key] = f"{query[key]}.{value}" if both else value
    return query


def page_query(query: Mapping[str, str]) -> dict[str, str]:
    """An address's values without what is Gradio's or an advertiser's: a theme, a view, utm_..."""
    gradio = ("view", "deep_link")
    return {k: v for k, v in query.items() if k not in gradio and not k.startswith(("_", "utm_"))}


def read_link(lesson: Lesson, query: dict[str, str]) -> tuple[Settings, int | None]:
    """Settings and step of an address.

    Raises:
        KdalabError: a name that the page does not know, a value that its control refuses, a
            language that it does not speak, or a step that is no number.
    """
    check_names(query, [*(c.key for c in lesson.controls), "step"])
    given = {c.key: query[c.key] for c in lesson.controls if c.key in query}
    return lesson.settings(given), step_of_link(query.get("step"))


def check_names(query: Mapping[str, str], known: Sequence[str]) -> None:
    """Every name of an address is one of ``known``, or lang with a language that is spoken.

    Raises:
        KdalabError: one is not.
    """
    for name in page_query(query):
        if name not in known and name != "lang":
            shown = ", ".join([*known, "lang"])
            raise KdalabError(f"{name[:40]!r} in the link is nothing this page has; use {shown}")
    lang = query.get("lang", "")
    if lang and lang not in LANGUAGES:
        raise KdalabError(f"lang={lang[:20]!r} in the link; use {', '.join(LANGUAGES)}")


def opened(lesson: Lesson, query: dict[str, str]) -> tuple[Settings, int | None]:
    """As ``read_link``, of a run that can be run and has that step.

    Raises:
        KdalabError, InvariantError: as ``read_link`` and ``Lesson.play``, or there is no such step.
    """
    settings, step = read_link(lesson, query)
    last = lesson.play(settings).last
    if step is not None and step > last:
        raise KdalabError(f"step={step} in the link; this run has the steps 0 to {last}")
    return settings, step


def can_follow(lesson: Lesson, query: dict[str, str]) -> bool:
    """Whether the page can show what an address asks for."""
    try:
        opened(lesson, query)
    except (KdalabError, InvariantError):
        return False
    return True
