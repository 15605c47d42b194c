"""The density lesson against the cache itself, and what must hold of any interval."""

import pytest

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lab.generate import generated_trace, shape
from kdalab.lab.replay import replay
from kdalab.lessons import DENSITY_REQUESTS, INTERVALS, best_interval, play_density
from kdalab.spec import preset
from kdalab.viz.density import Curve, DensityRow, density_figure, density_svg

GIB = 2**30


@pytest.fixture(scope="module")
def run():
    return play_density("agent-like", "kimi-linear-48b", 4 * GIB, 5120)


def test_points_are_those_of_the_cache_s_own_replay(run):
    n = DENSITY_REQUESTS["agent-like"]
    trace = generated_trace(n, shape("agent-like"), 0, "agent-like")
    spec = preset("kimi-linear-48b")
    for point, budget in ((run.here[0], None), (run.here[1], 4 * GIB)):
        wanted = replay(trace, spec, parse_placement("every:5120"), budget)
        assert point.hit_tokens == wanted.hit_tokens
        assert point.replayed_tokens == wanted.replayed_tokens
        assert point.state_bytes == wanted.state_bytes
        assert point.evicted_states == wanted.evicted_states


def test_without_a_budget_halving_the_interval_never_restores_less(run):
    shares = [p.hit_share for p in run.free if p.interval in INTERVALS]
    assert shares == sorted(shares, reverse=True)
    assert all(p.evicted_states == 0 for p in run.free)


def test_within_a_budget_the_densest_is_not_the_best(run):
    assert all(p.peak_bytes <= run.budget for p in run.tight)
    assert best_interval("agent-like", "kimi-linear-48b", 4 * GIB) not in (512, 65536)


def test_the_followed_request_restores_on_the_interval_s_grid(run):
    assert 0 < run.request <= run.requests
    for p in (*run.free, *run.tight):
        assert p.restore % p.interval == 0
        assert p.restore <= max(p.match, p.restore) <= run.n_tokens
    assert any(0 < p.restore < p.match for p in run.tight)


def test_what_cannot_run_is_refused_by_name():
    with pytest.raises(KdalabError, match="agent-like"):
        play_density("nothing", "kimi-k3", GIB, 512)
    with pytest.raises(KdalabError, match="smallest budget"):
        play_density("agent-like", "kimi-k3", GIB, 512)


def test_the_picture_draws_a_checkpoint_for_each_boundary_left():
    words = dict.fromkeys(("head", "prompt", "note", "restored", "replay", "new", "left"), "<w>")
    rows = [DensityRow(1024, 2048, 3000, "a"), DensityRow(4096, 0, 0, "b", here=True)]
    shown = density_svg(rows, 5000, stage=5, label="l", words=words)
    assert shown.count('class="s"') == 2 + 1 + 1  # at 3072 and 4096; at 4096; and the key
    assert "<w>" not in shown


def test_the_figure_has_both_curves_twice_and_an_explicit_height():
    curve = Curve([512, 1024], [0.5, 0.25], [2 * GIB, GIB])
    figure = density_figure(curve, curve, GIB, 1024)
    assert len(figure.data) == 4
    assert figure.layout.height == 560
    with pytest.raises(KdalabError, match="at least one interval"):
        density_figure(Curve([], [], []), curve, GIB)
