"""A fault damages exactly what it says, is in the log, and leaves the cache clean."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from engine_cases import SHARED, TINY, assert_nothing_leaks, engine, of_type, tail

from kdalab.engine import Engine, Faults, Request
from kdalab.engine import events as ev
from kdalab.engine.drafters import Scripted

PREFIX = SHARED[:128]
B, C, D = PREFIX + tail(1, 20), PREFIX + tail(2, 20), PREFIX + tail(3, 20)


def with_prefix(**changes: object) -> Engine:
    e = engine(n_active=4, placement="every:128", **changes)
    e.submit(PREFIX + tail(9, 5), 1)
    e.run()
    return e


def switch(e: Engine, *names: str) -> None:
    e.config = dataclasses.replace(e.config, faults=Faults.named(list(names)))


def cached_bytes(e: Engine) -> list[torch.Tensor]:
    slots = [n.state.slot for n in e.cache.nodes.values() if n.state is not None]
    return [part for slot in slots for part in e.checkpoints.read(slot)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("strategy", ["copy", "extra_buffer", "extra_buffer_lazy"])
def test_without_copy_on_write_a_request_goes_on_from_what_the_other_wrote(strategy: str) -> None:
    e = with_prefix(strategy=strategy)
    before = cached_bytes(e)
    switch(e, "share_checkpoint")
    b, c = e.submit(B, 3), e.submit(C, 3)
    e.run()
    # C's prompt ran on top of B's, as the model itself does when it is given both.
    recurrent, conv, latent = TINY.states(PREFIX)
    for prompt in (B, C):
        ids = torch.tensor(prompt[128:])
        out = TINY.prefill_piece(ids, 128, recurrent, conv, latent, logits="last")
        recurrent, conv = out.recurrent, out.conv
    assert torch.equal(c.logits[len(C) - 128 - 1], out.logits[-1])
    assert b.generated[0] == TINY.greedy(B, 1)[0]  # it came first, and its prompt was its own
    assert same(cached_bytes(e), before)
    assert_nothing_leaks(e)


def test_who_read_whose_state_is_in_the_log_once() -> None:
    e = with_prefix()
    switch(e, "share_checkpoint")
    e.submit(B, 4, "B")
    e.submit(C, 4, "C")
    e.run()
    e.submit(D, 2, "D")
    e.run()
    assert not of_type(e, ev.CopiedOnWrite)
    said = [(x.request, x.what.split(" as ")[-1][:1]) for x in of_type(e, ev.FaultInjected)]
    pairs = [p for p in said if p[1] in "BC" and p[1] != p[0]]
    assert ("C", "B") in pairs  # C began where B had written
    assert ("B", "C") in pairs  # and B's next token read what C wrote
    assert ("D", "C") in pairs  # a later request finds the state spoiled as well
    assert len(pairs) == len(set(pairs))


def test_a_clean_request_after_the_fault_is_exact() -> None:
    e = with_prefix()
    switch(e, "share_checkpoint")
    e.submit(B, 3)
    e.submit(C, 3)
    e.run()
    switch(e)
    d = e.submit(D, 6)
    e.run()
    assert d.restore == 128
    assert d.generated == TINY.greedy(D, 6)
    assert torch.equal(torch.stack(d.logits)[: len(D) - 128], TINY.logits(D)[128:])


PROMPT, NEW = SHARED[:118], 24
OUTPUT = TINY.greedy(PROMPT, NEW)


def drafting(miss: int, *faults: str) -> tuple[Engine, Request]:
    script = Scripted((tuple(PROMPT + OUTPUT),), miss)
    e = engine(draft_tokens=3, drafter=script, decode_interval=64, faults=Faults.named([*faults]))
    return e, e.submit(PROMPT, NEW)


def test_a_kept_rejected_state_is_the_one_after_the_last_draft() -> None:
    e, r = drafting(1, "keep_rejected")
    while not of_type(e, ev.Verified):
        e.step()
    recurrent, conv, latent = TINY.states(PROMPT)
    wrong = [OUTPUT[0], *(t ^ 1 for t in OUTPUT[1:4])]
    for t, token in enumerate(wrong):
        step = TINY.decode(torch.tensor([token]), [118 + t], recurrent[None], conv[None], [latent])
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
    assert r.computed == 119
    held = e.state_of(r)
    assert torch.equal(held[0], recurrent)
    assert torch.equal(held[1], conv)
    assert [x.fault for x in of_type(e, ev.FaultInjected)] == ["keep_rejected"]


def test_right_drafts_are_not_touched_by_the_fault() -> None:
    e, r = drafting(0, "keep_rejected")
    e.run()
    assert r.generated == OUTPUT
    assert not of_type(e, ev.FaultInjected)


def test_a_kept_rejected_state_never_becomes_a_checkpoint() -> None:
    e, _ = drafting(4, "keep_rejected")
    e.run()
    assert of_type(e, ev.FaultInjected)
    assert not of_type(e, ev.Snapshotted)
    clean, _ = drafting(4)
    clean.run()
    assert [x.boundary for x in of_type(clean, ev.Snapshotted)] == [64, 128]
    assert_nothing_leaks(e)
