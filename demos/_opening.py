"""Pages are built empty and drawn once the server answers, so that the hub starts at once.

``later`` says what a page opens with; ``start`` draws all of it in a thread, page after page, and
hands it to the visitors to come. Whoever opens a page before its turn has it drawn by the page's
own load event (``_frame``, ``app``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import gradio as gr

Draw = Callable[[], Sequence[Any]]

DRAWN = "1"
"""Value of a page's ``drawn`` box whose components already hold the opening picture."""

_UPDATE_S = 1.0
_waiting: WeakKeyDictionary[gr.Blocks, list[tuple[str, Draw, list[Any]]]] = WeakKeyDictionary()


def drawn_box() -> gr.Textbox:
    """A box that tells the page's load event whether this visitor got a drawn page."""
    return gr.Textbox("", visible="hidden")


def later(page: gr.Blocks, slug: str, draw: Draw, outputs: Sequence[Any], box: gr.Textbox) -> None:
    """What ``outputs`` hold when the page is opened: the updates that ``draw`` returns."""
    _waiting.setdefault(page, []).append((slug, lambda: [*draw(), DRAWN], [*outputs, box]))


def draw_all(page: gr.Blocks, first: str = "") -> None:
    """Draw what waits, the page ``first`` before the others.

    Returns when all is drawn, or when the program ends.
    """
    waiting = _waiting.pop(page, [])
    waiting.sort(key=lambda item: item[0] != first)
    shown = time.monotonic()
    for _, draw, outputs in waiting:
        if not threading.main_thread().is_alive():
            return
        for component, update in zip(outputs, draw(), strict=True):
            put(component, update)
        if time.monotonic() - shown > _UPDATE_S or draw is waiting[0][1]:
            page.config = page.get_config_file()  # what a visitor is given
            shown = time.monotonic()
    page.config = page.get_config_file()


def start(page: gr.Blocks, first: str = "") -> threading.Thread:
    """``draw_all`` in a thread.

    A program that ends waits for the page that is being drawn, and for no other: a thread that is
    cut off inside torch takes the process down with it.
    """
    thread = threading.Thread(target=draw_all, args=(page, first), name="opening")
    thread.start()
    return thread


def put(component: Any, update: Any) -> None:
    """Give a component an event's answer, as its value for all who come."""
    if isinstance(update, gr.blocks.Block):
        for name, value in update.constructor_args.items():
            if value is not None:
                setattr(component, name, value)
    elif isinstance(component, gr.State):
        component.value = update
    elif isinstance(component, gr.HTML | gr.Textbox):
        component.value = str(update)
    else:
        component.value = type(component)(update, render=False).value
