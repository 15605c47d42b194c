"""Scores of eviction candidates as two stacked bars, and hit tokens of policies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.viz import svg
from kdalab.viz.palette import SERIES_COLOURS, contrast_ratio, theme
from kdalab.viz.plotly_theme import style_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LEFT, _RIGHT, _ROW, _BAR = 210.0, 700.0, 34.0, 18.0


@dataclass(frozen=True, slots=True)
class ScoreBar:
    """A candidate: its name, its two terms (the second already weighed), and a note behind them.
    ``goes`` marks the one that is taken."""

    name: str
    recency: float
    saving: float
    note: str
    goes: bool = False


def score_bars_svg(
    bars: Sequence[ScoreBar], *, top: float, heading: str, names: tuple[str, str], label: str
) -> str:
    """One row a candidate on one scale from 0 to ``top``; ``names`` are those of the two terms."""
    parts = [svg.text(6, 14, heading, "strong")]
    x = _LEFT
    for css, name in zip(("recency", "saving"), names, strict=True):
        parts.append(svg.rect(x, 22, 12, 10, f"score {css}"))
        parts.append(svg.text(x + 17, 31, name, "small muted"))
        x += 190
    y = 42.0
    for bar in bars:
        parts.append(svg.text(6, y + 13, bar.name, "small strong" if bar.goes else "small"))
        x = _LEFT
        for css, value in (("recency", bar.recency), ("saving", bar.saving)):
            width = (_RIGHT - _LEFT) * value / max(top, 1e-9)
            if width > 0:
                shape = svg.rect(x, y, width, _BAR, f"score {css}", title=f"{value:.3f}")
                parts.append(shape)
                if width > 30:
                    ink = f"tiny mid on{css}"
                    parts.append(svg.text(x + width / 2, y + 12.5, f"{value:.2f}", ink))
            x += width
        parts.append(svg.path(f"M{_LEFT:.1f} {y:.1f} v{_BAR}", "line"))
        if bar.goes:
            parts.append(svg.rect(_LEFT - 4, y - 4, x - _LEFT + 8, _BAR + 8, "now", radius=4))
        css = "small strong" if bar.goes else "small muted"
        parts.append(svg.text(max(x, _LEFT) + 10, y + 13, bar.note, css))
        y += _ROW
    return svg.document("".join(parts), y + 4, label, css_class="kd-scores")


def policy_hits_figure(
    names: Sequence[str], hits: Sequence[int], known: Sequence[int], *, title: str, subtitle: str,
    series: tuple[str, str], axis: str, theme_name: str = "light", height: int = 380,
) -> go.Figure:  # fmt: skip
    """Restored tokens of each policy, and known tokens that had to be replayed on top of them.

    Args:
        names: policies, in order.
        hits, known: restored tokens, and tokens whose KV was known.
        series: names of "restored" and "known, but replayed".
        axis: title of the axis of tokens.
    """
    import plotly.graph_objects as go

    look = theme(theme_name)
    ink = max((look.background, look.text), key=lambda c: contrast_ratio(c, SERIES_COLOURS[0]))
    figure = go.Figure()
    figure.add_bar(
        x=list(names), y=list(hits), name=series[0], marker={"color": SERIES_COLOURS[0]},
        text=[f"{h:,}" for h in hits], textposition="inside", textfont={"color": ink},
    )  # fmt: skip
    figure.add_bar(
        x=list(names), y=[k - h for h, k in zip(hits, known, strict=True)], name=series[1],
        marker={"color": SERIES_COLOURS[1], "pattern": {"shape": "/"}},
    )  # fmt: skip
    style_figure(figure, title=title, subtitle=subtitle, height=height, theme_name=theme_name)
    figure.update_layout(barmode="stack", yaxis={"title": {"text": axis}}, bargap=0.35)
    return figure
