"""Which boundaries of a request are worth a cached state block.

``None`` keeps whatever a step happens to leave at a block boundary (dense). ``0`` keeps what a
later lookup can reach: the prompt's tail, and the junction. ``N`` also keeps every N tokens. The
junction makes the middle one Marconi's admission: a shared prefix seen for the first time is only
recorded, as hashes of its KV; the second prompt that shares it finds KV beyond the deepest state,
and that boundary gets one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.errors import KdalabError, shown


@dataclass(frozen=True, slots=True)
class BlockRetention:
    """``interval``: None, 0, or tokens (vLLM's ``prefix_cache_retention_interval``).

    Raises:
        KdalabError: a negative or fractional interval.
    """

    interval: int | None = 0

    def __post_init__(self) -> None:
        n = self.interval
        if n is not None and (type(n) is not int or n < 0):
            raise KdalabError(
                f"retention interval {shown(n)}; use None (dense), 0 (reachable boundaries) or a "
                "number of tokens"
            )

    def __str__(self) -> str:
        return "dense" if self.interval is None else str(self.interval)

    def check(self, scheduler_block: int, has_states: bool) -> None:
        """Refuse an interval that these groups cannot keep.

        Raises:
            KdalabError: off the scheduler's block, or no group has states to leave out.
        """
        if not self.interval:
            return
        if not has_states:
            raise KdalabError(
                f"retention interval {self.interval:,} without a state group: attention keeps all "
                "its blocks; use None or 0"
            )
        if self.interval % scheduler_block:
            near = max(1, self.interval // scheduler_block) * scheduler_block
            raise KdalabError(
                f"retention interval {self.interval:,} is not a multiple of the scheduler's block "
                f"of {scheduler_block:,} tokens; {near:,} is"
            )

    def keeps(self, boundary: int, points: frozenset[int]) -> bool:
        """Does a state at ``boundary`` stay? ``points``: the tail and the junction."""
        if self.interval is None or boundary in points:
            return True
        return self.interval > 0 and boundary % self.interval == 0


BLOCK_RETENTION_FORMS = "dense, 0 (reachable boundaries), or N (tokens)"


def parse_block_retention(text: str) -> BlockRetention:
    """``dense`` | ``0`` | ``8192`` -> a retention (vLLM's None, 0 and N).

    Raises:
        KdalabError: another text. ``marconi`` is told that its admission is what ``0`` does, and
            that blocks are evicted in the order of one queue.
    """
    word = text.strip().lower()
    if word in ("dense", "none"):
        return BlockRetention(None)
    digits = word.replace(",", "").replace("_", "")
    if digits.isdecimal() and len(digits) < 16:
        return BlockRetention(int(digits))
    why = ""
    if word.startswith("marconi"):
        why = ". The junction that 0 keeps is Marconi's admission; its eviction order is a tree's"
    raise KdalabError(
        f"unknown retention {shown(text, 40)} for blocks; allowed: {BLOCK_RETENTION_FORMS}{why}"
    )
