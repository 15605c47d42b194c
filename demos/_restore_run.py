"""The restore page's answers as plain functions: a run, a frame of it, its numbers for a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import gradio as gr

from demos import _page
from demos import _restore_draw as draw
from demos import _restore_settings as rs
from demos._restore_settings import Settings
from kdalab.errors import InvariantError, KdalabError

T = TypeVar("T")


def guard(function: Callable[..., T], *args: Any) -> T:
    """Call; what is wrong with the input becomes a message on the page."""
    try:
        return function(*args)
    except (KdalabError, InvariantError) as error:
        raise gr.Error(str(error), title="This cannot be run", print_exception=False) from error


def frame(settings: Settings, step: int, request: str) -> tuple[Any, ...]:
    """Everything that changes with the step: (step, picture, why, step bar, tables, log)."""
    run = rs.recording(settings)
    step = rs.clipped(step, run)
    return (
        step,
        draw.picture_html(run, step),
        draw.why_panel(run, step),
        _page.step_bar_html(run.steps, step, settings.query(step)),
        draw.tables_html(run, step),
        draw.log_html(run, step, request if request in run.texts else draw.ALL),
    )


def last_step(settings: Settings) -> int:
    """The number of the last step."""
    return len(rs.recording(settings).steps) - 1


def run_controls(
    name: str,
    a: str,
    b: str,
    c: str,
    spacing: float | None,
    tokens: float | None,
    faults: list[str] | None,
) -> tuple[Settings, int]:
    """Settings of the controls, checked, and the step to open at."""
    settings = rs.checked(name, (a, b, c), spacing, tokens, faults or [])
    return settings, rs.opening_step(rs.recording(settings), settings)


def run_link(query: dict[str, str], faults: list[str]) -> tuple[Settings, int]:
    """Settings of a link, checked, and the step that it names or the one to open at."""
    settings, step = rs.from_query(query, faults)
    run = rs.recording(settings)
    return settings, rs.opening_step(run, settings) if step is None else rs.clipped(step, run)


def numbers(
    scenario: str,
    a: str,
    b: str,
    c: str,
    spacing: float,
    tokens: float,
    faults: list[str],
) -> dict[str, Any]:
    """Run a scenario; returns its link, its steps, what was measured, and its events.

    Empty texts and a spacing of 0 mean the scenario's own.
    """
    settings, opening = guard(run_controls, scenario, a, b, c, spacing or None, tokens, faults)
    run = rs.recording(settings)
    return {
        "query": settings.query(opening),
        "steps": [
            {"step": i, "kind": s.kind, "request": s.request, "sentence": s.sentence}
            for i, s in enumerate(run.steps)
        ],
        "measured": [
            {
                "request": m.request,
                "tokens": m.n_tokens,
                "restore": m.restore,
                "logits": m.logits,
                "recurrent": m.recurrent,
                "conv": m.conv,
                "latent": m.latent,
                "first_difference": m.first_difference,
            }
            for m in run.measured
        ],
        "events": draw.events_of(run),
    }


def lead_html(settings: Settings) -> str:
    """The example's name, question and sentence."""
    chosen = rs.scenario_of(settings)
    own = " The prompts are your own." if settings.texts else ""
    return (
        f'<div class="kd-page"><p class="example"><b>{_page.esc(chosen.title)}.</b> '
        f"{_page.esc(chosen.question)} {_page.esc(chosen.lead)}{own}</p></div>"
    )


def control_values(settings: Settings) -> tuple[Any, ...]:
    """What the controls show for these settings: example, three texts, spacing, tokens, faults."""
    texts = [p.text for p in rs.scenario_of(settings).prompts]
    texts += [""] * (rs.MAX_PROMPTS - len(texts))
    return (
        settings.scenario,
        *texts,
        settings.spacing,
        settings.new_tokens,
        list(settings.faults),
    )
