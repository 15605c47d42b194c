"""The trace that a figure draws: a file in any of the lab's formats, or one that is made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lab.generate import changed, generated_trace, shape
from kdalab.lab.readers import ReadOptions, open_trace
from kdalab.lab.request import Trace

MOST_REQUESTS = 100_000

FEW_SYSTEMS: dict[str, Any] = {
    "sessions_a_second": 0.05, "systems": 2, "system": [3000, 0.3], "first": [2500, 0.5],
    "added": [800, 0.6], "think": [30, 0.5], "go_on": [6.0, 3.0], "branch": 0.3,
}  # fmt: skip
"""A trace small enough for a tree that can be read: long conversations under two system prompts."""


def figure_trace(file: str | None, requests: int, made_up: str = "chat-like") -> Trace:
    """The first ``requests`` requests of ``file``, or as many of the made-up trace of that name.

    Raises:
        KdalabError: a number of requests that is not 1 to 100,000; no such file, or one that no
            reader takes; no such made-up trace.
    """
    if not 1 <= requests <= MOST_REQUESTS:
        raise KdalabError(f"{requests:,} requests; use 1 to {MOST_REQUESTS:,}")
    if file is None:
        few = made_up == "few-systems"
        of = changed("chat-like", FEW_SYSTEMS) if few else shape(made_up)
        return replace(generated_trace(requests, of, 0, made_up), name=made_up)
    reader = open_trace(Path(file), None, ReadOptions(limit=requests))
    found = list(reader)
    if not found:
        raise KdalabError(f"{file}: no request in it that could be read")
    return Trace(
        Path(file).name, found, reader.n_skipped, list(reader.skipped), reader.block_tokens,
        reader.format, (),
    )  # fmt: skip
