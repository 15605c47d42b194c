"""The hub: what this is, and a card for each page. ``python -m demos.app`` opens it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

import gradio as gr

from demos import _page
from demos import _restore_draw as draw
from demos import _restore_settings as rs
from demos._page import esc, launch_options

# Pages in the order of the navigation. A page module has TITLE, SLUG, QUESTION, SENTENCE and build.
MODULES = ("restore",)

ABOUT = (
    "A hybrid model keeps two kinds of memory: latent KV for every token, and one recurrent state "
    "that summarises all tokens before it. The first can be cut anywhere; the second exists only "
    "where a copy was kept. That changes prefix caching, and these pages show how, on a real "
    "engine with a small model that runs on this machine's CPU."
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the hub."""

    slug: str
    title: str
    question: str
    sentence: str
    module: ModuleType


def pages() -> list[Page]:
    """Every page, in order."""
    found = []
    for name in MODULES:
        module = importlib.import_module(f"demos.{name}")
        found.append(Page(module.SLUG, module.TITLE, module.QUESTION, module.SENTENCE, module))
    return found


def build_app() -> gr.Blocks:
    """All pages in one app, each under its own address."""
    listed = pages()
    with gr.Blocks(title="KDALab") as app:
        gr.Navbar(main_page_name="KDALab")
        _page.block(_page.heading_html("What changes when a model keeps a state?", ABOUT))
        _page.block(_cards(listed))
        _page.block(_teaser())
    for page in listed:
        with app.route(page.title, f"/{page.slug}"):
            gr.Navbar(main_page_name="KDALab")
            page.module.build(app)
    return app


def _cards(listed: list[Page]) -> str:
    cards = "".join(
        f'<a href="{esc(p.slug)}"><h2>{esc(p.title)}</h2><p>{esc(p.question)}</p></a>'
        for p in listed
    )
    return f'<nav class="kd-cards" aria-label="Pages">{cards}</nav>'


def _teaser() -> str:
    """The first page's own picture, so that the front page shows something true at once."""
    settings = rs.checked(rs.DEFAULT_SCENARIO)
    run = rs.recording(settings)
    step = rs.opening_step(run, settings)
    link = f"restore?{settings.query(step)}"
    return (
        f'<p class="kd-note kd-teaser">Live from the engine: {esc(run.steps[step].sentence)} '
        f'<a href="{esc(link)}">Step through it</a></p>{draw.picture_html(run, step)}'
    )


if __name__ == "__main__":
    build_app().launch(server_name="127.0.0.1", **launch_options())
