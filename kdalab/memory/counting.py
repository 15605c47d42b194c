"""A pool that only counts: the numbers a cache needs, and no memory behind them.

A replay of a production trace moves terabytes of state that nobody has to hold. Pages are handed
out as ranges, so that a prompt of any length costs one object.
"""

from __future__ import annotations

from kdalab.errors import InvariantError, KdalabError


class CountingPool:
    """Latent pages and checkpoint slots under one budget in bytes.

    Numbers are never given out twice, so that what was read can be told from what was written.
    ``pages`` and ``states`` count what is in use, ``used`` their bytes, ``peak_bytes`` the most
    there ever was.

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
        self.used = self.peak_bytes = 0
        self._next_page = self._next_state = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes of latent pages in use."""
        return self.pages * self.page_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of checkpoints in use."""
        return self.states * self.checkpoint_bytes

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
        used = self.used + pages * self.page_bytes + states * self.checkpoint_bytes
        if self.budget is not None and used > self.budget:
            raise KdalabError(
                f"{pages:,} pages and {states:,} checkpoints would go {used - self.budget:,} bytes "
                f"over the budget of {self.budget:,}; evict that much first"
            )
        first_page, first_state = self._next_page, self._next_state
        self._next_page += pages
        self._next_state += states
        self.pages += pages
        self.states += states
        self.used = used
        if used > self.peak_bytes:
            self.peak_bytes = used
        return range(first_page, self._next_page), range(first_state, self._next_state)

    def give(self, pages: int, states: int = 0) -> None:
        """Take so many back.

        Raises:
            InvariantError: more than are in use. Nothing was taken back.
        """
        if pages > self.pages or states > self.states:
            raise InvariantError(
                f"{pages:,} pages and {states:,} checkpoints given back; "
                f"{self.pages:,} and {self.states:,} are in use"
            )
        self.pages -= pages
        self.states -= states
        self.used -= pages * self.page_bytes + states * self.checkpoint_bytes
