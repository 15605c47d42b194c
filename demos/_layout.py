"""A lesson as Gradio components, and what they show: everything but the events between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from demos import _file, _page
from demos._controls import Choice, Control, Settings
from demos._film import Row, log_html
from demos._lesson import Lesson, clipped
from demos._nav import Listed, nav_html
from demos._opening import drawn_box
from demos._text import t
from kdalab.phrases import say_html
from kdalab.viz.figure_words import said_figure
from kdalab.viz.legend import legend_html
from kdalab.viz.svg import esc
from kdalab.words import LANGUAGES

_FOLDS = ("zoom", "table", "log", "terms", "code", "study", "next")


@dataclass(frozen=True, slots=True)
class Parts:
    """The page's components, by what changes together."""

    settings: gr.State
    step: gr.State
    lang: gr.State  # (language shown, the one chosen on purpose or "")
    nav: gr.HTML
    language: gr.Dropdown
    heading: gr.HTML
    picture: gr.HTML
    why: gr.HTML
    bar: _page.StepBar
    controls: list[Any]
    run: gr.Button | None
    files: list[_file.FileParts]
    stop: gr.Button | None  # of a page with long runs
    plots: list[gr.Plot]
    folds: dict[str, gr.Accordion]
    table: gr.HTML
    zoom: gr.HTML
    request: gr.Dropdown
    log: gr.HTML
    words: list[gr.HTML]  # about, terms, code, study, next, legend
    save: gr.Button
    draws: list[gr.Button]  # as ``drawings``
    copy: gr.Button
    blob: gr.Textbox
    drawn: gr.Textbox  # see _opening

    @property
    def frame(self) -> list[Any]:
        """Outputs of ``_step``."""
        return [self.step, self.picture, self.why, self.bar.bar, self.table, self.log]

    @property
    def where(self) -> list[Any]:
        """Inputs of every step."""
        return [self.settings, self.step, self.lang, self.request]

    @property
    def shown(self) -> list[Any]:
        """Outputs of ``whole_run``."""
        has = [self.bar.row, self.folds["zoom"], self.folds["log"]]
        return [self.settings, self.request, self.zoom, *self.plots, *has, *self.frame]

    @property
    def labelled(self) -> list[Any]:
        """Outputs of ``_label``: everything that a language changes and a run does not."""
        bar = self.bar
        buttons = [bar.first, bar.back, bar.play, bar.forward, bar.last, self.copy, self.save,
                   *self.draws]  # fmt: skip
        run = [button for button in (self.run, self.stop) if button is not None]
        return [
            self.lang, self.nav, self.language, self.heading, *self.controls, *buttons, *run,
            *(part for file in self.files for part in file.labelled), *self.folds.values(),
            *self.words,
        ]  # fmt: skip


# -- what is shown ---------------------------------------------------------------------------


def frame_at(
    lesson: Lesson, settings: Settings, step: Any, lang: tuple[str, str], only: str
) -> tuple[Any, ...]:
    """Everything that changes with the step: (step, picture, why, step bar, tables, log)."""
    film, code = lesson.play(settings), lang[0]
    at = clipped(step, film)
    request = only if only in film.requests else ""
    picture, why, tables = lesson.drawn(settings, at, code)
    bar, log = _bar(lesson, settings, at, lang), _log(lesson, settings, at, code, request)
    return at, picture, why, bar, tables, log


def _bar(lesson: Lesson, settings: Settings, step: int, lang: tuple[str, str]) -> str:
    film, (code, chosen) = lesson.play(settings), lang
    marks = [_Mark(film.sentence(i, code), film.tone(i)) for i in range(film.last + 1)]
    count = t(code, "common.step", step=step + 1, last=film.last + 1)
    return _page.step_bar_html(marks, step, lesson.query(settings, step, chosen), count, code)


def _log(lesson: Lesson, settings: Settings, step: int, lang: str, request: str) -> str:
    film = lesson.play(settings)
    count = len(film.log(lang))
    caption = t(lang, "common.log-caption", events=count)
    names = [t(lang, f"common.log-{n}") for n in ("request", "event", "what")]
    return log_html(film, step, request, lang, caption, Row(0, *names))


def whole_run(lesson: Lesson, settings: Settings, step: int | None, lang: tuple[str, str]) -> Any:
    """A whole new run, nothing picked, at ``step`` or where it is best looked at first."""
    film = lesson.play(settings)
    everyone = t(lang[0], "common.everyone")
    names = [(everyone, ""), *((name, name) for name in film.requests)]
    return (
        settings,
        gr.Dropdown(names, value="", label=t(lang[0], "common.show")),
        _note(t(lang[0], "common.pick")),
        *(said_figure(lang[0], figure) for figure in film.figures(lang[0])),
        gr.Row(visible=film.last > 0),
        gr.Accordion(visible="data-pick" in film.picture(film.opening, "en")),
        gr.Accordion(visible=bool(film.log("en"))),
        *frame_at(lesson, settings, film.opening if step is None else step, lang, ""),
    )


