"""Nothing rests on colour alone, and no colour is named anywhere else."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from kdalab.errors import KdalabError
from kdalab.spec import StateKind
from kdalab.viz import palette
from kdalab.viz.palette import (
    CONDITIONS,
    KIND_STYLES,
    REQUEST_COLOURS,
    SERIES_COLOURS,
    SERIES_DASHES,
    SERIES_MARKERS,
    STALE,
    THEMES,
    contrast_ratio,
    kind_style,
    request_colour,
    request_letter,
    theme,
    with_alpha,
)

ROOT = Path(__file__).resolve().parents[2]
KIND_COLOURS = [style.colour for style in KIND_STYLES.values()]


def lab(colour: str) -> tuple[float, float, float]:
    """CIE L*a*b* of an sRGB colour, written from the standard and not from the palette."""
    srgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in srgb)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str) -> float:
    return sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5


def test_kinds_have_the_okabe_ito_colours():
    assert KIND_COLOURS == ["#0072B2", "#D55E00", "#E69F00", "#009E73"]
    assert STALE == "#CC79A7"
    assert set(KIND_STYLES) == set(StateKind)


def test_every_kind_differs_in_colour_tag_shape_and_dash():
    styles = list(KIND_STYLES.values())
    for field in ("colour", "tag", "shape", "marker", "dash", "label"):
        assert len({getattr(s, field) for s in styles}) == len(styles), field
    assert [s.tag for s in styles] == ["KV", "S", "C", "E"]
    assert {kind_style(k.value).label for k in StateKind} == {k.label for k in StateKind}


@pytest.mark.parametrize("colours", [REQUEST_COLOURS, SERIES_COLOURS], ids=["requests", "series"])
def test_hues_keep_away_from_the_kinds_and_from_each_other(colours):
    for hue, kind in itertools.product(colours, [*KIND_COLOURS, STALE]):
        assert distance(hue, kind) >= 24, (hue, kind)
    for one, other in itertools.combinations(colours, 2):
        assert distance(one, other) >= 20, (one, other)
    for hue, look in itertools.product(colours, THEMES.values()):
        assert contrast_ratio(hue, look.background) >= 2, (hue, look.name)


def test_series_differ_without_colour():
    assert len(set(SERIES_DASHES)) == len(SERIES_DASHES) == len(SERIES_COLOURS)
    assert len(set(SERIES_MARKERS)) == len(SERIES_MARKERS) == len(SERIES_COLOURS)


def test_conditions_differ_without_colour():
    drawn = {(c.stroke_dash, c.outlines, c.pattern) for c in CONDITIONS.values()}
    assert len(drawn) == len(CONDITIONS)


@pytest.mark.parametrize("name", THEMES)
def test_text_can_be_read(name):
    look = theme(name)
    for surface in (look.background, look.panel):
        assert contrast_ratio(look.text, surface) >= 7
        assert contrast_ratio(look.muted, surface) >= 4.5
        assert contrast_ratio(look.good, surface) >= 4.5
        assert contrast_ratio(look.bad, surface) >= 4.5
    for style in KIND_STYLES.values():
        assert contrast_ratio(style.on_colour, style.colour) >= 4.5
        assert contrast_ratio(style.colour, look.background) >= 2


def test_contrast_of_known_pairs():
    assert contrast_ratio("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast_ratio("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_requests_are_lettered_without_end():
    assert [request_letter(i) for i in (0, 25, 26, 51, 52, 701, 702)] == [
        "A", "Z", "AA", "AZ", "BA", "ZZ", "AAA",
    ]  # fmt: skip
    assert request_colour(len(REQUEST_COLOURS)) == request_colour(0)
    for call in (request_letter, request_colour):
        with pytest.raises(KdalabError):
            call(-1)


def test_alpha():
    assert with_alpha("#0072B2", 0.5) == "rgba(0,114,178,0.5)"
    for bad in (("blue", 0.5), ("#0072B2", 2), ("#00ZZB2", 0.5)):
        with pytest.raises(KdalabError):
            with_alpha(*bad)


@pytest.mark.parametrize(("call", "bad"), [(theme, "sepia"), (kind_style, "ssm")])
def test_unknown_names_are_refused(call, bad):
    with pytest.raises(KdalabError, match="unknown"):
        call(bad)


def test_no_other_module_names_a_colour():
    # Quoted or after a colon, so that an issue's number in a comment is not taken for one.
    hex_colour = re.compile(r"""(?:["']|:\s?)#(?:[0-9a-fA-F]{6}|[0-9a-fA-F]{3})\b""")
    literal = re.compile(r"\brgba?\(\s*\d")
    found = []
    for folder in ("kdalab", "demos", "plot_scripts", "notebooks"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in {".py", ".js", ".css", ".ipynb"} or "_bundled" in path.parts:
                continue
            if path == Path(palette.__file__):
                continue
            text = path.read_text(encoding="utf-8")
            if hex_colour.search(text) or literal.search(text):
                found.append(str(path.relative_to(ROOT)))
    assert not found, f"colours belong in kdalab/viz/palette.py, not in {found}"
