"""A request that was retracted ends with the numbers it would have had, bit for bit."""

from __future__ import annotations

import pytest
import torch
from engine_cases import SHARED, assert_nothing_leaks, engine


@pytest.mark.parametrize("length", [100, 128, 127])
def test_a_resumed_request_does_not_restore_what_another_prefilled_over_its_output(
    length: int,
) -> None:
    prompt = SHARED[:length]
    alone = engine(n_active=4)
    right = alone.submit(prompt, 40)
    alone.run()
    e = engine(n_active=4)
    request = e.submit(prompt, 40)
    while len(request.generated) < 36:
        e.step()
    other = e.submit([*prompt, *right.generated[:35]], 1)  # prefills what the first has decoded
    while not other.generated:
        e.step()
    assert request.is_running
    e.retract(request, "on purpose")
    e.run()
    assert request.restore <= length
    assert request.generated == right.generated
    assert torch.equal(request.logits[-1], right.logits[-1])
    assert_nothing_leaks(e)
