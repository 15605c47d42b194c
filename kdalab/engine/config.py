"""How an engine is set up, with every number checked before a byte is allocated."""

from __future__ import annotations

from dataclasses import dataclass, field

from kdalab.cache.placement import FORMS, Every, Placement, check_on_grid, grid_of
from kdalab.engine.faults import Faults
from kdalab.errors import KdalabError

CELL = 64
"""Tokens of one prefill cell: the kernel's chunk, and the absolute grid of restored prefill."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes in pages, slots and tokens.

    ``chunk_tokens`` is how many prompt tokens one step may prefill, over all requests, floored
    to the cell. ``poison`` fills freed memory with NaN. ``keep_logits`` keeps every token's
    logits on the request, for comparison. ``check_every_step`` runs ``engine.check()`` after
    each step.
    """

    page_tokens: int = 16
    n_pages: int = 512
    n_active: int = 8
    n_checkpoints: int = 32
    chunk_tokens: int = 256
    placement: Placement = field(default_factory=lambda: Every(CELL))
    reuse: bool = True
    poison: bool = True
    keep_logits: bool = False
    check_every_step: bool = False
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name in ("page_tokens", "n_pages", "n_active", "n_checkpoints", "chunk_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise KdalabError(f"{name} = {value!r}; it must be a whole number of at least 1")
        if self.chunk_tokens < CELL:
            raise KdalabError(
                f"chunk_tokens = {self.chunk_tokens}; a step must hold one cell of {CELL} tokens"
            )
        if not hasattr(self.placement, "boundaries"):
            raise KdalabError(f"placement = {self.placement!r}; use parse_placement({FORMS!r})")
        if isinstance(self.placement, Every):
            check_on_grid(self.placement.interval, self.grid)

    @property
    def grid(self) -> int:
        """Boundaries that can hold a checkpoint are multiples of this: lcm(cell, page)."""
        return grid_of(CELL, self.page_tokens)
