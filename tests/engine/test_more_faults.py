"""Faults of snapshots, locks, images and steps: they damage their reader, and the cache stays."""

from __future__ import annotations

import dataclasses

import torch
from engine_cases import SHARED, TINY, assert_nothing_leaks, engine, of_type, tail

from kdalab.engine import Engine, Faults
from kdalab.engine import events as ev
from kdalab.engine.block import BlockEngine, BlockEngineConfig
from kdalab.engine.media import Media, Span, media_ids

PREFIX = SHARED[:128]
B = PREFIX + tail(1, 20)


def switch(e: Engine, *names: str) -> None:
    e.config = dataclasses.replace(e.config, faults=Faults.named(list(names)))


def cached(e: Engine) -> dict[int, torch.Tensor]:
    nodes = [n for n in e.cache.nodes.values() if n.state is not None]
    return {n.end: e.checkpoints.read(n.state.slot)[0] for n in nodes}


def off_at_prompt_end(e: Engine, request) -> float:
    """How far the last logits of the prompt are from those of the model alone."""
    true = TINY.prefill_cell  # the whole prompt from zero, cell by cell
    recurrent, conv, latent = TINY.zero_state()
    for first in range(0, request.n_tokens, 64):
        ids = torch.tensor(request.tokens[first : first + 64])
        out = true(ids, first, recurrent, conv, latent, logits="last")
        recurrent, conv, latent = out.recurrent, out.conv, torch.cat([latent, out.latent], 1)
    mine = request.logits[request.n_tokens - request.restore - 1]
    return float((mine - out.logits[-1]).abs().max())


def test_a_snapshot_that_is_no_copy_shows_what_its_maker_became() -> None:
    e = engine(n_active=2, placement="every:128")
    switch(e, "alias_snapshot")
    e.submit(PREFIX + tail(9, 30), 1, "A")
    e.run()
    true = TINY.states(PREFIX)[0]
    b = e.submit(B, 2, "B")
    e.run()
    assert b.restore == 128
    assert off_at_prompt_end(e, b) > 1e-3
    assert torch.equal(cached(e)[128], true)  # the cache itself has the right state
    switch(e)
    c = e.submit(B, 2, "C")
    e.run()
    assert off_at_prompt_end(e, c) == 0.0
    assert_nothing_leaks(e)


def test_a_locked_checkpoint_that_is_given_away_spoils_who_waits_for_it() -> None:
    e = engine(n_active=2, n_checkpoints=1, placement="every:128")
    e.submit(PREFIX + tail(9, 5), 1, "A")
    e.run()
    before = cached(e)
    switch(e, "free_locked")
    e.submit(tail(5, 150), 1, "C")  # comes first, and wants a snapshot at 128
    b = e.submit(B, 2, "B")
    e.run()
    assert [x.request for x in of_type(e, ev.FaultInjected)] == ["C", "B"]
    assert off_at_prompt_end(e, b) > 1e-3
    assert torch.equal(cached(e)[128], before[128])
    assert_nothing_leaks(e)


def test_without_a_clear_the_last_owner_is_read() -> None:
    e = engine(n_active=1, placement="every:128", poison=False, check_every_step=False)
    e.submit(PREFIX, 1, "A")
    e.run()
    switch(e, "skip_clear")
    d = e.submit(tail(7, 40), 1, "D")
    e.run()
    assert off_at_prompt_end(e, d) > 1e-3
    poisoned = engine(n_active=1, placement="every:128")
    switch(poisoned, "skip_clear")
    d = poisoned.submit(tail(7, 40), 1, "D")
    poisoned.run()
    assert d.finish_reason.startswith("failed")  # poison shows it at once


def pictured(digest: bytes) -> tuple[list[int], Media]:
    ids = [*SHARED[:20], *media_ids(digest, 4, TINY.vocab_size), *SHARED[20:130]]
    size = TINY.config.hidden_size
    values = torch.randn(4, size, generator=torch.Generator().manual_seed(digest[0]))
    return ids, Media((Span(20, 4, digest, values),))


def test_a_key_without_the_image_finds_the_other_image() -> None:
    e = engine(placement="every:64")
    ids, media = pictured(b"1" * 16)
    e.submit(ids, 1, "A", media=media)
    e.run()
    ids, media = pictured(b"2" * 16)
    assert e.submit(ids, 1, "B", media=media).key.n_tokens == len(ids)
    e.run()
    assert e.requests["B"].restore == 0
    switch(e, "ignore_images")
    c = e.submit(ids, 1, "C", media=media)
    e.run()
    assert c.restore == 128
    assert (c.logits[-1] - e.requests["B"].logits[-1]).abs().max() > 1e-4


def test_a_block_of_this_step_is_not_there_yet() -> None:
    config = BlockEngineConfig(
        n_blocks=40, poison=False, keep_logits=True, attention_block=64, state_block=64, unit=64,
        layout="packed", retention=None, faults=Faults(read_unwritten=True),
    )  # fmt: skip
    e = BlockEngine(TINY, config)
    e.submit(SHARED[:128], 1, "A")
    b = e.submit(B, 1, "B")
    e.run()
    assert [x.request for x in of_type(e, ev.FaultInjected)] == ["B"]
    assert b.spoiled
    assert b.finish_reason.startswith("failed") or off_at_prompt_end(e, b) > 1e-3
    e.config = dataclasses.replace(config, faults=Faults())
    c = e.submit(B + tail(3, 5), 1, "C")
    e.run()
    assert c.restore > 0
    assert off_at_prompt_end(e, c) == 0.0  # what B left is not in the cache
    e.check()
