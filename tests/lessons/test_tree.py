"""The tree's stories against a list of prefixes that have a state."""

from __future__ import annotations

import pytest

from kdalab.cache import parse_placement
from kdalab.errors import KdalabError
from kdalab.lessons import STORIES, play_tree


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("placement", ["leaf", "leaf+branch", "every:64", "every:128"])
def test_with_room_for_all_each_prompt_restores_at_the_longest_prefix_with_a_state(
    story, placement
):
    run = play_tree(story, placement, 60, 200)
    known: list[tuple] = []
    states: set[tuple] = set()
    for name, parts in STORIES[story].items():
        tokens = tuple((part, i) for part, n in parts for i in range(n))
        usable = [s for s in states if tokens[: len(s)] == s and len(s) < len(tokens)]
        restore = max((len(s) for s in usable), default=0)
        assert run.hits[name] == restore, name
        match = max((_common(tokens, k) for k in known), default=0) // 16 * 16
        fork = match // 64 * 64
        deepest = max((len(s) for s in states if tokens[: len(s)] == s), default=0)
        at = parse_placement(placement).boundaries(
            len(tokens), restore, fork if fork > deepest else None, 64
        )
        states |= {tokens[:b] for b in at}
        known += [tokens[:b] for b in at]


def _common(a: tuple, b: tuple) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def test_the_path_rule_makes_states_young_that_nobody_read():
    orders = {}
    for rule in ("consumed", "path"):
        run = play_tree("turns", "every:64", 12, 80, refresh=rule)
        at = next(i for i, a in enumerate(run.acts) if a.request == "E" and a.kind == "release")
        orders[rule] = run.acts[at].state_order
    shallow = orders["consumed"][0]
    assert orders["path"].index(shallow) > 0
    assert sorted(orders["path"]) == sorted(orders["consumed"])


def test_what_cannot_hold_one_prompt_is_refused():
    with pytest.raises(KdalabError, match="20 pages"):
        play_tree("fan-out", "leaf", 4, 19)
    with pytest.raises(KdalabError, match="use one of"):
        play_tree("nowhere", "leaf", 4, 40)
