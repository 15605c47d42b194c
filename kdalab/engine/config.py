"""How an engine is set up, with every number checked before a byte is allocated."""

from __future__ import annotations

from dataclasses import dataclass, field

from kdalab.cache import Retention, parse_retention
from kdalab.cache.placement import (
    FORMS,
    DecodeEvery,
    Every,
    Placement,
    check_on_grid,
    grid_of,
)
from kdalab.cache.retention import RETENTION_FORMS
from kdalab.engine.dispatch import Work, choose
from kdalab.engine.drafters import Drafter, PromptLookup
from kdalab.engine.faults import Faults
from kdalab.engine.strategy import Strategy, held_slots, parse_strategy, slots_per_request
from kdalab.errors import KdalabError, shown

CELL = 64
"""Tokens of one prefill cell: the kernel's chunk, and the absolute grid of restored prefill."""

CHECKPOINT_DTYPES = ("native", "int8")
MEMORIES = ("split", "unified")

MOST = 2**31 - 1
"""Largest count of anything: what a slot number and a token id may be as well."""

_AT_LEAST_ONE = ("page_tokens", "n_pages", "n_active", "n_checkpoints", "chunk_tokens")
_SWITCHES = (
    "reuse",
    "poison",
    "keep_logits",
    "check_every_step",
    "overlap",
    "reserve_output",
    "lazy_compaction",
)
_IN_BYTES = ("memory_bytes", "checkpoint_limit")
_OPTIONAL = ("max_running", "memory_bytes", "checkpoint_limit", "decode_interval")


