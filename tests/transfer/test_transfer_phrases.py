"""What the log says of moving state can be said in three languages."""

from __future__ import annotations

import re

import pytest

from kdalab.engine import exchange_events as ex
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
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: e.sentence()[:40])
def test_every_event_of_a_transfer_is_translated(event: Event) -> None:
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        said = say(lang, event.sentence())
        assert re.search(script, said)
        assert not re.search(r"\b(the|state|tokens|is)\b", said), said
        assert (event.request or "192") in said or event.request == ""
