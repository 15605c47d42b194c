"""What an engine cannot be, or do, is refused when it is asked for, by a message that says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from engine_cases import SHARED, TINY, assert_nothing_leaks, engine, of_type, tinier_model

from kdalab.engine import Engine, EngineConfig, Faults, HostConfig
from kdalab.engine import events as ev
from kdalab.errors import KdalabError

HUGE = 2**4000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "cuda"}, "backend = 'cuda' for extend"),
        ({"backend": None}, "backend = 'None'"),
        ({"memory_bytes": 10**6}, "memory_bytes = 1,000,000 sizes unified memory"),
        ({"checkpoint_limit": 10**6}, "checkpoint_limit = 1,000,000 bounds an INT8 pool"),
        ({"overlap": "no"}, "overlap = 'no'; it must be True or False"),
        ({"poison": 1}, "poison = 1; it must be True or False"),
        ({"retention": 7}, "retention = 7; use a Retention"),
        ({"faults": ["skip_replay"]}, r"faults = \['skip_replay'\]; use Faults"),
        ({"host": True}, "host = True; use HostConfig"),
        ({"host": {"n_pages": 3}}, "host = .*; use HostConfig"),
        ({"n_pages": "many"}, "n_pages = 'many'; it must be a whole number"),
        ({"n_pages": HUGE}, "n_pages = a number of 4,001 bits; .* at most 2,147,483,647"),
        ({"n_active": True}, "n_active = True"),
        ({"draft_tokens": -1}, "draft_tokens = -1"),
        ({"draft_tokens": HUGE}, "draft_tokens = a number of"),
        ({"drafter": object}, "drafter = .*needs propose"),
        ({"placement": "leaf"}, "placement = 'leaf'; use parse_placement"),
        ({"strategy": None}, "strategy = None; use one of copy"),
        ({"memory": ["split"]}, r"memory = \['split'\]; use one of split, unified"),
        ({"checkpoint_dtype": 8}, "checkpoint_dtype = 8; use one of native, int8"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KdalabError, match=message):
        EngineConfig(**changes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HostConfig(n_pages=HUGE), "host.n_pages = a number of"),
        (lambda: Faults(skip_replay="yes"), "fault skip_replay = 'yes'"),
        (lambda: Faults.named("skip_replay"), "faults are a list of names"),
        (lambda: Engine(TINY, {"n_pages": 3}), "give an EngineConfig"),
        (lambda: Engine(TINY, identity="mine"), "give a StateIdentity"),
        (lambda: engine(n_pages=2**31 - 1), "the pools need .*this machine has"),
        (lambda: engine(memory="unified", memory_bytes=2**61), "the pools need .*machine has"),
        (
            lambda: engine(host=HostConfig(n_pages=2**31 - 1)),
            "the pools need .* Lower .*host's sizes",
        ),
    ],
)
def test_an_engine_that_cannot_be_built_says_why(build: Any, message: str) -> None:
    with pytest.raises(KdalabError, match=message):
        build()


@pytest.mark.parametrize("strategy", ["copy", "extra_buffer", "extra_buffer_lazy"])
def test_unified_memory_for_less_than_one_request_is_refused_with_the_arithmetic(
    strategy: str,
) -> None:
    def build(nbytes: int | None, n_checkpoints: int = 1) -> Engine:
        sizes = {"n_pages": 1, "n_active": 1, "n_checkpoints": n_checkpoints}
        changes = {"memory": "unified", "memory_bytes": nbytes, "strategy": strategy}
        return Engine(TINY, EngineConfig(**sizes, **changes))

    with pytest.raises(KdalabError, match=r"states of [\d,]+ bytes = .*bytes are enough") as told:
        build(None)
    enough = int(str(told.value).split(" bytes are enough")[0].split("; ")[-1].replace(",", ""))
    e = build(enough)
    assert e.page_limit >= 1
    request = e.submit([1] * e.config.page_tokens, 1)
    e.run(20)
    assert request.finish_reason == "length"
    assert_nothing_leaks(e)


def run_one(e: Engine) -> None:
    e.submit(SHARED[:20], 1, "A")
    e.run()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.submit([1], 1, stop_tokens=3), "stop_tokens must be a list of whole numbers"),
        (lambda e: e.submit([1], 1, stop_tokens="end"), "stop_tokens must be a list of ids"),
        (lambda e: e.submit([1], 1, stop_tokens=[0.5]), "stop_tokens must be a list of whole"),
        (lambda e: e.submit([1], 1, identity="mine"), "give a StateIdentity"),
        (lambda e: e.abort("Z"), "no request 'Z'; known: A"),
        (lambda e: e.abort(None), "no request None"),
        (lambda e: e.settle("Z"), "no request 'Z'"),
        (lambda e: e.settle("A"), "request 'A' is finished, not running"),
        (lambda e: e.retract(e.requests["A"], "why"), "request 'A' is finished, not running"),
        (lambda e: e.retract("A", "why"), "'A' is not a request"),
        (lambda e: e.state_of(e.requests["A"]), "request 'A' is finished"),
    ],
)
def test_a_wrong_call_changes_nothing(call: Any, message: str) -> None:
    e = engine()
    run_one(e)
    before = len(e.events)
    with pytest.raises(KdalabError, match=message):
        call(e)
    assert len(e.events) == before
    assert list(e.requests) == ["A"]
    assert_nothing_leaks(e)


def test_a_request_of_another_engine_is_refused() -> None:
    e, other = engine(), engine()
    theirs = other.submit(SHARED[:20], 4, "A")
    other.step()
    e.submit(SHARED[:20], 4, "A")
    e.step()
    with pytest.raises(KdalabError, match="not of this engine"):
        e.retract(theirs, "why")


class Drafting:
    """A drafter that gives back what it was told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose(self, tokens: Sequence[int], n: int) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ZeroDivisionError("by zero"), "the drafter failed: ZeroDivisionError: by zero"),
        (None, "the drafter failed: TypeError"),
        ([1.5], "the drafter failed: TypeError"),
        (["a"], "the drafter failed: TypeError"),
        ([1] * 50, "more than the 3 that were asked for"),
        ([1, 2**70], "token id 1180591620717411303424 is outside the vocabulary"),
        ([-1], "token id -1 is outside the vocabulary"),
    ],
)
def test_whatever_a_drafter_does_the_request_goes_on(answer: Any, reason: str) -> None:
    model = tinier_model()
    prompt = list(range(40))
    e = engine(model, draft_tokens=3, drafter=Drafting(answer))
    request = e.submit(prompt, 6)
    e.run()
    assert request.generated == model.greedy(prompt, 6)
    assert reason in of_type(e, ev.DraftsDropped)[0].reason
    assert_nothing_leaks(e)


class Placing:
    """A placement that gives back what it was told to, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def boundaries(self, *_: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [ZeroDivisionError("oh"), None, (100,), (0,), (640,), ("a",)])
def test_a_placement_that_cannot_be_ends_its_request_and_no_other(answer: Any) -> None:
    e = Engine(TINY, EngineConfig(check_every_step=True))
    e.submit(SHARED[:150], 2)
    e.run()
    object.__setattr__(e.config, "placement", Placing(answer))
    request = e.submit(SHARED[:150], 2)
    e.run()
    assert request.finish_reason.startswith("failed: the placement")
    assert_nothing_leaks(e)
