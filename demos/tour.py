"""**Five-minute tour**: predict what the engine does, and let its run answer.

``python -m demos.tour`` opens this page alone.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from demos import _look, _page
from demos import _tour_parts as show
from demos._blocks import App
from demos._lesson import guard, joined, page_query
from demos._nav import nav_html
from demos._text import language_of, t
from demos._tour_parts import Place, read_place
from demos._tour_stops import STOPS, told
from kdalab.words import LANGUAGES

SLUG = "tour"
GROUP = "tour"

_QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    from demos._pages import listed  # it imports this module

    if page is None:
        with App(title=f"KDALab: {t('en', 'tour.title')}", fill_width=True) as own:
            return build(own)
    pages, start, lang = listed(), Place(), ("en", "")
    place, spoken = gr.State(start), gr.State(lang)
    with gr.Row(elem_classes="kd-top"):
        nav = _page.nav(nav_html(pages, SLUG, *lang))
        chooser = gr.Dropdown(
            [(name, code) for code, name in LANGUAGES.items()],
            value="en",
            label=t("en", "common.language"),
            elem_id="kd-language",
            container=False,
            min_width=110,
            scale=0,
        )
    heading = _page.block(show.heading("en"))
    # One for each language: Gradio draws the label of a step once, and keeps it.
    walks = [_walkthrough(code) for code in LANGUAGES]
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            question = _page.block(show.question_html(start, "en"), elem_id="kd-question")
            radio = gr.Radio(
                show.choices(start, "en"), label=t("en", "tour.predict"), elem_id="kd-options"
            )
            check = gr.Button(t("en", "tour.check"), variant="primary", elem_id="kd-check")
            verdict = _page.block(show.verdict_html(start, "en", ""), elem_id="kd-why")
            with gr.Row(elem_classes="kd-step-buttons"):
                back = gr.Button(t("en", "tour.back"), size="sm", elem_id="kd-back")
                forward = gr.Button(t("en", "tour.next"), size="sm", elem_id="kd-forward")
                again = gr.Button(t("en", "tour.again"), size="sm", elem_id="kd-again")
        with gr.Column(scale=3, min_width=320):
            picture = _page.picture(show.picture_html(start, "en"))
            after = _page.block("", elem_id="kd-next")
    # It carries the address, as the step bar of other pages does.
    bar = _page.block(
        show.address_html(start, ""), js_on_load=_look.static("stepbar.js"), elem_id="kd-stepbar"
    )

    frame = [
        place, *walks, question, radio, check, verdict, after, picture, bar, back, forward,
    ]  # fmt: skip
    labelled = [spoken, nav, chooser, heading, again]

    def shown(now: Place, said: tuple[str, str]) -> tuple[Any, ...]:
        return _frame(now, said, pages)

    def labels(said: tuple[str, str]) -> tuple[Any, ...]:
        code, chosen = said
        return (
            said,
            nav_html(pages, SLUG, code, chosen),
            gr.Dropdown(value=code, label=t(code, "common.language")),
            show.heading(code),
            t(code, "tour.again"),
        )

    where = [place, spoken]
    back.click(lambda now, said: shown(now.moved(now.at - 1), said), where, frame, **_QUIET)
    forward.click(lambda now, said: shown(now.moved(now.at + 1), said), where, frame, **_QUIET)
    again.click(lambda said: shown(Place(), said), spoken, frame, **_QUIET)

    def answer(now: Place, said: tuple[str, str], option: str | None) -> tuple[Any, ...]:
        if option is not None:
            return shown(guard(now.answered, option, lang=said[0]), said)
        asking = list(shown(now, said))
        if now.answer is None and not now.done:
            asking[frame.index(verdict)] = show.choose_first_html(said[0])
        return tuple(asking)

    check.click(answer, [place, spoken, radio], frame, **_QUIET)

    def go(now: Place, said: tuple[str, str], event: gr.SelectData) -> tuple[Any, ...]:
        at = event.index if isinstance(event.index, int) else now.at
        return shown(now.moved(at), said)

    for walk in walks:
        walk.select(go, where, frame, **_QUIET)

    def speak(code: str, now: Place) -> tuple[Any, ...]:
        said = (code if code in LANGUAGES else "en",) * 2
        return *labels(said), *shown(now, said)

    chooser.input(speak, [chooser, place], [*labelled, *frame], **_QUIET)

    def look(http: gr.Request) -> Any:
        query, code = page_query(joined(http.query_params.multi_items())), language_of(http)
        if code == "en" and not query:
            return (gr.skip(),) * (len(labelled) + len(frame))
        said = (code, code if query.get("lang") in LANGUAGES else "")
        return *labels(said), *shown(guard(read_place, query, lang=code), said)

    def begin(http: gr.Request) -> Any:
        """The tour's beginning, in the language that the link asked for."""
        query, code = page_query(joined(http.query_params.multi_items())), language_of(http)
        said = (code, code if query.get("lang") in LANGUAGES else "")
        return *labels(said), *shown(Place(), said)

    # In the queue, so that what is wrong with a link becomes a message on the page.
    seen = page.load(
        look, None, [*labelled, *frame], show_progress="hidden", api_visibility="private"
    )
    seen.then(None, None, None, js=_page.SHOWN_JS, api_visibility="private")
    seen.failure(None, None, None, js=_page.FORGET_LINK_JS, api_visibility="private")
    seen.failure(begin, None, [*labelled, *frame], **_QUIET)
    gr.api(questions, api_name=SLUG)
    return page


