"""Small random traces whose prompts share prefixes, for hypothesis."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from kdalab.lab import Trace, TraceRequest


@st.composite
def traces(
    draw: st.DrawFn, block: int = 4, max_requests: int = 14, max_new: int = 6, partial: bool = True
) -> Trace:
    """Each prompt continues or forks an earlier one; an id stands for a whole prefix. The last,
    partial block may come again too."""
    prompts: list[tuple[int, ...]] = [()]
    names: dict[tuple[int, ...], int] = {}
    requests = []
    for line in range(1, draw(st.integers(1, max_requests)) + 1):
        base = draw(st.sampled_from(prompts))
        base = base[: draw(st.integers(0, len(base)))]
        prompt = base + tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_new)))
        prompts.append(prompt)
        short = draw(st.integers(0, block - 1)) if partial else 0
        ids = [names.setdefault(prompt[: i + 1], len(names)) for i in range(len(prompt))]
        tokens = len(prompt) * block - short
        requests.append(TraceRequest(line, float(line), tokens, 1, array("q", ids)))
    return Trace("drawn", requests, block_tokens=block)
