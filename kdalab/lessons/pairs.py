"""Examples for both ways of caching, by name: who shares how many tokens, in blocks of what size.

A pair says lengths only; its tokens are made up, so that a reader can check every restore point by
hand. Where all its boundaries lie on the engine's cells it runs on both engines; otherwise both
caches run it without a model.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.engine.config import CELL
from kdalab.errors import KdalabError

MAX_ENGINE_TOKENS = 1024
"""Longest prompt that a pair runs on the engines."""


@dataclass(frozen=True, slots=True)
class Share:
    """A prompt of ``tokens`` tokens; the first ``shared`` are those of the first prompt."""

    name: str
    tokens: int
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """A named example for both ways.

    Args:
        prompts: they arrive one after the other.
        block: tokens of a block, of attention and of states.
        unit: tokens of a hash; None for the block, so that only whole blocks are hits.
        block_retention: dense, 0 or N tokens (see ``parse_block_retention``).
        page, grid: the tree's pages, and the boundaries that can hold a state (tokens).
        checkpoints: the tree's placement (see ``parse_placement``).
        lead: one sentence on what it shows.

    Raises:
        KdalabError: a prompt that shares more than it has, or than the first one has.
    """

    name: str
    title: str
    question: str
    lead: str
    prompts: tuple[Share, ...]
    block: int
    unit: int | None = None
    block_retention: str = "0"
    page: int = 16
    grid: int = CELL
    checkpoints: str = "leaf+branch"

    def __post_init__(self) -> None:
        first = self.prompts[0].tokens
        for p in self.prompts:
            if not 0 <= p.shared <= min(p.tokens, first) or p.tokens < 1:
                raise KdalabError(
                    f"prompt {p.name} of {p.tokens:,} tokens shares {p.shared:,} of {first:,}"
                )

    @property
    def on_engines(self) -> bool:
        """Whether the engines can run it: they leave states after whole cells only."""
        sizes = (self.block, self.unit or self.block, self.grid)
        longest = max(p.tokens for p in self.prompts)
        return all(s % CELL == 0 for s in sizes) and longest <= MAX_ENGINE_TOKENS


_FINE = Pair(
    name="400-in-256",
    title="400 shared tokens in blocks of 256",
    question="A block ends at 256. Why can 384 be restored?",
    lead="With hashes of 64 tokens the state of 384 tokens has a name inside the second block.",
    prompts=(Share("A", 400), Share("B", 700, 400)),
    block=256,
    unit=64,
)

PAIRS: dict[str, Pair] = {
    p.name: p
    for p in (
        _FINE,
        Pair(
            name="400-coarse",
            title="The same without fine hashes",
            question="What does one hash a block cost?",
            lead="Only whole blocks are hits: 256 of 400 shared tokens; the tree restores 384.",
            prompts=_FINE.prompts,
            block=256,
        ),
        Pair(
            name="256-again",
            title="A prompt of exactly one block, twice",
            question="Everything is known. Where does it start again?",
            lead=(
                "One token must be computed, so the state at 256 is of no use; the block cache "
                "stopped at 192 for that, and the tree's only state is at the very end."
            ),
            prompts=(Share("A", 256), Share("B", 256, 256)),
            block=256,
            unit=64,
        ),
        Pair(
            name="junction",
            title="The third one profits",
            question="Two prompts share 320 tokens. Who leaves a state there, and where?",
            lead=(
                "B is seen to share 320 tokens with A: the tree leaves a state at 320 and the "
                "block cache at the block below, 256, for C to start from."
            ),
            prompts=(Share("A", 700), Share("B", 600, 320), Share("C", 500, 320)),
            block=128,
            unit=64,
        ),
        Pair(
            name="4480-in-8192",
            title="4,480 tokens in a block of 8,192",
            question="The block is little more than half full. Is it a hit?",
            lead="A block of 8,192 holds the state of 4,480 tokens under that name.",
            prompts=(Share("A", 4_500), Share("B", 4_900, 4_500)),
            block=8_192,
            unit=128,
        ),
        Pair(
            name="4480-coarse",
            title="4,480 tokens in blocks of 4,096",
            question="And with whole blocks only?",
            lead="Whole blocks of 4,096 restore 4,096, and 404 shared tokens are computed again.",
            prompts=(Share("A", 4_500), Share("B", 4_900, 4_500)),
            block=4_096,
        ),
        Pair(
            name="96-in-128",
            title="96 tokens in a block of 128",
            question="What if the hashes are finer than the kernel's cells?",
            lead=(
                "With hashes of 32 tokens a state at 96 can be named; the tree's grid is the "
                "engine's cell of 64. Without a model, because no engine here stops at 96."
            ),
            prompts=(Share("A", 100), Share("B", 160, 100)),
            block=128,
            unit=32,
        ),
        Pair(
            name="15k-every-10k",
            title="15,000 shared tokens, a state every 10,000",
            question="A third of what is known is computed again. Why?",
            lead="The last state before 15,000 is at 10,000: 5,000 known tokens are replayed.",
            prompts=(Share("A", 20_500), Share("B", 16_000, 15_000)),
            block=1_000,
            block_retention="10000",
            page=1_000,
            grid=1_000,
            checkpoints="every:10000",
        ),
        Pair(
            name="905k-every-100k",
            title="905,000 shared tokens, a state every 100,000",
            question="How much of a long context comes back?",
            lead="Restored at 900,000: 5,000 tokens are replayed.",
            prompts=(Share("A", 950_000), Share("B", 910_000, 905_000)),
            block=5_000,
            block_retention="100000",
            page=5_000,
            grid=5_000,
            checkpoints="every:100000+leaf",
        ),
        Pair(
            name="905k-every-400k",
            title="905,000 shared tokens, a state every 400,000",
            question="And with fewer states?",
            lead="Restored at 800,000: 105,000 tokens are replayed.",
            prompts=(Share("A", 950_000), Share("B", 910_000, 905_000)),
            block=5_000,
            block_retention="400000",
            page=5_000,
            grid=5_000,
            checkpoints="every:400000+leaf",
        ),
    )
}
"""Pairs by name, in the order in which they are listed."""
