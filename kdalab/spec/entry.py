"""One entry of a cache: a key, the state it stands for, and the rules that bind the two."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kdalab.errors import InvariantError, KdalabError
from kdalab.spec.dtypes import canonical_dtype
from kdalab.spec.identity import StateIdentity
from kdalab.spec.kinds import StateKind


class Tier(StrEnum):
    """Where bytes live, nearest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Location:
    """Where a state's bytes are, and the boundary at which those bytes are valid.

    ``slots`` are page or slot numbers of ``pool``. ``boundary`` is written by whoever wrote the
    bytes; it is what a cache entry's own boundary is checked against. ``owner`` is the request
    that alone may write there; None means shared.
    """

    tier: Tier
    pool: str
    slots: tuple[int, ...]
    boundary: int
    owner: str | None = None

    def __post_init__(self) -> None:
        if self.boundary < 0:
            raise KdalabError(f"boundary {self.boundary}; a boundary is 0 or more tokens")
        if any(s < 0 for s in self.slots):
            raise KdalabError(f"slots {self.slots} of pool {self.pool!r}; slots start at 0")

    @property
    def is_shared(self) -> bool:
        """True when no single request owns these bytes."""
        return self.owner is None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One kind of state at one boundary of one prefix.

    ``prefix_hash`` covers ``tokens[:boundary]``; ``parent`` is the hash of the entry this one
    continues, None at the root. ``dtype`` is how the bytes are stored: the identity's own dtype
    of that kind, or ``int8`` for a quantised recurrent state.

    Raises:
        InvariantError: the key's boundary differs from the state's, or a shared entry is writable.
        KdalabError: dtype or layout does not belong to the identity.
    """

    identity: StateIdentity
    prefix_hash: str
    boundary: int
    kind: StateKind
    location: Location
    dtype: str
    layout: str
    writable: bool = False
    parent: str | None = None

    def __post_init__(self) -> None:
        if self.boundary != self.location.boundary:
            raise InvariantError(
                f"key length equals state length: a {self.kind.label} valid at "
                f"{self.location.boundary:,} tokens cannot be filed under {self.boundary:,} tokens"
            )
        if self.writable and self.location.is_shared:
            raise InvariantError(
                f"shared is read-only: the {self.kind.label} at {self.boundary:,} tokens has no "
                "owner, so nobody may write it; copy it into a private slot first"
            )
        object.__setattr__(self, "dtype", canonical_dtype(self.dtype))
        self._check_dtype()
        self._check_layout()

    def _check_dtype(self) -> None:
        allowed = {
            StateKind.MLA_KV: (self.identity.kv_dtype,),
            StateKind.KDA_RECURRENT: (self.identity.state_dtype, "int8"),
            StateKind.KDA_CONV: (self.identity.conv_dtype,),
        }.get(self.kind)
        if allowed is not None and self.dtype not in allowed:
            raise KdalabError(
                f"{self.kind.label} stored as {self.dtype}; under this identity it is "
                f"{' or '.join(dict.fromkeys(allowed))}"
            )

    def _check_layout(self) -> None:
        expected = {
            StateKind.KDA_RECURRENT: self.identity.recurrent_layout,
            StateKind.KDA_CONV: self.identity.conv_layout,
        }.get(self.kind)
        if expected is not None and self.layout != expected:
            raise KdalabError(
                f"{self.kind.label} in layout {self.layout!r}; under this identity it is "
                f"{expected!r}, and a square state of the wrong layout looks right"
            )
