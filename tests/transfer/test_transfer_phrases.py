"""What the log says of moving state can be said in three languages."""

from __future__ import annotations

import re

import pytest

from kdalab.engine import exchange_events as ex
from kdalab.engine import request_events as rq
from kdalab.engine.block import events as bl
from kdalab.engine.event import Event
from kdalab.phrases import say

EVENTS: list[Event] = [
    ex.Sent("A", "decode", 200, 10, 20),
    ex.Sent("A", "", 200, 10, 20),
    ex.Sent("", "decode", 200, 10, 20),
    ex.Sent("", "", 200, 10, 20),
    ex.Received("A", "prefill", 200, (1,), 30),
    ex.Installed("A", 3, 200, 30),
    ex.Fetched("A", "B", 4, 192, 1, (), (), False, 30),
    ex.Fetched("", "B", 4, 192, 1, (), (), False, 30),
    ex.FetchFailed("A", "B", 192, "B0"),
    ex.FetchFailed("A", "B", 192, "no room for it beside the request itself"),
    ex.FetchFailed(
        "A", "B", 192, "no room for 3 latent pages and a checkpoint: what is cached is in use"
    ),
    ex.Received("A", "", 200, (1,), 30),
    ex.Expected("A", "", 3, 0, 192, (), (1, 2)),
    ex.Expected("A", "prefill", 3, 0, 192, (), (1, 2)),
    ex.PiecesLanded("A", 128, 192, 192),
    ex.StateLanded("A", "", 3, 192, 0, 30),
    ex.StateLanded("A", "prefill", 3, 192, 0, 30),
    bl.Installed("A", "", 192, 30),
    bl.Installed("A", "B", 192, 30),
]

FELL_BACK = [
    "no prefill process is known",
    "the connection ended before the state had arrived",
    "the connection ended before latent KV of 64 tokens had arrived",
]
"""Reasons why a state did not come, in the parentheses of ``Retracted``."""


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.sentence()[:40])
def test_every_event_of_a_transfer_is_translated(event: Event) -> None:
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        said = say(lang, event.sentence())
        assert re.search(script, said)
        assert not re.search(r"\b(the|state|tokens|is|elsewhere|no)\b", said), said
        assert (event.request or "192") in said or event.request == ""


@pytest.mark.parametrize("why", FELL_BACK)
def test_why_a_request_prefills_itself_is_translated(why: str) -> None:
    event = rq.Retracted("A", f"its state did not come ({why})", 1, (2, 3), 0)
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        said = say(lang, event.sentence())
        assert re.search(script, said)
        assert not re.search(r"\b(the|state|tokens|is|no|ended)\b", said), said


@pytest.mark.parametrize("reason", ["sent", "installed"])
def test_why_a_request_that_moved_ends_is_translated(reason: str) -> None:
    event = rq.Finished("A", reason, 1, (2, 3), 0)
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        said = say(lang, event.sentence())
        assert re.search(script, said)
        assert reason not in said, said
