"""Bars of a transfer are to scale, and the figure stops where shipping never wins."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from kdalab.errors import KdalabError
from kdalab.spec import resolve_model
from kdalab.transfer.worth import BANDWIDTHS, worth_line
from kdalab.viz.refusals import Offer, refusals_svg
from kdalab.viz.transfer import transfer_svg
from kdalab.viz.transfer_figures import ship_or_replay_figure


@dataclass(frozen=True)
class Sent:
    latent: int = 0
    recurrent: int = 0
    conv: int = 0
    embedding: int = 0
    kind: str = "latent"
    fate: str = "taken"
    attempt: int = 1
    start: int = 0
    end: int = 64
    tick: int = 1

    @property
    def nbytes(self) -> int:
        return self.latent + self.recurrent + self.conv + self.embedding


class Words(dict):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def test_bars_are_bytes_to_one_scale_and_words_are_escaped():
    sent = [Sent(latent=4000), Sent(recurrent=6000, conv=2000, kind="state", fate="damaged")]
    picture = transfer_svg(
        n_tokens=64, held=0, image=None, chunks=[(0, 64, 1)], parcels=sent, shown=2, now=True,
        done_chunks=1, landed=[(0, 64)], whole="here", generated=["<b>"], wrong=[True],
        words=Words(), label="x",
    )  # fmt: skip
    bars = re.findall(r'height="([\d.]+)" rx="1.5" class="(kv|s|c)"', picture)
    high = {css: float(h) for h, css in reversed(bars)}  # the wire comes first
    assert high["kv"] / high["s"] == pytest.approx(4 / 6, rel=1e-2)
    assert high["s"] / high["c"] == pytest.approx(3, rel=1e-2)
    assert "<b>" not in picture
    assert 'class="hatch"' in picture


def test_offers_that_have_not_been_judged_show_no_verdict():
    offers = [Offer("same", False, "", "", ""), Offer("other", True, "model", "a", "b")]
    words = {k: k for k in ("case", "verdict", "field", "ours", "theirs", "taken", "refused")}
    assert ">refused<" not in refusals_svg(offers, 1, words=words, label="x")
    assert ">refused<" in refusals_svg(offers, 2, words=words, label="x")


def test_where_shipping_never_wins_there_is_no_point():
    line = worth_line(resolve_model("kimi-k3"), 10_000.0, [1e8, 1e9, 1e10])
    figure = ship_or_replay_figure([line])
    assert line.points[0][1] == float("inf")
    assert list(figure.data[0].x) == [1.0, 10.0]
    assert figure.layout.height
    with pytest.raises(KdalabError):
        ship_or_replay_figure([])


@pytest.mark.parametrize(("rate", "floors"), [(2_000.0, 0), (10_000.0, 1), (50_000.0, 2)])
def test_a_floor_is_drawn_only_where_it_is_on_the_axis(rate, floors):
    models = [resolve_model(name) for name in ("kimi-linear-48b", "kimi-k3")]
    lines = [worth_line(model, rate, BANDWIDTHS) for model in models]
    figure = ship_or_replay_figure(lines)
    low, high = (10**end for end in figure.layout.xaxis.range)
    assert len(figure.layout.shapes) == floors
    assert all(low <= shape.x0 <= high for shape in figure.layout.shapes)
