"""Each rule's absence does damage that the healthy run has not, and each check has fired."""

from __future__ import annotations

import math

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import RULES, cold_run, play_rule
from kdalab.lessons.invariant_runs import B
from kdalab.lessons.unified import unified_model

BROKEN = [rule for rule in RULES if rule != "healthy"]
POLLUTED = {"cow": "B", "copy": "A", "lock": "C", "clear": "A", "image": "A", "whole": "other",
            "gate": "Z", "identity": "seed-1"}  # fmt: skip
WORDS = {
    "boundary": "holds a state of", "pair": "recurrent", "cow": "belongs to cache",
    "copy": "belongs to cache", "lock": "locked", "clear": "nan", "int8": "allowed 0",
    "draft": "allowed 0", "image": "not those of the image", "step": "computed in this step",
    "whole": "not here", "gate": "while a gate is held", "identity": "model_version",
}  # fmt: skip


def test_the_healthy_run_is_exact_and_is_what_the_network_alone_gives():
    found = play_rule("healthy")
    assert found.state == found.logits == 0.0
    assert found.first_wrong is None
    assert found.generated == cold_run(unified_model(), B, len(found.alone)).generated


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_that_is_off_does_damage_and_its_check_fires(rule):
    found = play_rule(rule)
    assert found.polluter == POLLUTED.get(rule, "")
    assert max(found.state, found.logits) > 1e-3 or math.isnan(found.state)
    assert WORDS[rule] in found.says or rule == "whole"
    assert found.says
    if rule != "identity" and rule != "gate":
        assert any(a.kind == "FaultInjected" for a in found.acts)


def test_most_rules_give_a_wrong_token_within_five():
    wrong = [rule for rule in BROKEN if play_rule(rule).first_wrong is not None]
    assert {"boundary", "cow", "copy", "lock", "draft", "gate", "identity"} <= set(wrong)


def test_an_unknown_rule_is_refused():
    with pytest.raises(KdalabError, match="healthy"):
        play_rule("x")
