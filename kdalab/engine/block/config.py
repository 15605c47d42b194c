"""How a block engine is set up; what needs no model is checked here, the rest in ``plan``."""

from __future__ import annotations

from dataclasses import dataclass, field

from kdalab.cache import BlockRetention, CacheMode, parse_block_retention
from kdalab.engine.config import CELL, MOST
from kdalab.engine.dispatch import Work, choose
from kdalab.engine.drafters import Drafter, PromptLookup
from kdalab.engine.faults import Faults
from kdalab.errors import KdalabError, shown

LAYOUTS = ("padded", "packed")

_AT_LEAST_ONE = ("total_bytes", "chunk_tokens", "max_running")
_FAULT = ("read_unwritten",)
_OPTIONAL = ("n_blocks", "attention_block", "state_block", "unit")
_FLAGS = ("eagle", "reuse", "cache_decoded", "poison", "keep_logits", "check_every_step")


@dataclass(frozen=True, slots=True)
class BlockEngineConfig:
    """Sizes in bytes, blocks and tokens.

    Memory: ``total_bytes`` is the one budget, for latent KV and states alike; as many blocks as
    fit are made of it, or just ``n_blocks`` when that is given. ``layout`` "padded" gives all
    layers pages of one size, "packed" gives each its own (see ``kdalab.cache.groups``).

    Block sizes: ``attention_block`` by default is the smallest that holds a state's page (padded),
    or one cell (packed); ``state_block`` by default is the attention block; ``unit``, the
    fineness of hashes and hits (vLLM's ``--prefix-match-unit``), by default their gcd.

    States: ``mode`` says where they are kept, ``retention`` which of them stay (None: all; 0:
    those that a lookup can reach; N: also every N tokens) and which cached block goes first: also
    a ``BlockRetention``, or its text ("dense", "0", "8192", "marconi:0.5+0"). ``kernel_grid`` is
    the grid on which a prefill leaves a state in the middle of a chunk (0: not at all, chunks end
    there instead).

    ``chunk_tokens`` is how many prompt tokens one step may prefill, over all requests, floored
    to the cell. ``draft_tokens`` are proposed by ``drafter`` and verified in one step (0: off);
    with ``eagle`` the last unit of a match is computed again for a draft model that reads it (by
    default whenever there are drafts). Without ``reuse`` nothing that is cached is ever found.
    ``cache_decoded`` gives names to what decoding computes as well, as vLLM does: a prompt that
    contains an earlier output then restores what decode steps left, exact against that history.
    Without it only prefill's blocks are cached, and every restore has the bits of a cold run.

    ``poison`` fills free memory with NaN, ``keep_logits`` keeps every token's logits on the
    request, ``check_every_step`` runs ``engine.check()`` after each step. ``backend`` is asked of
    the kernels. Of ``faults`` only ``read_unwritten`` has a meaning here.

    Raises:
        KdalabError: a number that cannot be, or numbers that do not go together; the message has
            the arithmetic.
    """

    total_bytes: int = 16 << 20
    n_blocks: int | None = None
    layout: str = "padded"
    attention_block: int | None = None
    state_block: int | None = None
    unit: int | None = None
    mode: CacheMode | str = CacheMode.ALIGN
    retention: BlockRetention | str | int | None = 0
    kernel_grid: int = 0
    chunk_tokens: int = 256
    max_running: int = 8
    draft_tokens: int = 0
    drafter: Drafter = field(default_factory=PromptLookup)
    eagle: bool | None = None
    reuse: bool = True
    cache_decoded: bool = True
    poison: bool = True
    keep_logits: bool = False
    check_every_step: bool = False
    backend: str = "auto"
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            most = 2**62 if name == "total_bytes" else MOST
            _whole(name, getattr(self, name), most)
        for name in _OPTIONAL:
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), MOST)
        for name in ("draft_tokens", "kernel_grid"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= MOST:
                raise KdalabError(
                    f"{name} = {shown(value)}; it must be a whole number of 0 to {MOST:,}"
                )
        for name in _FLAGS:
            value = getattr(self, name)
            if type(value) is not bool and not (name == "eagle" and value is None):
                raise KdalabError(f"{name} = {shown(value)}; use True or False")
        if not isinstance(self.layout, str) or self.layout not in LAYOUTS:
            raise KdalabError(f"layout = {shown(self.layout)}; use one of {', '.join(LAYOUTS)}")
        modes = [m.value for m in CacheMode]
        if not isinstance(self.mode, str) or self.mode not in modes:
            raise KdalabError(f"mode = {shown(self.mode)}; use one of {', '.join(modes)}")
        object.__setattr__(self, "mode", CacheMode(self.mode))
        if not callable(getattr(self.drafter, "propose", None)):
            raise KdalabError(f"drafter = {shown(self.drafter)}; it needs propose(tokens, n)")
        if not isinstance(self.faults, Faults) or self.faults.active not in ((), _FAULT):
            raise KdalabError(
                f"faults = {shown(self.faults)}; blocks know Faults(read_unwritten=True), or none"
            )
        if self.chunk_tokens < CELL:
            raise KdalabError(
                f"chunk_tokens = {self.chunk_tokens}; a step must hold one cell of {CELL} tokens"
            )
        for work in Work:
            choose(work, self.backend if isinstance(self.backend, str) else shown(self.backend))
        _ = self.kept
        self._check_grid()

    def _check_grid(self) -> None:
        """States stand where cells end, so what names them must be whole cells."""
        names = {CacheMode.ALIGN: ("unit", "state_block", "attention_block")}
        for name in names.get(CacheMode(self.mode), ("state_block",)):
            value = getattr(self, name)
            if value is not None and value % CELL and self.mode is not CacheMode.NONE:
                raise KdalabError(off_the_grid(name, value, CacheMode(self.mode)))
        if self.kernel_grid % CELL:
            raise KdalabError(
                f"kernel_grid = {self.kernel_grid}: a prefill passes a state every {CELL} tokens, "
                f"and {self.kernel_grid} = {self.kernel_grid // CELL} x {CELL} + "
                f"{self.kernel_grid % CELL}; use 0 or a multiple of {CELL}"
            )
        if self.kernel_grid and self.mode is not CacheMode.ALIGN:
            raise KdalabError(
                f"kernel_grid = {self.kernel_grid} needs mode align; in mode {self.mode} there is "
                "no prompt's tail to store inside a chunk. Use 0"
            )

    @property
    def kept(self) -> BlockRetention:
        """``retention``, checked; also by its text form ("dense", "0", "8192")."""
        if isinstance(self.retention, BlockRetention):
            return self.retention
        if isinstance(self.retention, str):
            return parse_block_retention(self.retention)
        if type(self.retention) is int and self.retention > MOST:
            raise KdalabError(f"retention = {shown(self.retention)}; it must be at most {MOST:,}")
        return BlockRetention(self.retention)

    @property
    def drops_unit(self) -> bool:
        """The last unit of a match is computed again."""
        return bool(self.draft_tokens) if self.eagle is None else self.eagle


def off_the_grid(name: str, value: int, mode: CacheMode) -> str:
    """Why ``value`` tokens cannot be a boundary of states in ``mode``, with a number that can."""
    near = -(-value // CELL) * CELL
    where = "the unit of hashes and hits" if mode is CacheMode.ALIGN else "the state block"
    return (
        f"{name} = {value:,}: in mode {mode} states stand at multiples of {where}, and the model "
        f"leaves one after every cell of {CELL} tokens; {value:,} = {value // CELL} x {CELL} + "
        f"{value % CELL}. Use {near:,}, a multiple of {CELL}"
    )


def _whole(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        limit = "" if type(value) is not int or value < 1 else f", and at most {most:,}"
        raise KdalabError(
            f"{name} = {shown(value)}; it must be a whole number of at least 1{limit}"
        )
