"""What must hold to the last bit in fp32: a token depends on its prefix alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import assert_same_bits, cells, odd_config, prompt, states_after

from kdalab.model import CELL, HybridModel, tiny_model
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build

N = 200
GRID = (0, 64, 128, 192)


@pytest.fixture(scope="module", params=["tiny", "odd"])
def model(request: pytest.FixtureRequest, tiny: HybridModel) -> HybridModel:
    return tiny if request.param == "tiny" else build(odd_config(), tiny_weights(1, odd_config()))


# -- prefill ---------------------------------------------------------------------------------


def test_logits_and_latents_of_a_prefix_do_not_depend_on_the_length_of_the_prompt(
    model: HybridModel,
) -> None:
    tokens = prompt(N)
    whole = cells(model, tokens)
    logits = torch.cat([out.logits for out in whole if out.logits is not None])
    latent = torch.cat([out.latent for out in whole], 1)
    before = {0: model.zero_state()[:2]} | {
        CELL * (i + 1): (out.recurrent, out.conv) for i, out in enumerate(whole)
    }
    for n in range(1, N + 1):  # the last cell of a prompt of n tokens, after whole cells
        start = (n - 1) // CELL * CELL
        out = model.prefill_cell(tokens[start:n], start, *before[start], latent[:, :start], "all")
        assert out.logits is not None
        assert_same_bits([out.logits, out.latent], [logits[start:n], latent[:, start:n]])
        assert_same_bits(model.logits(tokens[:n])[-1:], logits[n - 1 : n])


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, N), other=st.integers(1, 1000), extra=st.integers(0, 130))
def test_what_comes_after_a_boundary_changes_nothing_before_it(
    tiny: HybridModel, n: int, other: int, extra: int
) -> None:
    torch.set_num_threads(1)
    tokens = prompt(n, seed=n)
    longer = torch.cat([tokens, prompt(extra, seed=other)])
    whole, short = cells(tiny, longer), cells(tiny, tokens)
    for i, out in enumerate(short):
        rows = len(out.latent[0])
        assert_same_bits(
            [out.logits, out.latent],  # type: ignore[list-item]
            [whole[i].logits[:rows], whole[i].latent[:, :rows]],  # type: ignore[index]
        )
        if rows == CELL:
            assert_same_bits(out[1:3], whole[i][1:3])


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 62, 63])
def test_states_after_a_short_cell_do_not_depend_on_what_padding_rows_would_hold(
    model: HybridModel, n: int
) -> None:
    """The state after n tokens equals the one that n + 1 further cells would have started from:
    it is compared with the same tokens one by one, in fp64, where only a real leak can differ."""
    weights = tiny_weights(1, model.config, torch.float64)
    exact = build(model.config, weights)
    tokens = prompt(n, seed=n)
    got = cells(exact, tokens)[-1]
    recurrent, conv, latent = exact.zero_state()
    for i in range(n):
        step = exact.decode(tokens[i : i + 1], [i], recurrent[None], conv[None], [latent])
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
    for a, b in zip(got[1:], (recurrent, conv, latent), strict=True):
        assert float((a - b).abs().max()) < 1e-10


@pytest.mark.parametrize("boundary", GRID)
def test_a_restart_on_the_grid_equals_straight_through(model: HybridModel, boundary: int) -> None:
    tokens = prompt(N, seed=9)
    straight = cells(model, tokens)
    states = states_after(model, tokens[:boundary])
    restarted = cells(model, tokens[boundary:], boundary, states)
    for out, expected in zip(restarted, straight[boundary // CELL :], strict=True):
        assert_same_bits(out, expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("pieces", [[64, 64, 64, 8], [128, 72], [64, 136], [192, 8]])
def test_pieces_on_the_grid_equal_one_piece(model: HybridModel, pieces: list[int]) -> None:
    tokens = prompt(N, seed=2)
    assert_same_bits([model.logits(tokens, pieces)], [model.logits(tokens)])


def test_the_logits_that_are_asked_for_change_no_bit(model: HybridModel) -> None:
    tokens = prompt(50)
    state = model.zero_state()
    outs = [model.prefill_cell(tokens, 0, *state, logits=kind) for kind in ("all", "last", "none")]  # type: ignore[arg-type]
    assert outs[2].logits is None
    assert_same_bits([outs[0].logits[-1:]], [outs[1].logits])  # type: ignore[index, list-item]
    for out in outs[1:]:
        assert_same_bits(out[1:], outs[0][1:])


# -- decode ----------------------------------------------------------------------------------

LENGTHS = (37, 1, 64, 100, 5, 3, 63, 65, 66, 8, 9, 10, 11)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 8, 9, 13])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", ["tiny", "odd"])
def test_a_decoded_token_depends_neither_on_its_row_nor_on_its_neighbours(
    size: str, threads: int, rows: int
) -> None:
    torch.set_num_threads(threads)
    if size == "tiny":
        model = tiny_model(decode_rows=rows)
    else:
        model = build(odd_config(), tiny_weights(1, odd_config()), rows)
    states = [states_after(model, prompt(n, seed=n)) for n in LENGTHS[:rows]]
    tokens = prompt(rows, seed=1)

    def step(order: list[int]) -> list[tuple[torch.Tensor, ...]]:
        out = model.decode(
            tokens[order],
            [LENGTHS[i] for i in order],
            torch.stack([states[i].recurrent for i in order]),
            torch.stack([states[i].conv for i in order]),
            [states[i].latent for i in order],
        )
        return [tuple(field[row] for field in out) for row in range(len(order))]

    alone = [step([i])[0] for i in range(rows)]
    orders = [[(i + shift) % rows for i in range(count)] for count in (2, rows) for shift in (0, 1)]
    for order in [o[:rows] for o in orders] + [list(reversed(range(rows)))]:
        for i, got in zip(order, step(order), strict=True):
            assert_same_bits(got, alone[i])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), neighbours=st.integers(0, 7))
def test_a_decode_of_several_steps_equals_the_same_steps_alone(
    tiny: HybridModel, seed: int, neighbours: int
) -> None:
    torch.set_num_threads(1)

    def run(others: int, row: int) -> list[torch.Tensor]:
        order = list(range(1, others + 1))
        order.insert(row, 0)
        lengths = [1 + (seed + 31 * i) % 90 for i in order]
        states = [states_after(tiny, prompt(n, seed=n)) for n in lengths]
        token = torch.tensor([i % 7 for i in order])
        recurrent = torch.stack([s.recurrent for s in states])
        conv = torch.stack([s.conv for s in states])
        latents = [s.latent for s in states]
        seen = []
        for _ in range(3):
            out = tiny.decode(token, [c.shape[1] for c in latents], recurrent, conv, latents)
            recurrent, conv, token = out.recurrent, out.conv, out.logits.argmax(-1)
            pairs = zip(latents, out.latent, strict=True)
            latents = [torch.cat([c, new[:, None]], 1) for c, new in pairs]
            seen += [field[row] for field in out]
        return seen

    assert_same_bits(run(neighbours, seed % (neighbours + 1)), run(0, 0))


# -- threads ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_two_runs_on_the_same_number_of_threads_agree_and_restore_exactly(
    model: HybridModel, threads: int
) -> None:
    torch.set_num_threads(threads)
    tokens = prompt(N, seed=4)
    first = cells(model, tokens)
    for out, again in zip(cells(model, tokens), first, strict=True):
        assert_same_bits(out, again)  # type: ignore[arg-type]
    states = states_after(model, tokens[:64])
    assert_same_bits(cells(model, tokens[64:], 64, states)[-1], first[-1])  # type: ignore[arg-type]
    assert_same_bits([model.logits(tokens[:70])], [model.logits(tokens)[:70]])
