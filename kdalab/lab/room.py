"""Room for latent pages, checkpoints and what running requests hold: one pool, or two fixed ones.

Like ``CountingPool`` it only counts, and no number is given out twice. Beside what the cache holds
it knows what is private: pages that a running request has not committed, and active states.
"""

from __future__ import annotations

from kdalab.cache import Bytes
from kdalab.errors import InvariantError

#: Nothing is short: compare with ``is``.
NOTHING = Bytes()


class Room:
    """Bytes in use, by kind.

    Args:
        page_bytes, checkpoint_bytes: of a latent page and of a cached checkpoint.
        active_bytes: of one request's active state.
        memory: bytes for everything; None for no limit.
        split: bytes of states to bytes of KV in two fixed pools; None for one pool.
    """

    def __init__(
        self,
        page_bytes: int,
        checkpoint_bytes: int,
        active_bytes: int,
        memory: int | None = None,
        split: float | None = None,
    ) -> None:
        self.page_bytes, self.checkpoint_bytes = page_bytes, checkpoint_bytes
        self.active_bytes = active_bytes
        self.memory = memory
        self.split = split
        self.state_memory: int | None = None
        if memory is not None and split is not None:
            self.state_memory = int(memory * split / (1 + split))
        self.pages = self.states = self.private_pages = self.active = 0
        #: Bytes of latent pages, cached and private; of checkpoints and active states; the most
        #: that both ever were.
        self.kv_used = self.state_used = self.peak_bytes = 0
        self._next_page = self._next_state = 0

    @property
    def private_bytes(self) -> int:
        """Bytes that running requests hold for themselves."""
        return self.private_pages * self.page_bytes + self.active * self.active_bytes

    def short(self, pages: int, states: int = 0, active: int = 0) -> Bytes:
        """Bytes that must be freed before so much more fits, by the pool they are short in."""
        memory, apart = self.memory, self.state_memory
        if memory is None:
            return NOTHING
        kv = self.kv_used + pages * self.page_bytes
        state = self.state_used + states * self.checkpoint_bytes + active * self.active_bytes
        if apart is None:
            return NOTHING if kv + state <= memory else Bytes(0, 0, kv + state - memory)
        if kv <= memory - apart and state <= apart:
            return NOTHING
        return Bytes(max(0, kv - (memory - apart)), max(0, state - apart))

    def largest(self, pages: int, states: int, active: int) -> int | None:
        """The smallest memory in which so much fits an empty pool, or None if it does here."""
        kv = pages * self.page_bytes
        state = states * self.checkpoint_bytes + active * self.active_bytes
        if self.memory is None:
            return None
        if self.split is None or self.state_memory is None:
            return kv + state if kv + state > self.memory else None
        if kv <= self.memory - self.state_memory and state <= self.state_memory:
            return None
        # By the ratio, not by the two pools: of a tiny memory one of them has no bytes at all.
        need = max(kv * (1 + self.split), state * (1 + self.split) / self.split)
        return max(int(need), self.memory) + 1

    def take(self, pages: int, states: int) -> tuple[range, range]:
        """Numbers of so many pages and checkpoints, for which ``short`` was ``NOTHING``."""
        first_page, first_state = self._next_page, self._next_state
        self._next_page = last_page = first_page + pages
        self._next_state = last_state = first_state + states
        self.pages += pages
        self.states += states
        self.kv_used += pages * self.page_bytes
        self.state_used += states * self.checkpoint_bytes
        if self.kv_used + self.state_used > self.peak_bytes:
            self.peak_bytes = self.kv_used + self.state_used
        return range(first_page, last_page), range(first_state, last_state)

    def give(self, pages: int, states: int) -> None:
        """Take so many back.

        Raises:
            InvariantError: more than are in use.
        """
        if pages > self.pages or states > self.states:
            raise InvariantError(
                f"{pages:,} pages and {states:,} checkpoints given back; "
                f"{self.pages:,} and {self.states:,} are in use"
            )
        self.pages -= pages
        self.states -= states
        self.kv_used -= pages * self.page_bytes
        self.state_used -= states * self.checkpoint_bytes

    def hold(self, pages: int, active: int) -> None:
        """A running request holds so much more (less, if negative) for itself.

        Raises:
            InvariantError: less than nothing is held.
        """
        self.private_pages += pages
        self.active += active
        if self.private_pages < 0 or self.active < 0:
            raise InvariantError("running requests gave back more than they held")
        self.kv_used += pages * self.page_bytes
        self.state_used += active * self.active_bytes
        self.peak_bytes = max(self.peak_bytes, self.kv_used + self.state_used)
