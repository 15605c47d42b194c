"""Both ways request by request: the same look-ups as the comparison's own account."""

import pytest

from kdalab.lessons import run_both
from kdalab.viz.side_by_side import SideRow, side_by_side_svg


@pytest.mark.parametrize("name", ["4480-coarse", "256-again"])
def test_requests_add_up_to_the_comparison(name):
    run = run_both(name, repeats=1)
    found = run.comparison
    assert len(run.asked) == found.requests
    assert sum(a.radix.restore for a in run.asked) == found.radix.hit_tokens
    assert sum(a.block.restore for a in run.asked) == found.block.hit_tokens
    assert sum(a.n_tokens for a in run.asked) == found.input_tokens
    first = next(a for a in run.asked if a.radix.restore != a.block.restore)
    assert found.first is not None
    assert (first.request, first.radix.why) == (found.first.request, found.first.radix_why)


def test_a_prompt_that_has_not_arrived_shows_nothing_found():
    words = dict.fromkeys(("scale", "restored", "replay", "new"), "<w>")
    rows = [SideRow("prompt A", 100, [("t", 0, 0), ("b", 64, 32)]), SideRow("prompt B", 50, [])]
    early = side_by_side_svg(rows, -1, label="l", words=words)
    late = side_by_side_svg(rows, 0, label="l", words=words)
    assert early.count("pennant") == 0
    assert late.count("pennant") == 1  # only the blocks restored something
    assert "32 / 100" in late
    assert "<w>" not in late
