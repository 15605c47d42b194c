"""A visitor's own file on a page: its components, what reading it does, and how it goes again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from demos import _page, _spool, _work
from demos._controls import Choice, Settings
from demos._lesson import Lesson, guard, told
from demos._text import t
from demos._uploads import UPLOADS, Upload
from kdalab.errors import KdalabError
from kdalab.units import format_bytes

_QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


ENDPOINT_REQUESTS = 2500
ENDPOINT_SECONDS = 60.0
"""Most requests and seconds of a run that a script asked for. Whether its caller still waits is not
known here, so it may not take long, and keeps only other scripts waiting."""

_WAITING = 7
_LINE = _work.Line(_WAITING)

ENDINGS = ".jsonl, .jsonl.gz, .json, .csv"


def _file(limit: int, **options: Any) -> gr.File:
    """Hands over the path of what was uploaded; Gradio's own way leaves an empty file beside it.

    Never updated with another gr.File, which would bring that way back: so its label is the same
    in every language.
    """
    _spool.keep_apart()
    file = gr.File(
        label=f"{ENDINGS}: ≤ {format_bytes(limit)}", file_count="single", type="filepath", **options
    )

    def path_of(payload: Any) -> str | None:
        return None if payload is None else payload.path

    file.preprocess = path_of  # type: ignore[method-assign]
    return file


@dataclass(frozen=True, slots=True)
class FileParts:
    """The components of one ``Upload``."""

    control: Upload
    file: gr.File
    note: gr.HTML
    remove: gr.Button

    @property
    def labelled(self) -> list[Any]:
        """Outputs of ``labels``."""
        return [self.note, self.remove]

    def labels(self, settings: Settings, lang: str) -> list[Any]:
        """In another language."""
        ticket = settings[self.control.key]
        return [
            note_html(self.control, ticket, lang),
            gr.Button(t(lang, "common.remove"), visible=UPLOADS.has(ticket)),
        ]


def layout(control: Upload) -> FileParts:
    """Where a file is dropped, and beside it what was read."""
    with gr.Row():
        file = _file(control.limit, height=160, min_width=260, elem_id=f"kd-{control.key}-file")
        with gr.Column(scale=2, min_width=260):
            note = _page.block(note_html(control, "", "en"), elem_id=f"kd-{control.key}-note")
            remove = gr.Button(
                t("en", "common.remove"), size="sm", visible=False, scale=0,
                elem_id=f"kd-{control.key}-remove",
            )  # fmt: skip
    return FileParts(control, file, note, remove)


def note_html(control: Upload, ticket: str, lang: str) -> str:
    """What was read; without a file, what happens to one."""
    read = control.told(lang, ticket)
    head = f'<p class="kd-note"><b>{t(lang, "common.upload")}</b></p>'
    return head + (read or f'<p class="kd-note">{t(lang, "common.upload-note")}</p>')


def read(control: Upload, path: str, visit: str) -> Any:
    """Read a file, delete it, and keep what was read; the ticket.

    Raises:
        KdalabError: it is too large, gone, or refused by the control's reader.
    """
    file = Path(path)
    if file.is_dir():
        raise KdalabError("the path is a folder; upload a file and give the path that was answered")
    try:
        size = file.stat().st_size
        if size > control.limit:
            raise KdalabError(
                f"the file has {size:,} bytes; the limit is {control.limit:,}. Use kdalab lab for "
                "larger ones"
            )

        def heard(done: int, total: int) -> None:
            _work.at("common.reading", done, total)

        found = control.read(file, file.name, heard)
        return UPLOADS.keep(visit, found, getattr(found, "kept_bytes", size))
    except FileNotFoundError:
        raise KdalabError("the file is gone before it was read; upload it again") from None
    finally:
        _spool.delete(file)


def wire(
    lesson: Lesson,
    parts: FileParts,
    order: Sequence[Any],
    components: Sequence[Any],
    lang: gr.State,
    options: dict[str, Any],
    page: gr.Blocks,
    run: Callable[[Any], None],
    idle: Callable[[Any], None],
) -> None:
    """Upload, remove, leave. ``order`` are the lesson's controls, ``components`` theirs; ``run``
    and ``idle`` add to an event what runs the page anew, and what ends a long run."""
    control = parts.control
    holder = components[[c.key for c in order].index(control.key)]
    chooser = next(c for c in order if c.key == control.choice)
    assert isinstance(chooser, Choice)
    chosen = components[[c.key for c in order].index(control.choice)]
    outputs = [parts.file, holder, chosen, *parts.labelled]

    def take(
        http: gr.Request, progress: Any = gr.Progress(), path: str | None = None,
        speaks: tuple[str, str] = ("en", ""), before: str = "",
    ) -> Any:  # fmt: skip
        if path is None:
            return (gr.skip(),) * len(outputs)
        visit = str(http.session_hash)
        try:
            with _work.working(visit, _work.Work(speaks[0], teller(progress))):
                ticket = guard(read, control, path, visit)
        except _work.StoppedError:
            return None, *(gr.skip(),) * (len(outputs) - 1)
        _drop(lesson, before)
        shown = chooser.update(lesson.slug, speaks[0], chooser.own, own=True)
        note = note_html(control, ticket, speaks[0])
        return None, ticket, shown, note, gr.Button(visible=True)

    def remove(speaks: tuple[str, str], ticket: str) -> Any:
        _drop(lesson, ticket)
        shown = chooser.update(lesson.slug, speaks[0], chooser.default)
        return None, "", shown, note_html(control, "", speaks[0]), gr.Button(visible=False)

    taken = parts.file.upload(take, [parts.file, lang, holder], outputs, **options)
    # A file that was refused does not stay in its box.
    taken.failure(lambda: None, None, parts.file, **_QUIET)
    idle(taken)
    run(taken)
    run(parts.remove.click(remove, [lang, holder], outputs, **_QUIET))

    def leave(http: gr.Request) -> None:
        visit = str(http.session_hash)
        _work.stop(visit)
        lesson.forget(UPLOADS.leave(visit))

    page.unload(leave)


def add_endpoint(lesson: Lesson, control: Upload, numbers: Callable[..., Any]) -> None:
    """``/<slug>_file``: a file and settings in, numbers out; nothing of the file is kept."""
    file = _file(control.limit, visible="hidden")
    settings, answer = gr.JSON(visible="hidden"), gr.JSON(visible="hidden")
    go = gr.Button(visible="hidden")

    def of_file(http: gr.Request, path: str | None, given: Any) -> Any:
        if path is None:
            raise gr.Error("file: upload one", print_exception=False)
        return told(answered, path, given, str(http.session_hash))

    def answered(path: str, given: Any, visit: str) -> Any:
        ticket = ""
        try:
            with _LINE.turn(), _work.working(visit, _work.Work("en", seconds=ENDPOINT_SECONDS)):
                _check_requests(given)
                ticket = read(control, path, visit)
                own = {control.key: ticket, control.choice: _own(lesson, control)}
                return numbers(given | own if isinstance(given, dict) else given)
        except _work.TimeUpError:
            raise KdalabError(
                f"this took more than {ENDPOINT_SECONDS:.0f} seconds and was stopped; ask for "
                "fewer requests, or use kdalab lab"
            ) from None
        except _work.StoppedError:
            raise KdalabError("a newer call of yours stopped this one") from None
        finally:
            _drop(lesson, ticket)
            _spool.delete(Path(path))

    go.click(
        of_file, [file, settings], answer, api_name=f"{lesson.slug}_file",
        concurrency_id="files", concurrency_limit=_WAITING + 2,
    )  # fmt: skip


def _check_requests(given: Any) -> None:
    try:
        asked = float(given["requests"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return  # none, or one that the lesson refuses
    if asked > ENDPOINT_REQUESTS:
        told = f"{asked:,.0f}" if asked < 1e15 else f"{asked:g}"
        raise KdalabError(
            f"{told} requests; this call takes {ENDPOINT_REQUESTS:,} at most. Use kdalab lab "
            "for more"
        )


def _own(lesson: Lesson, control: Upload) -> str:
    return next(c.own for c in lesson.row if isinstance(c, Choice) and c.key == control.choice)


def _drop(lesson: Lesson, ticket: str) -> None:
    if ticket:
        UPLOADS.drop(ticket)
        lesson.forget([ticket])


def teller(progress: Any) -> _work.Tell:
    """What Gradio's progress shows of a run."""
    return lambda share, words: progress(share, desc=words)
