"""What a bundle says of itself: typed, checked, and small enough to be read before any tensor.

It travels as one JSON text in the ``__metadata__`` of a safetensors file, so any tool that reads
safetensors shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from kdalab.errors import KdalabError
from kdalab.spec import StateIdentity, StateKind
from kdalab.transfer.prefix import PrefixHash
from kdalab.transfer.refusal import BundleFormatError, Refusal, printable

FORMAT = "kdalab-bundle"
VERSION = 1
"""The version that is written."""

READABLE = (1,)
"""The versions that can be read, oldest first."""

MAX_BOUNDARY = 1 << 27
MAX_PAGE_TOKENS = 1 << 16

TENSOR_OF = {
    StateKind.MLA_KV: "latent",
    StateKind.KDA_RECURRENT: "recurrent",
    StateKind.KDA_CONV: "conv",
    StateKind.EMBEDDING: "embeddings",
}
"""Names of the tensors in the file."""

REQUIRED = (StateKind.MLA_KV, StateKind.KDA_RECURRENT, StateKind.KDA_CONV)
"""A bundle without one of these restores nothing."""

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)

Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Hex64 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Boundary = Annotated[int, Field(ge=1, le=MAX_BOUNDARY)]


class PrefixMeta(BaseModel):
    """A :class:`~kdalab.transfer.prefix.PrefixHash`."""

    model_config = _STRICT

    boundary: Boundary
    text: Hex32
    images: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""


class TensorMeta(BaseModel):
    """The stamp of one tensor: whose state it is, and the checksum of its bytes.

    Each tensor has its own, so that latent KV of one run beside the state of another is found
    however the two came into one file.
    """

    model_config = _STRICT

    identity: Hex64
    prefix: Hex32
    boundary: Boundary
    checksum: Annotated[int, Field(ge=0, lt=1 << 32)]


class BundleMeta(BaseModel):
    """Everything about a bundle but its tensors.

    ``identity`` is ``StateIdentity.to_dict()``: model, version, tokenizer, dtypes, layouts and
    this rank's place among the ranks. ``channels`` are the conv channels of q, of k and of v in
    the whole model, which a change of ranks needs. ``checkpoint_dtype`` "int8" marks a state that
    was rounded to INT8 once. ``writable`` hints that nobody else reads these bytes: a receiver in
    the same memory may go on in them, and otherwise copies on write. ``stamp`` covers all of this
    and the table of tensors (``kdalab.transfer.stamp``).
    """

    model_config = _STRICT

    format: Literal["kdalab-bundle"] = "kdalab-bundle"
    version: int
    identity: dict[str, Any]
    prefix: PrefixMeta
    page_tokens: Annotated[int, Field(ge=1, le=MAX_PAGE_TOKENS)]
    channels: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=3, max_length=3)]
    checkpoint_dtype: Literal["native", "int8"] = "native"
    writable: bool = True
    tensors: dict[Literal["latent", "recurrent", "conv", "embeddings"], TensorMeta]
    stamp: Hex32

    @field_validator("identity")
    @classmethod
    def _is_an_identity(cls, value: dict[str, Any]) -> dict[str, Any]:
        StateIdentity.from_dict(value)
        return value

    @model_validator(mode="after")
    def _has_all_kinds(self) -> BundleMeta:
        missing = [TENSOR_OF[k] for k in REQUIRED if TENSOR_OF[k] not in self.tensors]
        if missing:
            raise ValueError(
                f"no {' and no '.join(missing)}: a bundle holds the whole state of one boundary"
            )
        return self

    def state_identity(self) -> StateIdentity:
        """``identity`` as the class."""
        return StateIdentity.from_dict(self.identity)

    def prefix_hash(self) -> PrefixHash:
        """``prefix`` as the class."""
        return PrefixHash(self.prefix.boundary, self.prefix.text, self.prefix.images)

    def stamp_refusals(self) -> list[Refusal]:
        """Tensors whose stamp is not that of the bundle: pieces of another state."""
        identity, prefix = self.state_identity().digest(), self.prefix_hash()
        found = []
        for name, stamp in self.tensors.items():
            for what, ours, theirs in (
                ("identity", identity[:12], stamp.identity[:12]),
                ("boundary", f"{prefix.boundary:,}", f"{stamp.boundary:,}"),
                ("prefix", prefix.digest[:12], stamp.prefix[:12]),
            ):
                if ours != theirs:
                    found.append(Refusal(f"{name}.{what}", ours, theirs))
                    break  # a state of another boundary has another prefix as well
        return found


def parse_metadata(text: str) -> BundleMeta:
    """Metadata from its JSON text.

    Raises:
        BundleFormatError: it is not of this format, of a version that cannot be read here, or a
            field is missing, unknown or out of range. The first such field is named.
    """
    import json

    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleFormatError(f"the bundle's metadata is no JSON: {str(error)[:200]}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        shown = repr(raw.get("format") if isinstance(raw, dict) else type(raw).__name__)[:40]
        raise BundleFormatError(f"format {shown}; a bundle is of format {FORMAT!r}")
    check_version(raw.get("version"))
    try:
        return BundleMeta.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "metadata"
        raise BundleFormatError(printable(f"{where[:80]}: {first['msg']}")) from None
    except KdalabError as error:
        raise BundleFormatError(str(error)) from None


def check_version(version: object) -> None:
    """Refuse what this reader does not know, before anything else is looked at.

    Raises:
        BundleFormatError: with the versions that can be read, and what to do.
    """
    if version in READABLE and type(version) is int:
        return
    known = ", ".join(map(str, READABLE))
    if type(version) is int and version > READABLE[-1]:
        advice = f"update KDALab, or have the sender write version {READABLE[-1]}"
    else:
        advice = "have the sender write it again with a version of KDALab that is not as old"
    raise BundleFormatError(
        f"a bundle of version {repr(version)[:40]}; this reader knows {known}: {advice}"
    )


def negotiate(offered: Iterable[int]) -> int:
    """The newest version that both sides know.

    Args:
        offered: the versions that the other side can read.

    Raises:
        BundleFormatError: none in common; both lists are named.
    """
    theirs = sorted(set(offered))
    common = [v for v in theirs if v in READABLE]
    if not common:
        raise BundleFormatError(
            f"no version of the bundle in common: ours {list(READABLE)}, theirs {theirs}. "
            "Update the older side"
        )
    return common[-1]
