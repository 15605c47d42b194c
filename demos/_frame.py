"""A lesson as a page: its components, and the events between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from demos import _file, _opening, _page, _work
from demos._blocks import App
from demos._controls import Number, Settings
from demos._layout import (
    Parts,
    controls_at,
    drawings,
    frame_at,
    labels,
    layout,
    ordered,
    presets_at,
    whole_run,
)
from demos._lesson import (
    Lesson,
    can_follow,
    guard,
    joined,
    numbers_of,
    opened,
    page_query,
)
from demos._nav import Listed
from demos._text import language_of, t
from kdalab.words import LANGUAGES

# A step must answer at once: no queue and no veil over the picture. A run may take its turn.
_STEP: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
_RUN: dict[str, Any] = {
    "show_progress": "minimal",
    "api_visibility": "private",
    "concurrency_limit": 2,
    "concurrency_id": "play",
    "trigger_mode": "always_last",
}


def build(lesson: Lesson, pages: Sequence[Listed], page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the lesson into ``page`` (inside its route), or into a Blocks of its own."""
    if page is None:
        title = f"KDALab: {lesson.title('en')}"
        with App(title=title, fill_width=True, delete_cache=_page.DELETE_FILES) as own:
            return build(lesson, pages, own)
    parts = layout(lesson, pages)
    _wire_steps(lesson, parts)
    _wire_runs(lesson, pages, parts, page)

    def opening() -> Any:
        return whole_run(lesson, lesson.default, None, ("en", ""))

    _opening.later(page, lesson.slug, opening, parts.shown, parts.drawn)
    numbers = numbers_of(lesson)
    line = lesson.slug if lesson.long else "play"
    gr.api(numbers, api_name=lesson.slug, concurrency_id=line, concurrency_limit=2)
    for control in lesson.uploads:
        _file.add_endpoint(lesson, control, numbers)
    return page


def _wire_steps(lesson: Lesson, parts: Parts) -> None:
    """First, back, forward, last, the slider, the clock; the log's filter; link and download."""
    bar = parts.bar

    def step_to(target: Callable[[int, int], int]) -> Callable[..., Any]:
        def handler(now: Settings, at: int, lang: tuple[str, str], only: str) -> Any:
            return frame_at(lesson, now, target(at, lesson.play(now).last), lang, only)

        return handler

    for button, target in (
        (bar.first, lambda at, last: 0),
        (bar.back, lambda at, last: at - 1),
        (bar.forward, lambda at, last: at + 1),
        (bar.last, lambda at, last: last),
    ):
        button.click(step_to(target), parts.where, parts.frame, **_STEP)

    def slide(now: Settings, lang: tuple[str, str], only: str, event: gr.EventData) -> Any:
        return frame_at(lesson, now, event.step, lang, only)

    inputs = [parts.settings, parts.lang, parts.request]
    bar.bar.release(slide, inputs, parts.frame, trigger_mode="always_last", **_STEP)

    def toggle(label: str, now: Settings, at: int, lang: tuple[str, str], only: str) -> Any:
        starts = label.startswith(_page.PLAY_SIGN)
        again = starts and at >= lesson.play(now).last  # at the end, play starts over
        shown = frame_at(lesson, now, 0, lang, only) if again else (gr.skip(),) * len(parts.frame)
        return gr.Timer(active=starts), _playlabels(lang[0], playing=starts), *shown

    def tick(now: Settings, at: int, lang: tuple[str, str], only: str) -> Any:
        shown = frame_at(lesson, now, at + 1, lang, only)
        if shown[0] < lesson.play(now).last:
            return gr.skip(), gr.skip(), *shown
        return gr.Timer(active=False), _playlabels(lang[0], playing=False), *shown

    playing = [bar.clock, bar.play, *parts.frame]
    bar.play.click(toggle, [bar.play, *parts.where], playing, **_STEP)
    bar.clock.tick(tick, parts.where, playing, **_STEP)

    def filtered(now: Settings, at: int, lang: tuple[str, str], only: str) -> str:
        return frame_at(lesson, now, at, lang, only)[-1]

    parts.request.input(filtered, parts.where, parts.log, **_STEP)

    def pick(now: Settings, at: int, lang: tuple[str, str], event: gr.EventData) -> Any:
        seen = guard(lesson.play(now).pick, at, str(event.pick)[:80], lang[0], lang=lang[0])
        if seen is None:
            return gr.skip(), gr.skip()
        label = f"{t(lang[0], 'common.fold-zoom')}: {seen.title}"
        return gr.Accordion(label=label, open=True), seen.html

    where = [parts.settings, parts.step, parts.lang]
    for picked in (parts.picture, parts.zoom):  # what is zoomed into may offer more
        picked.select(pick, where, [parts.folds["zoom"], parts.zoom], **_STEP)

    def as_json(now: Settings) -> str:
        film = lesson.play(now)
        whole = {"page": lesson.slug, "settings": now.as_dict(), "data": film.data()}
        return json.dumps(whole, indent=1)

    for (what, kind), button in zip(drawings(lesson), parts.draws, strict=True):
        js = _page.save_picture_js(what, kind)
        button.click(None, None, None, js=js, api_visibility="private")
    parts.copy.click(None, None, None, js=_page.COPY_LINK_JS, api_visibility="private")
    parts.save.click(as_json, parts.settings, parts.blob, **_STEP).then(
        None, parts.blob, None, js=_page.DOWNLOAD_JS, api_visibility="private"
    )


