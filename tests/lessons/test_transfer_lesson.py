"""The transfer lesson: bytes that add up, faults that cost what they must, and no more."""

from __future__ import annotations

import math

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import play_transfer, refused_offers, worth_lines
from kdalab.lessons.player import lesson_model
from kdalab.spec import resolve_model, state_sizes


def bytes_of(run, kind):
    return sum(getattr(p, kind) for p in run.parcels)


@pytest.mark.parametrize("have", [0, 128])
def test_only_missing_latent_kv_travels_and_the_state_always_once(have):
    run, model = play_transfer("pd", 128, have), lesson_model()
    token = model.n_mla_layers * model.latent_dim * 4
    recurrent, conv = (4 * math.prod(s) for s in (model.recurrent_shape, model.conv_shape))
    assert run.held == have
    assert bytes_of(run, "latent") == (run.n_tokens - have) * token
    assert (bytes_of(run, "recurrent"), bytes_of(run, "conv")) == (recurrent, conv)
    assert [p.kind for p in run.parcels][-1] == "state"
    assert all(p.frame > p.nbytes for p in run.parcels)
    assert run.generated == run.alone
    assert run.difference == 0.0
    assert run.chunks[-1][1] == run.n_tokens


@pytest.mark.parametrize(("fault", "fate"), [("cut", "cut"), ("corrupt", "damaged")])
def test_a_broken_piece_costs_a_second_attempt_for_what_is_missing(fault, fate):
    run = play_transfer("pd", 64, 64, (fault,))
    broken = next(p for p in run.parcels if p.fate == fate)
    assert run.asked == (64, broken.front)
    assert broken.why
    assert broken.front == broken.start  # nothing of it was used
    again = [p for p in run.parcels if p.attempt == 2]
    assert sum(p.latent for p in again) == (run.n_tokens - broken.front) * run.token_bytes
    assert run.generated == run.alone
    assert run.fell_back == ""


def test_a_piece_that_comes_twice_is_written_once():
    run = play_transfer("pd", 64, 0, ("duplicate",))
    first, second = run.parcels[:2]
    assert (first.seq, second.seq, second.fate) == (0, 0, "twice")
    assert first.front == second.front
    assert run.generated == run.alone


def test_a_state_that_comes_first_waits_for_the_last_latent_kv():
    run = play_transfer("pd", 64, 64, ("order",))
    state, late = run.parcels[-2:]
    assert (state.kind, state.fate, state.missing) == ("state", "kept", late.end - late.start)
    assert (late.fate, late.missing) == ("late", 0)
    assert run.generated == run.alone


def test_decoding_too_early_gives_other_tokens():
    run = play_transfer("pd", 64, 64, (), early=True)
    assert run.early == run.parcels[-1].end - run.parcels[-1].start > 0
    assert run.parcels[-1].fate == "unused"
    assert run.difference > 1e-3
    assert run.first_wrong is not None


def test_embeddings_of_another_image_are_refused_and_the_next_encoder_is_asked():
    run = play_transfer("epd", 128, 64, ("image",))
    other, right = run.parcels[:2]
    assert (other.fate, right.fate) == ("other", "taken")
    assert "another image" in other.why
    assert run.image is not None
    assert right.embedding == (run.image[1] - run.image[0]) * lesson_model().config.hidden_size * 4
    assert run.generated == run.alone


@pytest.mark.parametrize("have", [128, 192])
def test_latent_kv_that_decode_has_may_end_before_or_inside_an_image(have):
    run = play_transfer("epd", 128, have)
    assert run.image is not None
    assert (have > run.image[0], have < run.image[1]) == (have == 192, True)
    assert run.held == have
    assert bytes_of(run, "latent") == (run.n_tokens - have) * run.token_bytes
    assert run.generated == run.alone
    assert run.difference == 0.0


def test_the_curve_is_where_both_take_as_long():
    for line in worth_lines(10_000.0):
        sizes = state_sizes(resolve_model(line.model))
        for bandwidth, tokens in line.points[::17]:
            if tokens < float("inf"):
                ship = (sizes.checkpoint_bytes + sizes.latent_bytes(1) * tokens) / bandwidth
                assert ship == pytest.approx(tokens / 10_000.0)
            else:
                assert bandwidth <= line.floor


def test_the_matrix_has_a_control_and_every_other_offer_is_refused():
    rows = refused_offers()
    assert [r.refused for r in rows] == [False] + [True] * (len(rows) - 1)


@pytest.mark.parametrize("bad", [("x",), ("pd", 100), ("pd", 64, 70), ("pd", 64, 64, ("x",))])
def test_what_cannot_run_is_refused(bad):
    with pytest.raises(KdalabError):
        play_transfer(*bad)
