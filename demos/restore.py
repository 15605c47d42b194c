"""**Restore, step by step**: a known text is not a restorable state.

``python -m demos.restore`` opens this page alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from demos import _page
from demos import _restore_draw as draw
from demos import _restore_run as page_run
from demos import _restore_settings as rs
from demos._nav import nav_html
from demos._restore_reading import CODE, FAULTS, TERMS
from demos._restore_run import guard
from demos._restore_settings import Settings
from kdalab.lessons import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS, MIN_NEW_TOKENS, RESTORE, scenario
from kdalab.viz.legend import legend_html

TITLE = "Restore, step by step"
SLUG = "restore"
GROUP = "prefix"
QUESTION = "The prompt is known. Why can it not simply be continued?"
SENTENCE = (
    "Attention reads every cached token back, so any known prefix will do. A recurrent state is "
    "one summary of everything before it, and exists only where somebody kept a copy."
)

_ZOOM = "Zoom: pick a node or a slot in the picture"
_LINK_KEYS = ("scenario", "spacing", "tokens", "fault", "a", "b", "c", "step")

# A step must answer at once: no queue and no veil over the picture. A run may take its turn.
_STEP: dict[str, Any] = {
    "queue": False,
    "show_progress": "hidden",
    "api_visibility": "private",
}
_RUN: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_limit": 2,
    "concurrency_id": "play",
    "trigger_mode": "always_last",
}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The page's components, by what they do together."""

    settings: gr.State
    step: gr.State
    slot: gr.State
    lead: gr.HTML
    picture: gr.HTML
    why: gr.HTML
    bar: _page.StepBar
    name: gr.Dropdown
    spacing: gr.Dropdown
    tokens: gr.Slider
    faults: gr.CheckboxGroup
    boxes: list[gr.Textbox]
    size: gr.HTML
    go: gr.Button
    zoom: gr.Accordion
    layer: gr.Slider
    head: gr.Slider
    facts: gr.HTML
    matrix: gr.HTML
    table: gr.HTML
    request: gr.Dropdown
    log: gr.HTML

    @property
    def frame(self) -> list[Any]:
        """Outputs of ``page_run.frame``."""
        return [self.step, self.picture, self.why, self.bar.bar, self.table, self.log]

    @property
    def where(self) -> list[Any]:
        """Inputs of every step."""
        return [self.settings, self.step, self.request]

    @property
    def controls(self) -> list[Any]:
        """Inputs of every run, outputs of ``page_run.control_values``."""
        return [self.name, *self.boxes, self.spacing, self.tokens, self.faults]

    @property
    def whole(self) -> list[Any]:
        """Outputs of ``_show``."""
        return [
            self.settings, self.lead, self.size, self.request, self.zoom, self.facts,
            self.matrix, self.slot, *self.frame,
        ]  # fmt: skip


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page`` (inside its route), or into a Blocks of its own."""
    if page is None:
        with gr.Blocks(title=f"KDALab: {TITLE}", fill_width=True) as own:
            return build(own)
    parts = _layout()
    _wire_steps(parts)
    _wire_runs(parts, page)
    _wire_zoom(parts)
    gr.api(page_run.numbers, api_name="restore", concurrency_id="play", concurrency_limit=2)
    return page


def _layout() -> _Parts:
    """Every component, with a finished run already drawn."""
    preset = scenario(rs.DEFAULT_SCENARIO)
    default = rs.checked(preset.name)
    run = rs.recording(default)
    at = rs.opening_step(run, default)
    _, picture_html, why_html, bar_html, tables, log = page_run.frame(default, at, draw.ALL)

    settings, step, slot = gr.State(default), gr.State(at), gr.State(None)
    from demos._pages import listed  # it imports this module

    _page.block(nav_html(listed(), SLUG, "en", ""))
    _page.block(_page.heading_html(QUESTION, SENTENCE))
    lead = _page.block(page_run.lead_html(default))
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            picture = _page.picture(picture_html)
        with gr.Column(scale=1, min_width=300):
            why = _page.block(why_html, elem_id="kd-why")
    bar = _page.step_bar(bar_html)
    _page.block(legend_html(), elem_id="kd-legend")
    with gr.Row(equal_height=True):
        name = gr.Dropdown(
            [(s.title, s.name) for s in RESTORE.values()],
            value=preset.name,
            label="Example",
            min_width=200,
            elem_id="kd-example",
        )
        spacing = gr.Dropdown(
            [(f"{s} tokens", s) for s in rs.SPACINGS],
            value=preset.spacing,
            label="A checkpoint every",
            min_width=140,
        )
        tokens = gr.Slider(
            MIN_NEW_TOKENS,
            MAX_NEW_TOKENS,
            rs.DEFAULT_NEW_TOKENS,
            step=1,
            label="Generated tokens",
            min_width=180,
            buttons=[],
        )
        faults = gr.CheckboxGroup(
            FAULTS, label="What breaks if ...", elem_id="kd-faults", min_width=300
        )
    with gr.Accordion("The prompts (type your own)", open=False):
        with gr.Row():
            boxes = _boxes([p.text for p in preset.prompts])
        size = _page.block(draw.bytes_html(run))
        go = gr.Button("Run these prompts", variant="primary", elem_id="kd-run", scale=0)
    with gr.Accordion(_ZOOM, open=False) as zoom:
        layers, heads = run.states[0].values.shape[:2]
        with gr.Row():
            layer = gr.Slider(0, layers - 1, 0, step=1, label="KDA layer", buttons=[])
            head = gr.Slider(0, heads - 1, 0, step=1, label="Value head", buttons=[])
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                facts = _page.block("")
            with gr.Column(scale=2, min_width=320):
                matrix = _page.block(draw.matrix_html(run, at, None, 0, 0), elem_id="kd-matrix")
    with gr.Accordion("The same numbers as a table", open=False):
        table = _page.block(tables)
    with gr.Accordion("Event log", open=False):
        request = gr.Dropdown(
            [draw.ALL, *run.texts], value=draw.ALL, label="Show", min_width=160, scale=0
        )
        shown_log = _page.block(log)
    with gr.Accordion("What SGLang and vLLM call this", open=False):
        _page.block(_page.terms_html(TERMS))
    with gr.Accordion("The code of this mechanism", open=False):
        _page.block(_page.code_html(CODE))
    with gr.Accordion("Notebook and exercise", open=False):
        _page.block(_page.notebook_html("restore"))
    return _Parts(
        settings, step, slot, lead, picture, why, bar, name, spacing, tokens, faults, boxes, size,
        go, zoom, layer, head, facts, matrix, table, request, shown_log,
    )  # fmt: skip


def _boxes(texts: list[str]) -> list[gr.Textbox]:
    labels = ("A, the first", "B, the second", "C, the third (may be empty)")
    return [
        gr.Textbox(
            texts[i] if i < len(texts) else "",
            label=label,
            lines=5,
            max_lines=12,
            max_length=MAX_PROMPT_TOKENS,
            min_width=260,
            elem_id=f"kd-prompt-{'abc'[i]}",
        )
        for i, label in enumerate(labels)
    ]


def _wire_steps(parts: _Parts) -> None:
    """First, back, forward, last, the slider, the clock; the log's filter; link and download."""
    bar = parts.bar

    def step_to(target: Callable[[int, int], int]) -> Callable[..., Any]:
        def handler(now: Settings, at: int, only: str) -> tuple[Any, ...]:
            return page_run.frame(now, target(at, page_run.last_step(now)), only)

        return handler

    for button, target in (
        (bar.first, lambda at, last: 0),
        (bar.back, lambda at, last: at - 1),
        (bar.forward, lambda at, last: at + 1),
        (bar.last, lambda at, last: last),
    ):
        button.click(step_to(target), parts.where, parts.frame, **_STEP)

    def slide(now: Settings, only: str, event: gr.EventData) -> tuple[Any, ...]:
        return page_run.frame(now, event.step if isinstance(event.step, int) else 0, only)

    slider_inputs = [parts.settings, parts.request]
    bar.bar.release(slide, slider_inputs, parts.frame, trigger_mode="always_last", **_STEP)

    def toggle(label: str, now: Settings, at: int, only: str) -> tuple[Any, ...]:
        starts = label == _page.PLAY
        again = starts and at >= page_run.last_step(now)  # at the end, play starts over
        shown = page_run.frame(now, 0, only) if again else (gr.skip(),) * len(parts.frame)
        return gr.Timer(active=starts), _page.PAUSE if starts else _page.PLAY, *shown

    def tick(now: Settings, at: int, only: str) -> tuple[Any, ...]:
        shown = page_run.frame(now, at + 1, only)
        if shown[0] < page_run.last_step(now):
            return gr.skip(), gr.skip(), *shown
        return gr.Timer(active=False), _page.PLAY, *shown

    playing = [bar.clock, bar.play, *parts.frame]
    bar.play.click(toggle, [bar.play, *parts.where], playing, **_STEP)
    bar.clock.tick(tick, parts.where, playing, **_STEP)

    def filtered(now: Settings, at: int, only: str) -> str:
        return page_run.frame(now, at, only)[-1]

    parts.request.input(filtered, parts.where, parts.log, **_STEP)

    def log_json(now: Settings) -> str:
        return json.dumps(draw.events_of(rs.recording(now)), indent=1)

    with gr.Row():
        copy = gr.Button("Copy link to this step", size="sm", elem_id="kd-copy", scale=0)
        save = gr.Button("Download events (JSON)", size="sm", elem_id="kd-save", scale=0)
    blob = gr.Textbox(visible="hidden")
    copy.click(None, None, None, js=_page.COPY_LINK_JS, api_visibility="private")
    save.click(log_json, parts.settings, blob, **_STEP).then(
        None, blob, None, js=_page.DOWNLOAD_JS, api_visibility="private"
    )