def questions(lang: str = "en") -> list[dict[str, Any]]:
    """Every question of the tour, its options, the right one, and the numbers of the run."""
    if not isinstance(lang, str) or lang not in LANGUAGES:
        raise gr.Error(f"lang: use one of {', '.join(LANGUAGES)}", print_exception=False)
    return [
        {
            "name": x.stop.name,
            "doubt": show.say(lang, x, "doubt"),
            "ask": show.say(lang, x, "ask"),
            "options": {option: show.say(lang, x, option) for option in x.stop.options},
            "right": x.right,
            "told": show.say(lang, x, "told"),
            "why": show.say(lang, x, "why"),
            "link": x.link(x.after, ""),
            "values": x.values,
        }
        for x in told()
    ]


def _walkthrough(lang: str) -> gr.Walkthrough:
    """The way from stop to stop, in one language; the reader's own is the one to be seen."""
    names = [*(t(lang, f"tour.{s.name}-short") for s in STOPS), t(lang, "tour.finish")]
    with gr.Walkthrough(selected=0, visible=lang == "en", elem_id=f"kd-tour-{lang}") as walk:
        for number, name in enumerate(names):
            gr.Step(name, id=number)
    return walk


def _frame(now: Place, said: tuple[str, str], pages: Any) -> tuple[Any, ...]:
    """Everything that changes with the place and the answers."""
    code, chosen = said
    open_ = not now.done and now.answer is None
    return (
        now,
        *(gr.Walkthrough(selected=now.at, visible=lang == code) for lang in LANGUAGES),
        show.question_html(now, code, chosen),
        gr.Radio(
            show.choices(now, code),
            value=now.answer,
            label=t(code, "tour.predict"),
            interactive=open_,
            visible=not now.done,
        ),
        gr.Button(t(code, "tour.check"), visible=open_),
        show.verdict_html(now, code, chosen),
        show.next_html(now, pages, code, chosen),
        gr.HTML(show.picture_html(now, code), visible=not now.done),
        show.address_html(now, chosen),
        gr.Button(t(code, "tour.back"), interactive=now.at > 0),
        gr.Button(
            t(code, "tour.next"),
            interactive=not now.done,
            variant="secondary" if open_ else "primary",
        ),
    )


if __name__ == "__main__":
    _page.launch_alone(build())
