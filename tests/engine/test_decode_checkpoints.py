"""What was generated enters the cache too, cut to the last boundary whose state was kept; and a
request that is retracted goes on from there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_cases import (
    SHARED,
    TINY,
    assert_nothing_leaks,
    cached_states,
    engine,
    of_type,
    tail,
)

from kdalab.engine import Phase, fold
from kdalab.engine import events as ev

HOW = ["copy", "extra_buffer", "extra_buffer_lazy"]
PROMPT = SHARED[:100]


OUTPUT = TINY.greedy(PROMPT, 110)


def decoded_states(
    tokens: list[int], out: list[int]
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Length -> states after a prompt and each of its greedy tokens, by the model alone."""
    recurrent, conv, latent = TINY.states(tokens)
    found = {}
    for i, token in enumerate(out):
        step = TINY.decode(
            torch.tensor([token]), [len(tokens) + i], recurrent[None], conv[None], [latent]
        )
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        found[len(tokens) + i + 1] = (recurrent, conv)
    return found


STATES = decoded_states(PROMPT, OUTPUT)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("drafts", [0, 3])
def test_the_state_at_a_decode_boundary_is_that_of_just_that_token(how: str, drafts: int) -> None:
    e = engine(strategy=how, decode_interval=64, draft_tokens=drafts)
    r = e.submit(PROMPT, 100)
    e.run()
    assert r.generated == OUTPUT[:100]
    kept = cached_states(e)
    assert set(kept) == ({64, 128, 192} if how == "copy" else {64, 192})  # a donor gives its last
    for boundary, slot in kept.items():
        if boundary > len(PROMPT):
            for mine, expected in zip(e.checkpoints.read(slot), STATES[boundary], strict=True):
                assert torch.equal(mine, expected)
    assert_nothing_leaks(e)


@pytest.mark.parametrize("how", HOW)
def test_decoding_across_two_boundaries_leaves_the_first_state_as_it_was(how: str) -> None:
    e = engine(strategy=how, decode_interval=64, n_active=4)
    first = e.submit(PROMPT, 40)
    e.run()
    slot = cached_states(e)[128]
    before = e.checkpoints.read(slot)
    again = e.submit([*PROMPT, *first.generated[:-1]], 80)
    e.run()
    assert again.restore == 128
    for a, b in zip(before, e.checkpoints.read(slot), strict=True):
        assert torch.equal(a, b)


def test_a_boundary_is_tracked_once_whatever_the_prompts_length() -> None:
    for n in (126, 127, 128, 129):
        e = engine(strategy="extra_buffer", decode_interval=64)
        e.submit(SHARED[:n], 8)
        e.run()
        ends = [x.boundary for x in e.events if isinstance(x, ev.Tracked | ev.Donated)]
        expected = [64, 128, 128] if n < 128 else [64, 128]  # tracked, then donated at the end
        assert ends == expected


def test_the_next_turn_of_a_conversation_restores_what_was_generated() -> None:
    e = engine(decode_interval=64, n_active=4)
    first = e.submit(PROMPT, 60)
    e.run()
    turn = [*PROMPT, *first.generated, *tail(7)]
    second = e.submit(turn, 3)
    e.run()
    assert second.restore == 128
    # Exact against the same history: prompt by cells, output by decode steps, the rest by cells.
    recurrent, conv = STATES[128]
    latent = torch.cat([e.latents.gather(list(e.cache.nodes[n].pages), 64) for n in _path(e)], 1)
    out = TINY.prefill_cell(torch.tensor(turn[128:]), 128, recurrent, conv, latent, "all")
    assert out.logits is not None
    assert torch.equal(torch.stack(second.logits[: len(turn) - 128]), out.logits)


def _path(e: Any) -> list[int]:
    """Nodes of the path to 128, from the root."""
    nodes = [n for n in e.cache.nodes.values() if n.end in (64, 128)]
    return [n.id for n in sorted(nodes, key=lambda n: n.end)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("memory", ["split", "unified"])
@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_a_retracted_request_goes_on_where_it_was(how: str, memory: str, steps: int) -> None:
    e = engine(strategy=how, memory=memory, decode_interval=64, chunk_tokens=64, n_active=4)
    r = e.submit(PROMPT, 50)
    for _ in range(steps):
        e.step()
    known = list(r.generated)
    e.retract(r, "on purpose")
    e.check()
    assert (r.phase, r.slots, r.pages) == (Phase.WAITING, (), [])
    assert r.generated == known
    e.run()
    assert r.generated == OUTPUT[:50]
    if steps == 40:
        assert r.restore == 128  # from its own output, not only from its prompt
    assert fold(e.events, e.empty_view()) == e.view()
    assert_nothing_leaks(e)


def test_when_pages_run_out_the_latest_request_is_retracted_and_comes_back() -> None:
    e = engine(reserve_output=False, n_pages=16, n_active=3, placement="leaf")
    rs = [e.submit(tail(seed, 70), 60) for seed in range(3)]
    e.run()
    retracted = [x.request for x in of_type(e, ev.Retracted)]
    assert retracted
    assert "A" not in retracted  # the oldest is never the one
    for r in rs:
        assert r.generated == TINY.greedy(r.tokens, 60)
    assert_nothing_leaks(e)


def test_without_an_interval_no_output_is_cached() -> None:
    e = engine()
    e.submit(PROMPT, 60)
    e.run()
    assert set(cached_states(e)) == {64}
