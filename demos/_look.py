"""Theme, style sheet and the few lines of JavaScript that every page shares."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from kdalab.viz.css import figures_stylesheet, stylesheet
from kdalab.viz.palette import DARK, FONT_MONO, FONT_UI, LIGHT


def theme() -> gr.themes.Base:
    """Gradio's base theme in the palette's surfaces; only fonts that the machine has."""
    look = gr.themes.Base(
        primary_hue="gray",
        secondary_hue="gray",
        neutral_hue="gray",
        font=[part.strip() for part in FONT_UI.split(",")],
        font_mono=[part.strip() for part in FONT_MONO.split(",")],
    )
    return look.set(
        body_background_fill=LIGHT.background,
        body_background_fill_dark=DARK.background,
        background_fill_primary=LIGHT.background,
        background_fill_primary_dark=DARK.background,
        background_fill_secondary=LIGHT.panel,
        background_fill_secondary_dark=DARK.panel,
        block_background_fill=LIGHT.background,
        block_background_fill_dark=DARK.background,
        block_border_color=LIGHT.grid,
        block_border_color_dark=DARK.grid,
        block_label_background_fill=LIGHT.background,
        block_label_background_fill_dark=DARK.background,
        border_color_primary=LIGHT.grid,
        border_color_primary_dark=DARK.grid,
        body_text_color=LIGHT.text,
        body_text_color_dark=DARK.text,
        body_text_color_subdued=LIGHT.muted,
        body_text_color_subdued_dark=DARK.muted,
        block_info_text_color=LIGHT.muted,
        block_info_text_color_dark=DARK.muted,
        input_background_fill=LIGHT.background,
        input_background_fill_dark=DARK.panel,
        input_border_color=LIGHT.line,
        input_border_color_dark=DARK.line,
        button_primary_background_fill=LIGHT.accent,
        button_primary_background_fill_dark=DARK.accent,
        button_primary_background_fill_hover=LIGHT.muted,
        button_primary_background_fill_hover_dark=DARK.muted,
        button_primary_text_color=LIGHT.background,
        button_primary_text_color_dark=DARK.background,
        button_secondary_background_fill=LIGHT.panel,
        button_secondary_background_fill_dark=DARK.panel,
        button_secondary_background_fill_hover=LIGHT.grid,
        button_secondary_background_fill_hover_dark=DARK.grid,
        button_secondary_text_color=LIGHT.text,
        button_secondary_text_color_dark=DARK.text,
        slider_color=LIGHT.accent,
        slider_color_dark=DARK.accent,
        checkbox_background_color_selected=LIGHT.accent,
        checkbox_background_color_selected_dark=DARK.muted,
        checkbox_border_color_selected=LIGHT.accent,
        checkbox_border_color_selected_dark=DARK.muted,
        link_text_color=LIGHT.text,
        link_text_color_dark=DARK.text,
        loader_color=LIGHT.muted,
        loader_color_dark=DARK.muted,
    )


def head() -> str:
    """What goes into every page's ``<head>``: the palette, and the scripts that run before all
    else."""
    css = stylesheet() + figures_stylesheet() + static("page.css")
    scripts = "".join(static(name) for name in ("clip.js", "wait.js", "keys.js"))
    return f"<style>{css}</style><script>{scripts}</script>"


def static(name: str) -> str:
    """A style sheet or script of the pages, as text."""
    return (Path(__file__).parent / "static" / name).read_text("utf-8")
