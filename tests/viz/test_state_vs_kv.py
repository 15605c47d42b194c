"""The figure's lines are the spec's bytes, and its mark is where the lines really meet."""

from __future__ import annotations

import math

import pytest

from kdalab.errors import KdalabError
from kdalab.spec import PRESETS, preset, state_sizes
from kdalab.viz.export import table_of
from kdalab.viz.palette import KIND_STYLES, THEMES, theme
from kdalab.viz.state_vs_kv import context_grid, state_vs_kv_figure

REAL = [spec for name, spec in PRESETS.items() if not name.startswith("tiny")]


def traces(figure):
    return {t.name: t for t in figure.data if t.x[0] is not None}


def test_lines_are_the_bytes_of_the_published_models():
    lines = traces(state_vs_kv_figure([preset("kimi-k3")]))
    kv, state = lines["kimi-k3: KV"], lines["kimi-k3: one checkpoint"]
    assert dict(zip(kv.x, kv.y, strict=True))[2**20] == 27 * 2**30
    assert set(state.y) == {449_372_160}
    assert lines["kimi-k3: crossing"].x == (16_253,)


@pytest.mark.parametrize("spec", REAL, ids=lambda s: s.name)
def test_the_mark_is_where_kv_outgrows_the_checkpoint(spec):
    figure = state_vs_kv_figure([spec])
    mark = traces(figure)[f"{spec.name}: crossing"]
    sizes = state_sizes(spec)
    (tokens,) = mark.x
    assert sizes.latent_bytes(tokens - 1) < sizes.checkpoint_bytes < sizes.latent_bytes(tokens + 1)
    assert mark.y == (sizes.checkpoint_bytes,)
    assert any(f"{tokens:,} tokens" in a.text for a in figure.layout.annotations)


def test_kinds_keep_their_colours_and_models_differ_without_colour():
    lines = traces(state_vs_kv_figure(REAL))
    colours = [s.colour for s in KIND_STYLES.values()]
    for spec in REAL:
        assert lines[f"{spec.name}: KV"].line.color == colours[0]
        assert lines[f"{spec.name}: one checkpoint"].line.color == colours[1]
    dashes = {lines[f"{s.name}: KV"].line.dash for s in REAL}
    symbols = {lines[f"{s.name}: crossing"].marker.symbol for s in REAL}
    assert len(dashes) == len(symbols) == len(REAL)


def test_interval_adds_the_checkpoints_that_a_request_leaves_behind():
    lines = traces(state_vs_kv_figure([preset("kimi-k3")], interval=4096))
    kept = lines["kimi-k3: every 4,096"]
    by_tokens = dict(zip(kept.x, kept.y, strict=True))
    assert by_tokens[2048] is None
    assert by_tokens[4096] == 449_372_160
    assert by_tokens[2**20] == 256 * 449_372_160


def test_ranks_split_the_state_and_move_the_crossing():
    lines = traces(state_vs_kv_figure([preset("kimi-k3")], tp_size=8))
    assert lines["kimi-k3: crossing"].x == (2032,)
    assert lines["kimi-k3: KV"].y[-1] == 27 * 2**30


def test_every_line_lies_within_the_axes():
    for specs in (REAL, [preset("tiny")], [*REAL, preset("tiny")]):
        figure = state_vs_kv_figure(specs, interval=8192)
        low, high = figure.layout.yaxis.range
        for trace in traces(figure).values():
            for value in trace.y:
                assert value is None or low <= math.log10(value) <= high


@pytest.mark.parametrize("name", THEMES)
def test_figure_has_height_units_and_its_own_background(name):
    figure = state_vs_kv_figure(REAL, theme_name=name, height=480)
    layout = figure.layout
    assert layout.height == 480
    assert "tokens" in layout.xaxis.title.text
    assert "bytes" in layout.yaxis.title.text
    template = layout.template.layout
    assert template.paper_bgcolor == template.plot_bgcolor == theme(name).background


def test_theme_is_not_registered_globally():
    import plotly.io as pio

    before = (set(pio.templates), pio.templates.default)
    state_vs_kv_figure(REAL)
    assert (set(pio.templates), pio.templates.default) == before


def test_table_repeats_the_numbers():
    columns, rows = table_of(state_vs_kv_figure(REAL))
    assert [row[0] for row in rows] == [s.name for s in REAL]
    assert rows[0][columns.index("recurrent state")] == "434,110,464 B"
    assert rows[0][columns.index("one checkpoint equals")] == "16,253 tokens"


def test_context_grid_keeps_both_ends():
    assert context_grid(3, 20) == [3, 4, 8, 16, 20]
    assert context_grid(256, 1024) == [256, 512, 1024]
    for bad in ((0, 8), (8, 8), (9, 8)):
        with pytest.raises(KdalabError, match="first < last"):
            context_grid(*bad)


def test_too_many_or_no_models_are_refused():
    for specs in ([], [preset("tiny")] * 7):
        with pytest.raises(KdalabError, match="models in one figure"):
            state_vs_kv_figure(specs)
    with pytest.raises(KdalabError, match="96 / 7"):
        state_vs_kv_figure([preset("kimi-k3")], tp_size=7)
