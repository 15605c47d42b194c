"""A pool that only counts: the numbers a cache needs, and no memory behind them.

A replay of a production trace moves terabytes of state that nobody has to hold. Pages are handed
out as ranges, so that a prompt of any length costs one object.
"""

from __future__ import annotations

from kdalab.errors import InvariantError, KdalabError


class CountingPool:
    """Latent pages and checkpoint slots under one budget in bytes.

    Numbers are never given out twice, so that what was read can be told from what was written.

    Args:
        page_bytes: bytes of one latent page.
        checkpoint_bytes: bytes of one checkpoint.
        budget: bytes that both kinds may take together; None for no limit.
    """

    def __init__(self, page_bytes: int, checkpoint_bytes: int, budget: int | None = None) -> None:
        self.page_bytes = page_bytes
        self.checkpoint_bytes = checkpoint_bytes
        self.budget = budget
        self.pages = self.states = 0
        self.peak_bytes = 0
        self._next_page = self._next_state = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of latent pages in use."""
        return self.pages * self.page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of checkpoints in use."""
        return self.states * self.checkpoint_bytes

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.kv_bytes + self.state_bytes

    def missing(self, pages: int, states: int) -> int:
        """Bytes that must be freed before so much more fits; 0 when it fits."""
        if self.budget is None:
            return 0
        wanted = pages * self.page_bytes + states * self.checkpoint_bytes
        return max(0, self.used + wanted - self.budget)

    def take(self, pages: int, states: int = 0) -> tuple[range, range]:
        """Numbers of so many pages and checkpoints.

        Raises:
            KdalabError: they do not fit the budget. Nothing was taken.
        """
        short = self.missing(pages, states)
        if short:
            raise KdalabError(f"{short:,} bytes over the budget of {self.budget:,}")
        first_page, first_state = self._next_page, self._next_state
        self._next_page += pages
        self._next_state += states
        self.pages += pages
        self.states += states
        self.peak_bytes = max(self.peak_bytes, self.used)
        return range(first_page, self._next_page), range(first_state, self._next_state)

    def give(self, pages: int, states: int = 0) -> None:
        """Take so many back."""
        if pages > self.pages or states > self.states:
            raise InvariantError(
                f"{pages:,} pages and {states:,} checkpoints given back; "
                f"{self.pages:,} and {self.states:,} are in use"
            )
        self.pages -= pages
        self.states -= states
