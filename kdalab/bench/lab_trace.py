"""Agent traffic at the size of a day, made on the fly: nothing but the open sessions is in memory.

A session begins with one of a few tool and system prompts, and every request sends all that came
before it again with a little more, until the context is full; now and then the history is edited.
The lengths follow eight public coding-agent sessions in kind; the figures are invented. It is
there to measure speed with.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

from kdalab.errors import KdalabError
from kdalab.lab import Skipped, TraceRequest

BLOCK = 64
SHARED_TOKENS = 15_360  # tools and system prompt
SHARED = 5  # different ones
SESSIONS = 200  # that go on side by side
EDITED = 0.03


class AgentTrace:
    """``requests`` requests of ``mean_tokens`` tokens on average; the same arguments give the same.

    Args:
        requests: how many.
        mean_tokens: prompt length aimed at; contexts grow to about twice that.
        seed: of the random choices.

    Raises:
        KdalabError: no request, or a mean below the shared prompt.
    """

    def __init__(self, requests: int, mean_tokens: int = 118_000, seed: int = 0) -> None:
        if requests < 1 or mean_tokens < 2 * SHARED_TOKENS:
            raise KdalabError(
                f"{requests:,} requests of {mean_tokens:,} tokens; use 1 or more, of "
                f"{2 * SHARED_TOKENS:,} tokens or more"
            )
        self.name = f"agents, {requests:,} requests, seed {seed}"
        self.block_tokens = BLOCK
        self.requests, self.mean_tokens, self.seed = requests, mean_tokens, seed
        self.n_skipped = 0
        self.skipped: list[Skipped] = []

    def __iter__(self) -> Iterator[TraceRequest]:
        chance = random.Random(self.seed)
        full = 2 * self.mean_tokens - SHARED_TOKENS
        step = max(BLOCK, (full - SHARED_TOKENS) // 45)  # requests a session, about
        shared = SHARED_TOKENS // BLOCK
        following = SHARED * shared
        # Contexts are of all ages at first, as they are later on.
        opened: list[tuple[array[int], int]] = [(array("q"), 0)] * SESSIONS
        for line in range(1, self.requests + 1):
            index = chance.randrange(SESSIONS)
            ids, tokens = opened[index]
            if not tokens or tokens > full:
                tools = chance.randrange(SHARED) * shared
                ids = array("q", range(tools, tools + shared))
                tokens = SHARED_TOKENS
                if line <= 2 * SESSIONS:
                    tokens += int(chance.random() * (full - SHARED_TOKENS))
            elif chance.random() < EDITED:
                keep = chance.randint(shared, len(ids))
                ids = ids[:keep]
            tokens += 1 + int(chance.expovariate(1 / step))
            whole = tokens // BLOCK
            ids.extend(range(following, following + whole - len(ids)))
            following += whole
            blocks = ids[:]
            if tokens % BLOCK:
                blocks.append(following)
                following += 1
            opened[index] = (ids, tokens)
            yield TraceRequest(line, line * 100.0, tokens, 500, blocks)
