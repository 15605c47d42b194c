"""How a private state becomes a shared one, and how many slots that costs a request.

``copy``: the state is copied out of the active slot at each boundary (SGLang's ``no_buffer``).
``extra_buffer``: a request owns spare slots beside its active one. The step that ends at a
boundary leaves its state where it is and the next one writes into a spare slot, so the state at
the boundary can be given to the cache as it stands: a donation, without a copy.
``extra_buffer_lazy``: the same with one spare, replaced just before it is needed; a boundary for
which none can be had is skipped.
"""

from __future__ import annotations

from enum import StrEnum

from kdalab.errors import KdalabError, shown


class Strategy(StrEnum):
    """Values of ``EngineConfig.strategy``."""

    COPY = "copy"
    EXTRA_BUFFER = "extra_buffer"
    LAZY = "extra_buffer_lazy"

    @property
    def donates(self) -> bool:
        """Slots change hands; nothing is copied."""
        return self is not Strategy.COPY


def parse_strategy(name: str) -> Strategy:
    """A strategy by name; KdalabError lists the known ones."""
    try:
        return Strategy(str(name))
    except ValueError:
        known = ", ".join(s.value for s in Strategy)
        raise KdalabError(f"strategy = {shown(name)}; use one of {known}") from None


def held_slots(strategy: Strategy, overlap: bool = True) -> int:
    """Slots that a running request owns: its active one and its spares.

    With overlap scheduling the step before may still read one spare while the next is written,
    so there are two of them; ``extra_buffer_lazy`` keeps one either way.
    """
    if strategy is Strategy.COPY:
        return 1
    return 3 if strategy is Strategy.EXTRA_BUFFER and overlap else 2


def slots_per_request(strategy: Strategy, overlap: bool = True) -> int:
    """Slots that one request can need at once, when cached and active states share a pool.

    Those it owns, the checkpoint it was restored from (locked until it has been read), and one
    that is on its way into the cache: 3 for ``copy``, 4 for ``extra_buffer_lazy``, 5 for
    ``extra_buffer`` (4 without overlap). SGLang sizes its pool by the same numbers. With all
    prefixes locked, 2 N slots for N requests leave none for the first state on its way.
    """
    return held_slots(strategy, overlap) + 2
