"""A frozen state, by number."""

from __future__ import annotations

from typing import NamedTuple


class Checkpoint(NamedTuple):
    """A frozen recurrent + conv state: its slot, and the number of tokens it has seen."""

    slot: int
    boundary: int
