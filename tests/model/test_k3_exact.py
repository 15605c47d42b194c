"""With every switch of Kimi K3 on, a token still depends on its prefix alone, to the last bit."""

from __future__ import annotations

import pytest
import torch
from model_cases import States, assert_same_bits, cells, odd_k3_config, prompt, states_after

from kdalab.engine import Engine, EngineConfig
from kdalab.model import CELL, HybridModel, named_model, tiny_k3_model
from kdalab.model.tiny import tiny_weights
from kdalab.model.weights import build
from kdalab.verify.restore import Worst, compare_states

N = 200


def k3(name: str, dtype: torch.dtype = torch.float32, rows: int = 8) -> HybridModel:
    if name == "tiny":
        return tiny_k3_model(0, dtype, rows)
    return build(odd_k3_config(), tiny_weights(1, odd_k3_config(), dtype), rows)


@pytest.fixture(scope="module", params=["tiny", "odd"])
def model(request: pytest.FixtureRequest) -> HybridModel:
    return k3(request.param)


def test_a_prefix_does_not_depend_on_the_length_of_the_prompt(model: HybridModel) -> None:
    tokens = prompt(N)
    whole = cells(model, tokens)
    logits = torch.cat([out.logits for out in whole if out.logits is not None])
    latent = torch.cat([out.latent for out in whole], 1)
    before = {0: model.zero_state()[:2]} | {
        CELL * (i + 1): (out.recurrent, out.conv) for i, out in enumerate(whole)
    }
    for n in (*range(1, 67, 3), 64, 65, 100, 129, 131, 199):
        start = (n - 1) // CELL * CELL
        out = model.prefill_cell(tokens[start:n], start, *before[start], latent[:, :start], "all")
        assert out.logits is not None
        assert_same_bits([out.logits, out.latent], [logits[start:n], latent[:, start:n]])


@pytest.mark.parametrize("boundary", [64, 128, 192])
def test_a_restart_on_the_grid_equals_straight_through(model: HybridModel, boundary: int) -> None:
    tokens = prompt(N, seed=9)
    straight = cells(model, tokens)
    states = states_after(model, tokens[:boundary])
    restarted = cells(model, tokens[boundary:], boundary, states)
    for out, expected in zip(restarted, straight[boundary // CELL :], strict=True):
        assert_same_bits(out, expected)  # type: ignore[arg-type]


LENGTHS = (37, 1, 64, 100, 5, 3, 63, 65, 66, 8, 9, 10, 11)


@pytest.mark.parametrize(
    ("size", "threads", "rows"),
    [("tiny", 1, 3), ("tiny", 1, 8), ("tiny", 1, 13), ("odd", 1, 8), ("odd", 1, 13),
     ("odd", 2, 8)],
)  # fmt: skip
def test_a_decoded_token_depends_neither_on_its_row_nor_on_its_neighbours(
    size: str, threads: int, rows: int
) -> None:
    model = k3(size, rows=rows)
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


@pytest.mark.parametrize("fill", [0.0, 1e8])
def test_a_neighbour_with_extreme_states_changes_nothing(model: HybridModel, fill: float) -> None:
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
    assert_same_bits([f[0] for f in both], [f[0] for f in alone])


@pytest.mark.parametrize("size", ["tiny", "odd"])
def test_pieces_equal_one_piece_in_fp64(size: str) -> None:
    model = k3(size, torch.float64)
    tokens = prompt(N, seed=3)
    whole, states = model.logits(tokens), model.states(tokens)
    for pieces in ([1, 2, 60, 7, 64, 66], [199, 1], [100, 100], [63, 2, 135]):
        assert float((model.logits(tokens, pieces) - whole).abs().max()) < 1e-10
    half = States(*model.states(tokens[: N - 3]))
    for at in range(N - 3, N):
        step = model.decode(
            tokens[at : at + 1], [at], half.recurrent[None], half.conv[None], [half.latent]
        )
        latent = torch.cat([half.latent, step.latent[0][:, None]], 1)
        half = States(step.recurrent[0], step.conv[0], latent)
        assert float((step.logits[0] - whole[at]).abs().max()) < 1e-10
    for a, b in zip(half, states, strict=True):
        assert float((a - b).abs().max()) < 1e-10


@pytest.mark.parametrize("lost", ["recurrent", "conv", "latent"])
def test_a_lost_state_is_seen_in_every_logit_row_of_the_next_cell(lost: str) -> None:
    model, tokens = k3("tiny"), prompt(128, seed=5)
    right = states_after(model, tokens[:64])
    wrong = right._replace(**{lost: torch.zeros_like(getattr(right, lost))})
    expected, got = (
        model.prefill_cell(tokens[64:], 64, *states, logits="all").logits
        for states in (right, wrong)
    )
    assert expected is not None
    assert got is not None
    assert 1 < float(expected.std()) < 4
    assert float((got - expected).abs().amax(-1).min()) > 0.05


def test_the_engine_restores_it_exactly() -> None:
    engine = Engine(named_model("tiny-k3"), EngineConfig(page_tokens=8, keep_logits=True))
    base, other = prompt(N, seed=1).tolist(), prompt(90, seed=2).tolist()
    worst = Worst()
    for tokens in (base, base[:150] + other, base[:131], base):
        request = engine.submit(tokens, max_new_tokens=2)
        while not engine.is_idle:
            engine.step()
            engine.check()
            if request.phase == "decode" and request.computed == request.n_tokens:
                alone = compare_states(engine, request, worst)
        assert request.generated == alone
    assert (worst.cold, worst.restored, worst.replayed) == (1, 3, 1)
    assert (worst.recurrent, worst.conv, worst.latent, worst.logits) == (0, 0, 0, 0)


def test_the_engine_generates_what_the_model_generates() -> None:
    model = named_model("tiny-k3")
    engine = Engine(model, EngineConfig(check_every_step=True))
    tokens = prompt(150, seed=8).tolist()
    requests = [engine.submit(tokens[:n], max_new_tokens=6) for n in (150, 70, 150)]
    engine.run()
    for request, n in zip(requests, (150, 70, 150), strict=True):
        assert request.generated == model.greedy(tokens[:n], 6)