def labels(
    lesson: Lesson,
    pages: Sequence[Listed],
    settings: Settings,
    lang: tuple[str, str],
    files: Sequence[_file.FileParts] = (),
) -> tuple[Any, ...]:
    """Everything that a language changes, at these settings; ``files`` are the page's."""
    code, chosen = lang
    names = ("first", "back", "play", "forward", "last", "copy", "save")
    sign = {"play": _page.PLAY_SIGN}
    buttons = [sign.get(n, "") + t(code, f"common.{n}") for n in names]
    buttons += [_draw_label(what, kind, code) for what, kind in drawings(lesson)]
    run = [t(code, "common.run")] if lesson.texts else []
    run += [t(code, "common.stop")] if lesson.long else []
    return (
        lang,
        nav_html(pages, lesson.slug, code, chosen),
        gr.Dropdown(value=code, label=t(code, "common.language")),
        _heading(lesson, code),
        *controls_at(lesson, settings, code),
        *buttons,
        *run,
        *(part for file in files for part in file.labels(settings, code)),
        *(gr.Accordion(label=t(code, f"common.fold-{name}")) for name in _folds(lesson)),
        *_words(lesson, pages, code, chosen),
    )


def controls_at(lesson: Lesson, settings: Settings, lang: str) -> list[Any]:
    """Every control at these settings; a preset that they differ from says so in its name."""
    files = [c.choice for c in lesson.uploads if settings[c.key]]
    return [
        presets_at(lesson, settings, lang)[0]
        if lesson.presets and c.key == lesson.preset
        else c.update(lesson.slug, lang, settings[c.key], own=c.key in files)
        if isinstance(c, Choice)
        else c.update(lesson.slug, lang, settings[c.key])
        for c in ordered(lesson)
    ]


def presets_at(lesson: Lesson, settings: Settings, lang: str) -> list[Any]:
    """The page's presets at these settings, or nothing for a page without."""
    changed = lesson.changed(settings)
    return [
        c.update(lesson.slug, lang, settings[c.key], changed=changed)
        for c in lesson.row
        if lesson.presets and c.key == lesson.preset and isinstance(c, Choice)
    ]


def _heading(lesson: Lesson, lang: str) -> str:
    slug = lesson.slug
    return _page.heading_html(t(lang, f"{slug}.question"), t(lang, f"{slug}.sentence"))


def drawings(lesson: Lesson) -> list[tuple[str, str]]:
    """What can be saved as an image, and in which format."""
    whats = ["picture", "charts"] if lesson.figures else ["picture"]
    return [(what, kind) for what in whats for kind in ("svg", "png")]


def _draw_label(what: str, kind: str, lang: str) -> str:
    return t(lang, f"common.draw-{what}", kind=kind.upper())


def _note(text: str) -> str:
    return f'<p class="kd-note">{esc(text)}</p>'


def _words(lesson: Lesson, pages: Sequence[Listed], lang: str, chosen: str) -> list[str]:
    """About, terms, code, study, next, legend."""
    about = f"{lesson.slug}.about"
    code = [(t(lang, f"{lesson.slug}.{key}"), function) for key, function in lesson.code]
    keep = f"?lang={chosen}" if chosen else ""
    after = [p for slug in lesson.next for p in pages if p.slug == slug]
    links = "".join(
        f'<li><a href="./{esc(p.slug)}{keep}">{esc(p.title(lang))}</a>: '
        f"{esc(t(lang, f'{p.slug}.question'))}</li>"
        for p in after
    )
    checks = "".join(f"<li><code>kdalab check {esc(e)}</code></li>" for e in lesson.exercises)
    return [
        _note(t(lang, about)) if about in t else "",
        _page.terms_html(lesson.terms, t(lang, "common.here")),
        _page.code_html(code),
        _page.notebook_html(lesson.notebook or lesson.slug, lang)
        + (f"<ul>{checks}</ul>" if checks else ""),
        f'<ul class="kd-note">{links}</ul>',
        (say_html(lang, legend_html()) if lesson.legend else "") + _signs(lesson, lang),
    ]


