"""What must hold to the last bit in fp32: a token depends on its prefix alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import States, assert_same_bits, cells, odd_config, prompt, states_after

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
    for n in (*range(1, 67), *range(67, N, 7), N):
        # The last cell of a prompt of n tokens, after whole cells.
        start = (n - 1) // CELL * CELL
        out = model.prefill_cell(tokens[start:n], start, *before[start], latent[:, :start], "all")
        assert out.logits is not None
        assert_same_bits([out.logits, out.latent], [logits[start:n], latent[:, start:n]])
        if n in (1, 63, 64, 65, 129, N):
            assert_same_bits([model.logits(tokens[:n])], [logits[:n]])


@settings(max_examples=15, deadline=None)
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
    everything = model.prefill_cell(tokens, 0, *state, logits="all")
    last = model.prefill_cell(tokens, 0, *state, logits="last")
    none = model.prefill_cell(tokens, 0, *state, logits="none")
    assert none.logits is None
    assert everything.logits is not None
    assert last.logits is not None
    assert_same_bits([last.logits], [everything.logits[-1:]])
    for out in (last, none):
        assert_same_bits(out[1:], everything[1:])


# -- decode ----------------------------------------------------------------------------------

LENGTHS = (37, 1, 64, 100, 5, 3, 63, 65, 66, 8, 9, 10, 11)


@pytest.mark.parametrize(
    ("size", "threads", "rows"),
    [("tiny", 1, n) for n in (1, 3, 6, 7, 8, 13)]
    + [("odd", 1, n) for n in (3, 8, 13)]
    + [("tiny", 2, 7), ("odd", 2, 8)],
)
def test_a_decoded_token_depends_neither_on_its_row_nor_on_its_neighbours(
    size: str, threads: int, rows: int
) -> None:
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

    torch.set_num_threads(threads)
    alone = [step([i])[0] for i in range(rows)]
    for order in (list(range(rows))[:2], list(reversed(range(rows))), [*range(1, rows), 0]):
        for i, got in zip(order, step(order), strict=True):
            assert_same_bits(got, alone[i])


def beside(model: HybridModel, fill: float) -> tuple[list[torch.Tensor], ...]:
    """One row alone, and the same row beside one whose states are all ``fill``."""
    own = states_after(model, prompt(37))
    other = States(*(torch.full_like(t, fill) for t in own))
    token = torch.tensor([5, 6])
    alone = model.decode(token[:1], [37], own.recurrent[None], own.conv[None], [own.latent])
    both = model.decode(
        token,
        [37, 37],
        torch.stack([own.recurrent, other.recurrent]),
        torch.stack([own.conv, other.conv]),
        [own.latent, other.latent],
    )
    return [f[0] for f in alone], [f[0] for f in both]


@pytest.mark.parametrize("fill", [0.0, 1e3, 1e8])
def test_a_neighbour_with_extreme_states_changes_nothing(model: HybridModel, fill: float) -> None:
    alone, both = beside(model, fill)
    assert_same_bits(both, alone)


@settings(max_examples=10, deadline=None)
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
    tokens = prompt(130 if threads == 1 else 80, seed=4)
    first = cells(model, tokens)
    for out, again in zip(cells(model, tokens), first, strict=True):
        assert_same_bits(out, again)  # type: ignore[arg-type]
    states = states_after(model, tokens[:64])
    assert_same_bits(cells(model, tokens[64:], 64, states)[-1], first[-1])  # type: ignore[arg-type]
    assert_same_bits([model.logits(tokens[:70])], [model.logits(tokens)[:70]])
