"""The common frame of a page: title, step bar, folded sections, and how it is launched."""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from demos import _look
from demos._text import t
from kdalab.resources import resource_dir
from kdalab.viz.svg import esc

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

_GLYPHS = {"restore": "R", "copy": "C", "snapshot": "S", "evict": "×", "finish": "■"}

PLAY_SIGN = "▶ "
PLAY, PAUSE = PLAY_SIGN + "Play", "Pause"

BUSY_JS = _look.static("busy.js")
IDLE_JS = _look.static("idle.js")
COPY_LINK_JS = _look.static("copy_link.js")
DOWNLOAD_JS = _look.static("download.js")
FORGET_LINK_JS = _look.static("forget_link.js")
SHOWN_JS = _look.static("shown.js")


def save_picture_js(what: str, kind: str) -> str:
    """Saves ``what`` ("picture" or "charts") as it stands on the page, as "svg" or "png"."""
    return f"() => ({_look.static('save_picture.js').rstrip()})('{what}', '{kind}')"


@dataclass(frozen=True, slots=True)
class StepBar:
    """The row of buttons, the slider with its marks, and the clock that plays."""

    row: gr.Row
    first: gr.Button
    back: gr.Button
    play: gr.Button
    forward: gr.Button
    last: gr.Button
    bar: gr.HTML
    clock: gr.Timer


def heading_html(question: str, sentence: str) -> str:
    """The question as the page's title, and one sentence that anyone can follow."""
    return f'<div class="kd-page"><h1>{esc(question)}</h1><p class="lead">{esc(sentence)}</p></div>'


def block(value: str, **options: Any) -> gr.HTML:
    """Our own HTML, without Gradio's typography on top of it."""
    return gr.HTML(value, apply_default_css=False, **options)


def nav(value: str) -> gr.HTML:
    """The way from page to page; on a narrow screen a line that starts at the page's own group."""
    return block(value, js_on_load=_look.static("nav.js"), elem_classes="kd-nav-box")


def picture(value: str, elem_id: str = "kd-picture") -> gr.HTML:
    """A picture whose nodes and slots can be picked: ``.select`` gets ``evt.pick``."""
    script = "".join(_look.static(name) for name in ("pick.js", "scroll.js", "copy_code.js"))
    return block(value, js_on_load=script, elem_id=elem_id)


def step_bar(value: str, visible: bool = True) -> StepBar:
    """First, back, play, forward, last; the slider under them."""
    with gr.Row(elem_classes="kd-step-buttons", visible=visible) as row:
        first = gr.Button("« First", size="sm", elem_id="kd-first")
        back = gr.Button("‹ Back", size="sm", elem_id="kd-back")
        play = gr.Button(PLAY, size="sm", elem_id="kd-play")
        forward = gr.Button("Next ›", size="sm", variant="primary", elem_id="kd-forward")
        last = gr.Button("Last »", size="sm", elem_id="kd-last")
    bar = block(value, js_on_load=_look.static("stepbar.js"), elem_id="kd-stepbar")
    # Without steps the bar still carries the address, in its data-query.
    return StepBar(row, first, back, play, forward, last, bar, gr.Timer(1.4, active=False))


class Marked(Protocol):
    """A step as the bar shows it."""

    @property
    def sentence(self) -> str: ...
    @property
    def tone(self) -> str: ...


def step_bar_html(
    steps: Sequence[Marked], step: int, query: str, count: str = "", lang: str = "en"
) -> str:
    """Slider, marks, what the marks mean, and the current sentence. ``query`` is the page's own
    address, ``count`` says which step this is."""
    count = count or f"step {step + 1} of {len(steps)}"
    if len(steps) == 1:  # nothing to step through: only the address, for links
        return f'<div class="kd-bar" data-query="{esc(query)}"></div>'
    last = max(1, len(steps) - 1)
    marks = []
    for index, item in enumerate(steps):
        glyph = _GLYPHS.get(item.tone, "")
        kind = item.tone if glyph else "plain"
        what = f"{t(lang, 'common.step', step=index + 1, last=len(steps))}: {item.sentence}"
        name = f"{t(lang, f'common.mark-{kind}')} · {what}" if glyph else what
        marks.append(
            f'<button type="button" tabindex="-1" data-step="{index}" '
            f'class="{kind}{" here" if index == step else ""}" '
            f'style="left:{100 * index / last:.2f}%" title="{esc(name)}" '
            f'aria-label="{esc(name)}">{glyph}</button>'
        )
    dense = " dense" if len(steps) > 40 else ""
    many = f" many{dense}" if len(steps) > 14 else ""  # a narrow screen gives them several lines
    return (
        f'<div class="kd-bar" data-query="{esc(query)}">'
        f'<input type="range" min="0" max="{len(steps) - 1}" value="{step}" step="1" '
        f'aria-label="Step" aria-valuetext="{esc(steps[step].sentence)}">'
        f'<div class="kd-marks{many}">{"".join(marks)}</div>{_marks_legend(steps, lang)}'
        f'<div class="kd-sentence" aria-live="polite"><span class="count">'
        f"{esc(count)}</span><span>{esc(steps[step].sentence)}</span></div></div>"
    )


