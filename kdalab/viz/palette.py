"""The only place that names a colour: state kinds, conditions, requests and the two themes.

Okabe-Ito colours tell the four kinds apart for every kind of colour vision. No meaning rests on
colour alone: each kind also has a tag and a shape, each condition a stroke.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.errors import KdalabError
from kdalab.spec.kinds import StateKind


@dataclass(frozen=True, slots=True)
class KindStyle:
    """How one kind of state is drawn everywhere.

    ``colour`` fills shapes; ``on_colour`` is text that can be read on it; ``shape`` is the SVG
    shape's name; ``marker`` is plotly's; ``dash`` is the line style in charts.
    """

    kind: StateKind
    tag: str
    label: str
    colour: str
    on_colour: str
    shape: str
    marker: str
    dash: str


KIND_STYLES: dict[StateKind, KindStyle] = {
    style.kind: style
    for style in (
        KindStyle(
            StateKind.MLA_KV, "KV", "latent KV", "#0072B2", "#FFFFFF", "squares", "square", "solid"
        ),
        KindStyle(
            StateKind.KDA_RECURRENT,
            "S",
            "recurrent state",
            "#D55E00",
            "#000000",
            "rounded_square",
            "circle",
            "dash",
        ),
        KindStyle(
            StateKind.KDA_CONV,
            "C",
            "conv state",
            "#E69F00",
            "#000000",
            "strip",
            "line-ew",
            "dot",
        ),
        KindStyle(
            StateKind.EMBEDDING,
            "E",
            "embedding",
            "#009E73",
            "#000000",
            "hexagon",
            "hexagon",
            "dashdot",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ConditionStyle:
    """How the condition of a state is drawn on top of its kind: a stroke and a pattern."""

    name: str
    label: str
    stroke_dash: str
    stroke_width: float
    outlines: int
    pattern: str
    colour: str | None = None


#: Purple of Okabe-Ito: stale, poisoned, or wrong.
STALE = "#CC79A7"

# A colour of None means the theme's own line colour.
CONDITIONS: dict[str, ConditionStyle] = {
    style.name: style
    for style in (
        ConditionStyle("shared", "shared, read-only", "", 1.5, 2, "lock"),
        ConditionStyle("private", "private, writable", "", 1.5, 1, "owner_bar"),
        ConditionStyle("stale", "stale or poisoned", "", 1.5, 1, "hatch", STALE),
        ConditionStyle("free", "free", "3 3", 1.0, 1, "empty"),
        ConditionStyle("tombstone", "KV without a state", "4 3", 1.5, 1, "empty"),
        ConditionStyle("in_flight", "in flight", "6 4", 2.0, 1, "moving_dashes"),
    )
}

# Hues for requests A, B, C, ...: each at least 24 (CIE 1976) from every kind's colour and from each
# other, and readable on both themes. The letter is always drawn beside the hue.
REQUEST_COLOURS: tuple[str, ...] = (
    "#8E44C9",
    "#8BC34A",
    "#C62828",
    "#4FA8C7",
    "#9A7B4F",
    "#5E4FA2",
    "#7F7F7F",
    "#9F9F1F",
)

# Lines that compare models; hues away from the four kinds, told apart by dash and marker as well.
SERIES_COLOURS: tuple[str, ...] = (
    "#8E44C9",
    "#4FA8C7",
    "#7CA82B",
    "#C62828",
    "#9A7B4F",
    "#7F7F7F",
)
SERIES_DASHES: tuple[str, ...] = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SERIES_MARKERS: tuple[str, ...] = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "star",
)


@dataclass(frozen=True, slots=True)
class Theme:
    """Surface, text and line colours of one theme."""

    name: str
    background: str
    panel: str
    text: str
    muted: str
    line: str
    grid: str
    accent: str
    good: str
    bad: str


LIGHT = Theme(
    name="light",
    background="#FFFFFF",
    panel="#F5F6F8",
    text="#1B1F24",
    muted="#57606A",
    line="#6E7781",
    grid="#E1E4E8",
    accent="#24292F",
    good="#1A7F4B",
    bad="#A3217A",
)
DARK = Theme(
    name="dark",
    background="#14171C",
    panel="#1F242B",
    text="#E8EAED",
    muted="#A5ADB8",
    line="#8B949E",
    grid="#333A43",
    accent="#F0F3F6",
    good="#4CC38A",
    bad="#E58BBE",
)
THEMES: dict[str, Theme] = {theme.name: theme for theme in (LIGHT, DARK)}

# Heat maps of signed values: blue below 0, theme-neutral at 0, vermillion above.
DIVERGING: tuple[tuple[float, str], ...] = ((0.0, "#0072B2"), (0.5, "#F7F7F7"), (1.0, "#D55E00"))
DIVERGING_DARK: tuple[tuple[float, str], ...] = (
    (0.0, "#4FA3D8"),
    (0.5, "#14171C"),
    (1.0, "#F08A3C"),
)
# Heat maps of sizes: nothing to much (viridis-like, readable in grey).
SEQUENTIAL: tuple[tuple[float, str], ...] = (
    (0.0, "#440154"),
    (0.25, "#3B528B"),
    (0.5, "#21918C"),
    (0.75, "#5EC962"),
    (1.0, "#FDE725"),
)

FONT_UI = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Noto Sans CJK SC', "
    "'Noto Sans CJK KR', 'Noto Sans CJK JP', sans-serif"
)
FONT_MONO = (
    "ui-monospace, 'SF Mono', Menlo, Consolas, 'Noto Sans Mono', 'Noto Sans Mono CJK SC', monospace"
)


def theme(name: str) -> Theme:
    """The theme of that name.

    Raises:
        KdalabError: neither ``light`` nor ``dark``.
    """
    if name not in THEMES:
        raise KdalabError(f"unknown theme {name!r}; use {' or '.join(THEMES)}")
    return THEMES[name]


def kind_style(kind: StateKind | str) -> KindStyle:
    """Colour, tag and shape of a state kind.

    Raises:
        KdalabError: not a state kind.
    """
    try:
        return KIND_STYLES[StateKind(kind)]
    except ValueError as error:
        raise KdalabError(
            f"unknown state kind {kind!r}; use one of {', '.join(k.value for k in StateKind)}"
        ) from error


def request_letter(index: int) -> str:
    """A, B, ..., Z, AA, AB, ... for request 0, 1, ...

    Raises:
        KdalabError: a negative index.
    """
    if index < 0:
        raise KdalabError(f"request index {index}; requests are numbered from 0")
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def request_colour(index: int) -> str:
    """The hue of request 0, 1, ...; hues repeat after the last, letters do not.

    Raises:
        KdalabError: a negative index.
    """
    if index < 0:
        raise KdalabError(f"request index {index}; requests are numbered from 0")
    return REQUEST_COLOURS[index % len(REQUEST_COLOURS)]


def with_alpha(colour: str, alpha: float) -> str:
    """``#RRGGBB`` as ``rgba(r,g,b,alpha)``.

    Raises:
        KdalabError: not ``#RRGGBB``, or alpha outside 0..1.
    """
    if len(colour) != 7 or not colour.startswith("#") or not 0 <= alpha <= 1:
        raise KdalabError(f"colour {colour!r} with alpha {alpha}; use '#RRGGBB' and 0 to 1")
    try:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    except ValueError as error:
        raise KdalabError(f"colour {colour!r} is not '#RRGGBB'") from error
    return f"rgba({red},{green},{blue},{alpha:g})"


def contrast_ratio(first: str, second: str) -> float:
    """WCAG 2 contrast ratio of two ``#RRGGBB`` colours, 1 to 21."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