def _show(now: Settings, at: int) -> tuple[Any, ...]:
    """A whole new run on the page, at step ``at``, with nothing picked."""
    run = rs.recording(now)
    return (
        now,
        page_run.lead_html(now),
        draw.bytes_html(run),
        gr.Dropdown([draw.ALL, *run.texts], value=draw.ALL),
        gr.Accordion(_ZOOM, open=False),
        "",
        draw.matrix_html(run, at, None, 0, 0),
        None,
        *page_run.frame(now, at, draw.ALL),
    )


def _wire_runs(parts: _Parts, page: gr.Blocks) -> None:
    """A new run: from the controls, from an example, from a link."""

    def run(*values: Any) -> tuple[Any, ...]:
        return _show(*guard(page_run.run_controls, *values))

    parts.go.click(run, parts.controls, parts.whole, **_RUN)
    parts.spacing.input(run, parts.controls, parts.whole, **_RUN)
    parts.tokens.release(run, parts.controls, parts.whole, **_RUN)
    parts.faults.input(run, parts.controls, parts.whole, **_RUN)

    def choose(chosen: str, count: int, broken: list[str]) -> tuple[Any, ...]:
        now, at = guard(page_run.run_controls, chosen, "", "", "", None, count, broken)
        return *page_run.control_values(now), *_show(now, at)

    everything = [*parts.controls, *parts.whole]
    parts.name.input(choose, [parts.name, parts.tokens, parts.faults], everything, **_RUN)

    # In two events, and only the second, which a plain address never raises, writes into the
    # controls: even a skipped output would put back the old text of a box that a reader had begun
    # to type into while the page was loading.
    def read_link(http: gr.Request) -> Any:
        query = http.query_params
        if not any(key in query for key in _LINK_KEYS):
            return gr.skip()
        return dict(query), [value for key, value in query.multi_items() if key == "fault"]

    def open_link(link: tuple[dict[str, str], list[str]]) -> tuple[Any, ...]:
        now, at = guard(page_run.run_link, *link)
        return *page_run.control_values(now), *_show(now, at)

    link = gr.State(None)
    page.load(read_link, None, link, show_progress="hidden", api_visibility="private")
    link.change(open_link, link, everything, show_progress="hidden", api_visibility="private")


def _wire_zoom(parts: _Parts) -> None:
    """A picked node or slot, and one matrix of its state."""

    def pick(now: Settings, at: int, layer: int, head: int, event: gr.EventData) -> tuple[Any, ...]:
        run = rs.recording(now)
        seen = guard(draw.zoom, run, at, event.pick)
        matrix = draw.matrix_html(run, at, seen.slot, layer, head)
        return gr.Accordion(seen.title, open=True), seen.html, matrix, seen.slot

    inputs = [parts.settings, parts.step, parts.layer, parts.head]
    outputs = [parts.zoom, parts.facts, parts.matrix, parts.slot]
    parts.picture.select(pick, inputs, outputs, **_STEP)

    def look(now: Settings, at: int, slot: int | None, layer: int, head: int) -> str:
        return draw.matrix_html(rs.recording(now), at, slot, layer, head)

    again = [parts.settings, parts.step, parts.slot, parts.layer, parts.head]
    for slider in (parts.layer, parts.head):
        slider.release(look, again, parts.matrix, **_STEP)


if __name__ == "__main__":
    _page.launch_alone(build())