def _playlabels(lang: str, *, playing: bool) -> str:
    return t(lang, "common.pause") if playing else _page.PLAY_SIGN + t(lang, "common.play")


def _long(lesson: Lesson, parts: Parts) -> dict[str, Any]:
    """Options of a run that may take many seconds: it says how far it is, over the picture, shows
    the button that stops it, and keeps no other page waiting."""
    return {
        "show_progress": "full",
        "show_progress_on": parts.picture,
        "concurrency_id": lesson.slug,
        "js": _page.BUSY_JS,
    }


def _wire_runs(lesson: Lesson, pages: Sequence[Listed], parts: Parts, page: gr.Blocks) -> None:
    """A new run: from the controls, from a preset, from a link; and another language."""
    order = ordered(lesson)
    options = {**_RUN, **(_long(lesson, parts) if lesson.long else {})}

    def run(http: gr.Request, progress: Any = gr.Progress(), lang: Any = None, *values: Any) -> Any:
        given = {c.key: v for c, v in zip(order, values, strict=True)}
        settings = guard(lesson.settings, given, lang=lang[0])
        work = _work.Work(lang[0], _file.teller(progress))
        try:
            with _work.working(str(http.session_hash), work):
                guard(lesson.play, settings, lang=lang[0])
        except _work.StoppedError:
            if work.by_reader:  # the controls, and a file's note, are ahead of what is shown
                gr.Info(t(lang[0], "common.stopped"), title="")
            return (gr.skip(),) * len(ran)
        return *presets_at(lesson, settings, lang[0]), *whole_run(lesson, settings, None, lang)

    def back(now: Settings, lang: tuple[str, str], *values: Any) -> list[Any]:
        """A number that cannot be goes back to what is shown; the rest stays as it was chosen. By
        now the browser has put the nearest limit into its box."""
        shown = controls_at(lesson, now, lang[0])

        def stays(control: Any, value: Any) -> bool:
            limits = (control.low, control.high) if isinstance(control, Number) else ()
            return value not in (None, *limits) or value == now[control.key]

        return [
            gr.skip() if stays(control, value) else update
            for control, value, update in zip(order, values, shown, strict=True)
        ]

    def idle(event: Any) -> None:
        if lesson.long:
            event.then(None, None, None, js=_page.IDLE_JS, api_visibility="private")

    def choose(lang: tuple[str, str], chosen: str, *values: Any) -> Any:
        given = {c.key: v for c, v in zip(order, values, strict=True)}
        settings = guard(lesson.chosen, chosen, given, lang=lang[0])
        guard(lesson.play, settings, lang=lang[0])
        updates = controls_at(lesson, settings, lang[0])
        return *updates, *whole_run(lesson, settings, None, lang)

    inputs = [parts.lang, *parts.controls]
    everything = [*parts.controls, *parts.shown]
    pairs = list(zip(order, parts.controls, strict=True))
    ran = [box for c, box in pairs if lesson.presets and c.key == lesson.preset] + parts.shown
    for control, component in pairs:
        if control.key == lesson.preset and lesson.presets:
            asked = [parts.lang, component, *parts.controls]
            component.input(choose, asked, everything, **_RUN)
        elif control in lesson.texts or control in lesson.uploads:
            continue
        else:
            event = component.release if isinstance(component, gr.Slider) else component.input
            started = event(run, inputs, ran, **options)
            started.failure(back, [parts.settings, *inputs], parts.controls, **_STEP)
            idle(started)
    for file in parts.files:
        _file.wire(
            lesson, file, order, parts.controls, parts.lang, options, page,
            lambda event: idle(event.success(run, inputs, ran, **options)), idle,
        )  # fmt: skip
    if parts.run is not None:
        idle(parts.run.click(run, inputs, ran, **options))
    if parts.stop is not None:

        def halt(http: gr.Request) -> None:
            _work.stop(str(http.session_hash))

        parts.stop.click(halt, None, None, **_STEP)

    def worded(now: Settings, lang: tuple[str, str]) -> tuple[Any, ...]:
        return labels(lesson, pages, now, lang, parts.files)

    def speak(chosen: str, now: Settings, at: int) -> Any:
        lang = (chosen if chosen in LANGUAGES else "en",) * 2
        return *worded(now, lang), *whole_run(lesson, now, at, lang)

    spoken = [*parts.labelled, *parts.shown]
    where = [parts.language, parts.settings, parts.step]
    parts.language.input(speak, where, spoken, **_STEP)

    lists = [c.key for c in lesson.broken]

    # In two events, and only the second, which a plain address never raises, writes into the
    # controls: even a skipped output would put back the old text of a box that a reader had begun
    # to type into while the page was loading.
    def look(drawn: str, http: gr.Request) -> Any:
        query = page_query(joined(http.query_params.multi_items(), lists))
        lang = language_of(http)
        follows = lang != "en" or bool(query)
        link = (query, lang) if follows else gr.skip()
        if drawn == _opening.DRAWN or (follows and can_follow(lesson, query)):
            return link, *(gr.skip(),) * len(parts.shown)
        return link, *whole_run(lesson, lesson.default, None, ("en", ""))

    def follow(link: tuple[dict[str, str], str] | None) -> Any:
        if link is None:
            return (gr.skip(),) * len(spoken)
        query, code = link
        settings, step = guard(opened, lesson, query, lang=code)
        lang = (code, code if query.get("lang") in LANGUAGES else "")
        return *worded(settings, lang), *whole_run(lesson, settings, step, lang)

    def refused(link: tuple[dict[str, str], str]) -> Any:
        """The page's own run, in the reader's language."""
        query, code = link
        lang = (code, code if query.get("lang") in LANGUAGES else "")
        shown = whole_run(lesson, lesson.default, None, lang)
        return *worded(lesson.default, lang), *shown

    link = gr.State(None)
    page.load(
        look, parts.drawn, [link, *parts.shown], show_progress="hidden", api_visibility="private"
    )
    followed = link.change(follow, link, spoken, show_progress="hidden", api_visibility="private")
    # What is asked for stands there, or its refusal: no need to hide anything.
    followed.then(None, None, None, js=_page.SHOWN_JS, api_visibility="private")
    # A link that was refused does not stay in the address of what is shown instead.
    followed.failure(None, None, None, js=_page.FORGET_LINK_JS, api_visibility="private")
    followed.failure(refused, link, spoken, **_STEP)