def _signs(lesson: Lesson, lang: str) -> str:
    """What the signs of this page's own picture mean, where the catalogue has it."""
    key = f"{lesson.slug}.signs"
    return _note(t(lang, key)) if key in t else ""


def ordered(lesson: Lesson) -> list[Control]:
    return [*lesson.row, *lesson.broken, *lesson.texts, *lesson.uploads]


def _folds(lesson: Lesson) -> list[str]:
    """Which sections this page has; a run without events hides its log, and so on."""
    missing = {
        "terms": not lesson.terms,
        "code": not lesson.code,
        "next": not lesson.next,
    }
    return [name for name in _FOLDS if not missing.get(name, False)]


# -- components ------------------------------------------------------------------------------


def layout(lesson: Lesson, pages: Sequence[Listed]) -> Parts:
    """Every component; what a run shows in them comes with ``whole_run``."""
    lang = ("en", "")
    about, terms, code, study, after, legend_text = _words(lesson, pages, *lang)
    names = _folds(lesson)

    settings, step, language = gr.State(lesson.default), gr.State(0), gr.State(lang)
    with gr.Row(elem_classes="kd-top"):
        nav = _page.nav(nav_html(pages, lesson.slug, *lang))
        chooser = gr.Dropdown(
            [(name, code) for code, name in LANGUAGES.items()],
            value="en",
            label=t("en", "common.language"),
            elem_id="kd-language",
            container=False,
            min_width=110,
            scale=0,
        )
    heading = _page.block(_heading(lesson, "en"))
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            picture = _page.picture("")
        with gr.Column(scale=1, min_width=300):
            why = _page.block("", elem_id="kd-why")
    stop = None
    if lesson.long:  # near the picture, over which the run says how far it is
        stop = gr.Button(
            t("en", "common.stop"), size="sm", variant="stop", elem_id="kd-stop", scale=0
        )
    bar = _page.step_bar("")
    legend = _page.block(legend_text, elem_id="kd-legend", visible=bool(legend_text))
    files = [_file.layout(c) for c in lesson.uploads]
    with gr.Row(equal_height=True, visible=bool(lesson.row)):
        row = [
            c.component(lesson.slug, bool(lesson.presets) and c.key == lesson.preset)
            if isinstance(c, Choice)
            else c.component(lesson.slug)
            for c in lesson.row
        ]
    broken = [c.component(lesson.slug) for c in lesson.broken]
    texts, run = [], None
    if lesson.texts:
        with gr.Row():
            texts = [c.component(lesson.slug) for c in lesson.texts]
        run = gr.Button(t("en", "common.run"), variant="primary", elem_id="kd-run", scale=0)
    texts += [c.component(lesson.slug) for c in lesson.uploads]
    plots = [gr.Plot(show_label=False, elem_id=f"kd-plot-{i}") for i in range(lesson.figures)]
    note = _page.block(about)
    folds: dict[str, gr.Accordion] = {}
    boxes: dict[str, gr.HTML] = {}
    inside = {"table": "", "log": "", "terms": terms, "code": code, "study": study,
              "next": after, "zoom": _note(t("en", "common.pick"))}  # fmt: skip
    request = None
    for name in _FOLDS:
        with gr.Accordion(
            t("en", f"common.fold-{name}"), open=name == "next", visible=name in names,
            elem_id=f"kd-fold-{name}",
        ) as fold:  # fmt: skip
            if name == "log":
                choices = [(t("en", "common.everyone"), "")]
                request = gr.Dropdown(
                    choices, value="", label=t("en", "common.show"), min_width=160, scale=0
                )
            zoom = name == "zoom"
            boxes[name] = (
                _page.picture(inside[name], "kd-zoom") if zoom else _page.block(inside[name])
            )
        if name in names:
            folds[name] = fold
    assert request is not None
    with gr.Row():
        copy = gr.Button(t("en", "common.copy"), size="sm", elem_id="kd-copy", scale=0)
        save = gr.Button(t("en", "common.save"), size="sm", elem_id="kd-save", scale=0)
        draws = [
            gr.Button(
                _draw_label(what, kind, "en"), size="sm", elem_id=f"kd-{what}-{kind}", scale=0
            )
            for what, kind in drawings(lesson)
        ]
    words = [note, boxes["terms"], boxes["code"], boxes["study"], boxes["next"], legend]
    return Parts(
        settings, step, language, nav, chooser, heading, picture, why, bar,
        [*row, *broken, *texts], run, files, stop, plots, folds, boxes["table"], boxes["zoom"],
        request, boxes["log"], words, save, draws, copy, gr.Textbox(visible="hidden"), drawn_box(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Mark:
    """A step on the bar."""

    sentence: str
    tone: str
