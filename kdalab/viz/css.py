"""Style sheet of every SVG and panel: the palette as CSS variables, so a theme is one class."""

from __future__ import annotations

from pathlib import Path

from kdalab.spec import StateKind
from kdalab.viz.palette import (
    FONT_MONO,
    FONT_UI,
    KIND_STYLES,
    REQUEST_COLOURS,
    STALE,
    THEMES,
    contrast_ratio,
)

_INK = tuple(sorted({style.on_colour for style in KIND_STYLES.values()}))


def hue_class(index: int) -> str:
    """CSS class that sets ``--hue`` and ``--on-hue`` to those of request 0, 1, ..."""
    return f"kd-r{index % len(REQUEST_COLOURS)}"


def variables(theme_name: str) -> str:
    """``--kd-...: #RRGGBB;`` of one theme, ready for a rule."""
    look = THEMES[theme_name]
    pairs = {
        "bg": look.background,
        "panel": look.panel,
        "text": look.text,
        "muted": look.muted,
        "line": look.line,
        "grid": look.grid,
        "accent": look.accent,
        "good": look.good,
        "bad": look.bad,
        "stale": STALE,
        "kv": KIND_STYLES[StateKind.MLA_KV].colour,
        "on-kv": KIND_STYLES[StateKind.MLA_KV].on_colour,
        "s": KIND_STYLES[StateKind.KDA_RECURRENT].colour,
        "on-s": KIND_STYLES[StateKind.KDA_RECURRENT].on_colour,
        "c": KIND_STYLES[StateKind.KDA_CONV].colour,
        "on-c": KIND_STYLES[StateKind.KDA_CONV].on_colour,
        "e": KIND_STYLES[StateKind.EMBEDDING].colour,
        "on-e": KIND_STYLES[StateKind.EMBEDDING].on_colour,
    }
    return " ".join(f"--kd-{name}: {value};" for name, value in pairs.items())


def stylesheet() -> str:
    """Both themes (``.dark`` or ``data-theme=dark`` around a picture) and all pictures' rules."""
    hues = "\n".join(
        f".kd-r{i} {{ --hue: {colour}; --on-hue: {_readable_on(colour)}; }}"
        for i, colour in enumerate(REQUEST_COLOURS)
    )
    rules = Path(__file__).with_name("pictures.css").read_text("utf-8")
    return (
        f":root {{ {variables('light')} --kd-ui: {FONT_UI}; --kd-mono: {FONT_MONO}; }}\n"
        f".dark, [data-theme=dark] {{ {variables('dark')} }}\n{hues}\n{rules}"
    )


def figures_stylesheet() -> str:
    """Rules that show a figure of the light theme in the dark one, live.

    Plotly writes each colour into the element it draws, so what has a colour of the light theme
    gets the dark theme's counterpart; the colours of data are in neither and stay.
    """
    light, dark = THEMES["light"], THEMES["dark"]
    roles = ("background", "panel", "text", "muted", "line", "grid", "accent", "good", "bad")
    rules = []
    for role in roles:
        written, wanted = _rgb(getattr(light, role)), getattr(dark, role)
        for what in ("fill", "stroke", "background"):
            rules.append(
                f'.dark .js-plotly-plot [style*="{what}: {written}"] '
                f"{{ {what}: {wanted} !important; }}"
            )
    return "\n".join(rules)


def _rgb(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def _readable_on(colour: str) -> str:
    return max(_INK, key=lambda ink: contrast_ratio(ink, colour))