def _marks_legend(steps: Sequence[Marked], lang: str) -> str:
    """The letters and signs of this bar, in the words of the marks' tooltips."""
    here = {item.tone for item in steps}
    items = "".join(
        f"<span><b>{glyph}</b> {esc(t(lang, f'common.mark-{tone}'))}</span>"
        for tone, glyph in _GLYPHS.items()
        if tone in here
    )
    return f'<p class="kd-marks-legend">{items}</p>' if items else ""


def terms_html(rows: Sequence[tuple[str, str, str]], here: str = "here") -> str:
    """What this project, SGLang and vLLM call the same thing."""
    body = "".join(
        "<tr>" + "".join(f"<td>{_code_spans(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        '<div class="kd-table-wrap kd-terms"><table class="kd-table"><thead><tr>'
        f"<th>{esc(here)}</th><th>SGLang</th><th>vLLM</th></tr></thead><tbody>{body}</tbody></table></div>"
    )


def code_html(parts: Sequence[tuple[str, Callable[..., Any]]]) -> str:
    """The source of each function, under its file and name, with a sentence why it matters."""
    shown = []
    for why, function in parts:
        file = inspect.getsourcefile(function) or ""
        place = "/".join(Path(file).parts[-3:])
        name = function.__qualname__
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
        shown.append(
            f'<p class="kd-note">{esc(why)} <code>{esc(place)}</code>, <code>{esc(name)}</code></p>'
            f'<pre class="kd-code" tabindex="0">{_escape_block(source)}</pre>'
        )
    return "".join(shown)


def notebook_html(word: str, lang: str = "en") -> str:
    """How to open the notebooks with ``word`` in their names, or that there is none."""
    names = sorted(p.name for p in resource_dir("notebooks").glob("*.ipynb") if word in p.name)
    if not names:
        return f'<p class="kd-note">{esc(t(lang, "common.notebook-none"))}</p>'
    items = "".join(f"<li><code>jupyter lab notebooks/{esc(n)}</code></li>" for n in names)
    return (
        f'<div class="kd-note"><p>{esc(t(lang, "common.notebook-open"))}</p><ul>{items}</ul></div>'
    )


MAX_VISITS = 100
"""Visits whose state the server holds, over a megabyte each. The least recently used goes first: a
page left that long starts again from its defaults."""

MAX_UPLOAD_BYTES = 32 << 20
"""Of a file as a visitor sends it."""

DELETE_FILES = (600, 1800)
"""Seconds: how often files are looked for that were sent and never read, and from which age on they
go. All of them go when the server ends."""


def launch_options() -> dict[str, Any]:
    """Options of ``Blocks.launch`` for every page: nothing shared, nothing fetched."""
    return {
        "theme": _look.theme(),
        "head": _look.head(),
        "share": False,
        "ssr_mode": False,
        "allowed_paths": [],
        "footer_links": ["api", "settings"],
        "enable_monitoring": False,
        "max_file_size": MAX_UPLOAD_BYTES,
        "state_session_capacity": MAX_VISITS,
    }


def build_lesson(lesson: Any, page: gr.Blocks | None) -> gr.Blocks:
    """Build a ``Lesson`` into ``page``, or into a Blocks of its own."""
    from demos import _frame, _pages

    return _frame.build(lesson, _pages.listed(), page)


def launch_alone(page: gr.Blocks) -> None:
    """Open one page by itself on http://127.0.0.1:7860 (or the port in GRADIO_SERVER_PORT)."""
    from demos import _opening, _spool

    _spool.end_in_order()
    page.launch(server_name="127.0.0.1", prevent_thread_lock=True, **launch_options())
    _opening.start(page)
    page.block_thread()


def _code_spans(text: str) -> str:
    pieces = text.split("`")
    return "".join(
        f"<code>{esc(piece)}</code>" if i % 2 else esc(piece) for i, piece in enumerate(pieces)
    )


def _escape_block(source: str) -> str:
    return "\n".join(esc(line) for line in source.split("\n"))
