"""Which boundaries of a request are worth a cached state block, and which block goes first.

``None`` keeps whatever a step happens to leave at a block boundary (dense). ``0`` keeps what a
later lookup can reach: the prompt's tail, and the junction. ``N`` also keeps every N tokens. The
junction makes the middle one Marconi's admission: a shared prefix seen for the first time is only
recorded, as hashes of its KV; the second prompt that shares it finds KV beyond the deepest state,
and that boundary gets one.

What is kept that way goes again when its block is needed: the least recently used first, as in
vLLM, or by Marconi's order (see ``block_order``), which vLLM does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kdalab.cache.marconi import Marconi, MarconiOrder
from kdalab.cache.retention import Lru, parse_retention
from kdalab.errors import KdalabError, shown

if TYPE_CHECKING:
    from kdalab.cache.flops import PrefillFlops


@dataclass(frozen=True, slots=True)
class BlockRetention:
    """What blocks keep.

    Args:
        interval: None, 0, or tokens (vLLM's ``prefix_cache_retention_interval``).
        order: what goes first: ``Lru``, the pool's own queue; or ``Marconi(alpha)``, which must
            be told costs (:meth:`bound`) before a cache takes it.

    Raises:
        KdalabError: a negative or fractional interval; another order.
    """

    interval: int | None = 0
    order: Lru | Marconi | MarconiOrder = field(default_factory=Lru)

    def __post_init__(self) -> None:
        n = self.interval
        if n is not None and (type(n) is not int or n < 0):
            raise KdalabError(
                f"retention interval {shown(n)}; use None (dense), 0 (reachable boundaries) or a "
                "number of tokens"
            )
        if not isinstance(self.order, Lru | Marconi | MarconiOrder):
            raise KdalabError(
                f"{shown(self.order)} is no eviction order of blocks; use Lru() or Marconi(alpha)"
            )

    def __str__(self) -> str:
        kept = "dense" if self.interval is None else str(self.interval)
        return kept if isinstance(self.order, Lru) else f"{self.order}+{kept}"

    def bound(self, flops: PrefillFlops, block_bytes: int) -> BlockRetention:
        """The same with an order that knows what tokens and blocks cost."""
        if not isinstance(self.order, Marconi):
            return self
        return replace(self, order=self.order.bound(flops, block_bytes, block_bytes))

    def ordered(self) -> MarconiOrder:
        """The order that can choose.

        Raises:
            KdalabError: it is the queue's, or was never told costs.
        """
        if isinstance(self.order, MarconiOrder):
            return self.order
        raise KdalabError(
            f"{self.order} weighs FLOPs against bytes and knows neither; call "
            "BlockRetention.bound(flops, block_bytes) first"
        )

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


BLOCK_RETENTION_FORMS = (
    "dense, 0 (reachable boundaries), or N (tokens), after lru or marconi:ALPHA (what goes first) "
    "and a +, as marconi:0.5+0; an order alone means +0"
)


def parse_block_retention(text: str) -> BlockRetention:
    """``dense`` | ``0`` | ``8192`` | ``marconi:0.5`` | ``marconi:0.5+8192`` -> a retention.

    Marconi's order must still be told costs (:meth:`BlockRetention.bound`).

    Raises:
        KdalabError: another text; ``marconi:auto`` is told where it can be tuned.
    """
    words = text.strip().lower().split("+")
    order: Lru | Marconi = Lru()
    if words[0] == "lru" or words[0].startswith("marconi:"):
        order = _order(words[0], text)
        words = words[1:] or ["0"]
    if len(words) == 1:
        (word,) = words
        if word in ("dense", "none"):
            return BlockRetention(None, order)
        digits = word.replace(",", "").replace("_", "")
        if digits.isdecimal() and len(digits) < 16:
            return BlockRetention(int(digits), order)
    raise _unknown(text)


def _order(word: str, text: str) -> Lru | Marconi:
    try:
        order = parse_retention(word).order
    except KdalabError:
        if word == "marconi:auto":
            raise  # says where alpha is tuned
        raise _unknown(text) from None
    assert isinstance(order, Lru | Marconi)
    return order


def _unknown(text: str) -> KdalabError:
    return KdalabError(
        f"unknown retention {shown(text, 40)} for blocks; allowed: {BLOCK_RETENTION_FORMS}"
    )
