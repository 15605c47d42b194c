"""What the tests of the cache share: a cache with its numbers, and texts."""

from __future__ import annotations

from kdalab.cache import HostTier, Lease, PrefixKey, RadixStateCache, Retention, Transfer
from kdalab.spec.checkpoint import Checkpoint


class Book:
    """A cache with its numbers: runs whole requests and hands out pages and slots."""

    def __init__(
        self,
        page: int = 4,
        grid: int = 8,
        page_bytes: int = 1,
        state_bytes: int = 1,
        retention: Retention | None = None,
        host: HostTier | None = None,
    ) -> None:
        self.cache = RadixStateCache(page, grid, page_bytes, state_bytes, retention, host)
        self.page = page
        self.n = 0

    def key(self, tokens: list[int]) -> PrefixKey:
        return PrefixKey.from_tokens(tokens, self.page)

    def take(self, count: int) -> tuple[int, ...]:
        self.n += count
        return tuple(range(self.n - count, self.n))

    def run(self, tokens: list[int], *boundaries: int, hold: bool = False) -> Lease:
        lease = self.cache.acquire(self.cache.lookup(self.key(tokens)))
        self.cache.unlock_state(lease)
        for b in boundaries:
            lease = self.cache.commit(
                lease,
                self.key(tokens),
                self.take((b - lease.boundary) // self.page),
                Checkpoint(self.take(1)[0], b),
            ).lease
        if not hold:
            self.cache.release(lease)
        self.cache.check()
        return lease

    def back_up(self) -> int:
        """Everything that is due gets its host copy at once; how many transfers that took."""
        host, done = self.cache.host, 0
        assert host is not None
        while wishes := host.due():
            wish = wishes[0]
            slot = self.take(1)[0] if wish.state else None
            host.ack(host.start_backup(wish.node, self.take(wish.pages), slot).id)
            self.cache.check()
            done += 1
        return done

    def load(self, tokens: list[int]) -> Transfer:
        """Begin to bring back what the host knows of a prompt."""
        host, found = self.cache.host, self.cache.lookup(self.key(tokens))
        assert host is not None
        wish = host.wanted_for(found)
        assert wish is not None
        slot = self.take(1)[0] if wish.state else None
        return host.start_load(found, self.take(wish.pages), slot)

    def restore(self, tokens: list[int]) -> int:
        return self.cache.lookup(self.key(tokens)).restore


def text(n: int, seed: int = 0) -> list[int]:
    return [seed * 1000 + i for i in range(n)]