@dataclass(frozen=True, slots=True)
class HostConfig:
    """A second level in host memory: its pages and checkpoints, and after how many uses a prefix is
    copied there (``write_through``; 1: at the first).

    Raises:
        KdalabError: a number below 1.
    """

    n_pages: int = 2048
    n_checkpoints: int = 128
    write_through: int = 2

    def __post_init__(self) -> None:
        for name in ("n_pages", "n_checkpoints", "write_through"):
            _whole(f"host.{name}", getattr(self, name), MOST)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes in pages, slots and tokens.

    ``chunk_tokens`` is how many prompt tokens one step may prefill, over all requests, floored
    to the cell. ``poison`` fills freed memory with NaN. ``keep_logits`` keeps every token's
    logits on the request, for comparison. ``check_every_step`` runs ``engine.check()`` after
    each step.

    ``retention`` says what the cache gives up first, and how many states a path may keep: a
    ``Retention``, or its text form ("lru", "lru-path", "lru+cap:4", "marconi:0.5"). ``host`` adds a
    second level that takes copies of hot prefixes and gives them back (None: no such level).

    States: ``strategy`` says how a state becomes a checkpoint (see ``engine.strategy``), and
    ``overlap`` whether a request keeps the second spare that overlapped steps need. With
    ``copy`` the ``n_active`` private slots and the ``n_checkpoints`` shared ones are two pools;
    when slots are donated, or memory is unified, they are one pool of both together.
    ``max_running`` requests run at once (by default ``n_active``). ``checkpoint_dtype`` "int8"
    quantises checkpoints, in a pool of their own of at most ``checkpoint_limit`` bytes.
    ``decode_interval`` also takes checkpoints at its multiples while decoding (tokens; None:
    not at all); what was generated then enters the cache up to the last of them.

    Memory: "split" sizes pages and states apart; "unified" lets them share ``memory_bytes``
    from both ends (by default the bytes of the split pools), with ``lazy_compaction`` moving at
    most ``compact_moves`` slots a step. ``reserve_output`` takes all pages of a request at
    admission; without it pages are taken as tokens are generated, and the request that came
    last is retracted when none can be freed.

    Speculation: ``draft_tokens`` are proposed by ``drafter`` and verified in one step (0: off).
    ``backend`` is asked of the kernels (see ``engine.dispatch``).
    """

    page_tokens: int = 16
    n_pages: int = 512
    n_active: int = 8
    n_checkpoints: int = 32
    chunk_tokens: int = 256
    placement: Placement = field(default_factory=lambda: Every(CELL))
    retention: Retention | str = field(default_factory=Retention)
    host: HostConfig | None = None
    reuse: bool = True
    poison: bool = True
    keep_logits: bool = False
    check_every_step: bool = False
    faults: Faults = field(default_factory=Faults)
    strategy: str = Strategy.COPY
    overlap: bool = True
    max_running: int | None = None
    checkpoint_dtype: str = "native"
    checkpoint_limit: int | None = None
    decode_interval: int | None = None
    reserve_output: bool = True
    memory: str = "split"
    memory_bytes: int | None = None
    lazy_compaction: bool = False
    compact_moves: int = 8
    draft_tokens: int = 0
    drafter: Drafter = field(default_factory=PromptLookup)
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            _whole(name, getattr(self, name), MOST)
        for name in _OPTIONAL:
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 2**62 if name in _IN_BYTES else MOST)
        if type(self.draft_tokens) is not int or not 0 <= self.draft_tokens <= MOST:
            raise KdalabError(
                f"draft_tokens = {shown(self.draft_tokens)}; it must be 0 or more, a whole number"
            )
        _whole("compact_moves", self.compact_moves, MOST)
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool:
                raise KdalabError(
                    f"{name} = {shown(getattr(self, name))}; it must be True or False"
                )
        if not isinstance(self.faults, Faults):
            raise KdalabError(
                f"faults = {shown(self.faults)}; use Faults(...) or Faults.named([...])"
            )
        if self.chunk_tokens < CELL:
            raise KdalabError(
                f"chunk_tokens = {self.chunk_tokens}; a step must hold one cell of {CELL} tokens"
            )
        if not callable(getattr(self.placement, "boundaries", None)):
            raise KdalabError(
                f"placement = {shown(self.placement)}; use parse_placement({FORMS!r})"
            )
        for part in _parts(self.placement):
            if isinstance(part, Every):
                check_on_grid(part.interval, self.grid)
        _ = self.kept
        if self.host is not None and not isinstance(self.host, HostConfig):
            raise KdalabError(
                f"host = {shown(self.host)}; use HostConfig(...), or None for no host"
            )
        if self.decode_interval is not None and self.decode_interval % self.grid:
            raise KdalabError(
                f"decode_interval: interval {self.decode_interval:,} is not a multiple of "
                f"lcm({CELL}, {self.page_tokens}) = {self.grid:,}"
            )
        _one_of("checkpoint_dtype", self.checkpoint_dtype, CHECKPOINT_DTYPES)
        _one_of("memory", self.memory, MEMORIES)
        if not callable(getattr(self.drafter, "propose", None)):
            raise KdalabError(f"drafter = {shown(self.drafter)}; it needs propose(tokens, n)")
        for work in Work:
            choose(work, self.backend if isinstance(self.backend, str) else shown(self.backend))
        if self.memory_bytes is not None and self.memory != "unified":
            raise KdalabError(
                f"memory_bytes = {self.memory_bytes:,} sizes unified memory; with memory = "
                f"{self.memory!r} use n_pages, n_active and n_checkpoints"
            )
        if self.checkpoint_limit is not None and not self.int8:
            raise KdalabError(
                f"checkpoint_limit = {self.checkpoint_limit:,} bounds an INT8 pool; with "
                f"checkpoint_dtype = {self.checkpoint_dtype!r} use n_checkpoints"
            )
        if self.memory == "unified" and self.int8:
            raise KdalabError(
                "memory = 'unified' holds states in the active dtype; an INT8 pool stands beside "
                "it. Use memory = 'split' with checkpoint_dtype = 'int8'"
            )
        self._check_slots()

    def _check_slots(self) -> None:
        how, held = self.how, self.held_slots
        if self.shares_states and self.memory == "split":
            least, total = slots_per_request(how, self.overlap), self.n_active + self.n_checkpoints
            if total < least:
                raise KdalabError(
                    f"{self.n_active} + {self.n_checkpoints} = {total} state slots; one request "
                    f"under {how} needs {held} of its own + 1 locked + 1 in flight = {least}"
                )
        elif self.int8 and self.n_active < held:
            raise KdalabError(
                f"n_active = {self.n_active}; one request under {how} owns {held} active slots"
            )

    @property
    def grid(self) -> int:
        """Boundaries that can hold a checkpoint are multiples of this: lcm(cell, page)."""
        return grid_of(CELL, self.page_tokens)

    @property
    def kept(self) -> Retention:
        """``retention``, checked."""
        if isinstance(self.retention, Retention):
            return self.retention
        if isinstance(self.retention, str):
            return parse_retention(self.retention)
        raise KdalabError(
            f"retention = {shown(self.retention)}; use a Retention or one of: {RETENTION_FORMS}"
        )

    def keeps_decoded(self, n: int) -> bool:
        """Whether the state after ``n`` tokens is kept when ``n`` is reached by decoding."""
        if self.decode_interval is None:
            return False
        return bool(DecodeEvery(self.decode_interval).boundaries(n - 1, n, self.grid))

    @property
    def how(self) -> Strategy:
        """``strategy``, checked."""
        return parse_strategy(self.strategy)

    @property
    def int8(self) -> bool:
        """Checkpoints are quantised."""
        return self.checkpoint_dtype == "int8"

    @property
    def shares_states(self) -> bool:
        """Active states and checkpoints are slots of one pool."""
        return self.memory == "unified" or (self.how.donates and not self.int8)

    @property
    def held_slots(self) -> int:
        """Slots that a running request owns."""
        return held_slots(self.how, self.overlap)

    @property
    def running_limit(self) -> int:
        """Requests that may run at once."""
        return self.max_running if self.max_running is not None else self.n_active


def _whole(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        limit = "" if type(value) is not int or value < 1 else f", and at most {most:,}"
        raise KdalabError(
            f"{name} = {shown(value)}; it must be a whole number of at least 1{limit}"
        )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise KdalabError(f"{name} = {shown(value)}; use one of {', '.join(allowed)}")


def _parts(placement: Placement) -> list[Placement]:
    """The placement itself, or what it joins."""
    parts: tuple[Placement, ...] = getattr(placement, "parts", ())
    return [p for part in parts for p in _parts(part)] or [placement]
