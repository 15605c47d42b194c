"""The model state bundle: everything that a request needs to go on at one boundary, as one blob.

Latent KV of the whole prefix, recurrent and conv state at its end, and what they are valid for:
the identity, the prefix by its hash, the boundary, the layouts. Nothing is pickled, so reading a
bundle of a stranger runs no code of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from kdalab.errors import KdalabError
from kdalab.spec import ParallelLayout, StateIdentity, StateKind
from kdalab.transfer import blob
from kdalab.transfer.checksum import Buffer
from kdalab.transfer.container import torch_dtype
from kdalab.transfer.metadata import TENSOR_OF, VERSION, BundleMeta
from kdalab.transfer.prefix import PrefixHash
from kdalab.transfer.refusal import Refusal, identity_refusals, prefix_refusals, require


@dataclass(frozen=True, eq=False)
class Bundle:
    """A whole model state at one boundary, on one rank.

    Args:
        identity: model version, tokenizer, dtypes, layouts, and this rank among the ranks.
        prefix: which prefix, and the boundary at which the state is valid.
        latent: [page, MLA layer, token in page, latent | rope channel], every page of the prefix;
            beyond the boundary an engine writes zeros, and reads nothing. Replicated on every rank.
        recurrent: [KDA layer, value head of this rank, V, K] where the identity says "v_first",
            [.., K, V] where it says "k_first".
        conv: [KDA layer, W-1 inputs, q|k|v channel of this rank] where the identity says
            "time_first", [KDA layer, q|k|v channel, W-1] where it says "channel_first".
        channels: conv channels of q, of k and of v in the whole model.
        embeddings: [token, hidden], an encoder's output for images of the prefix (optional).
        checkpoint_dtype: "int8" for a state that was rounded to INT8 once.
        writable: nobody else reads these bytes, so that a receiver in the same memory may write
            them; else it copies on write.

    Raises:
        KdalabError: shapes that disagree with one another, with the boundary or with the identity.
    """

    identity: StateIdentity
    prefix: PrefixHash
    latent: torch.Tensor
    recurrent: torch.Tensor
    conv: torch.Tensor
    channels: tuple[int, int, int]
    embeddings: torch.Tensor | None = None
    checkpoint_dtype: str = "native"
    writable: bool = True
    checksums: dict[str, int] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.checkpoint_dtype not in ("native", "int8"):
            raise KdalabError(
                f"checkpoint_dtype {self.checkpoint_dtype!r}; a state is 'native' or 'int8'"
            )
        object.__setattr__(self, "channels", tuple(self.channels))
        _check_shapes(self)

    # -- what it is --------------------------------------------------------------------------

    @property
    def boundary(self) -> int:
        """Tokens that the state has seen."""
        return self.prefix.boundary

    @property
    def page_tokens(self) -> int:
        """Tokens of one latent page."""
        return int(self.latent.shape[2])

    @property
    def parallel(self) -> ParallelLayout:
        """This rank among the ranks."""
        return self.identity.parallel

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by their names in the file, in the file's order."""
        kinds = {name: getattr(self, name) for name in TENSOR_OF.values()}
        return {name: tensor for name, tensor in kinds.items() if tensor is not None}

    @property
    def bytes_by_kind(self) -> dict[StateKind, int]:
        """Bytes of each kind of state."""
        return {
            kind: getattr(self, name).nbytes
            for kind, name in TENSOR_OF.items()
            if getattr(self, name) is not None
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(self.bytes_by_kind.values())

    @property
    def key(self) -> str:
        """Its name in a store: identity, prefix, boundary, rank."""
        return bundle_key(self.identity, self.prefix)

    def latent_tokens(self) -> torch.Tensor:
        """Latents in order of the tokens: [MLA layer, boundary tokens, channel] (a copy)."""
        _, layers, _, dim = self.latent.shape
        return self.latent.transpose(0, 1).reshape(layers, -1, dim)[:, : self.boundary]

    def refusals(
        self,
        identity: StateIdentity | None = None,
        prefix: PrefixHash | None = None,
        page_tokens: int | None = None,
        checkpoint_dtype: str | None = None,
    ) -> tuple[Refusal, ...]:
        """Fields in which this bundle differs from what is expected (None: anything will do)."""
        found: list[Refusal] = []
        if identity is not None:
            found += identity_refusals(identity, self.identity)
        if page_tokens is not None and page_tokens != self.page_tokens:
            found.append(Refusal("page_tokens", str(page_tokens), str(self.page_tokens)))
        if checkpoint_dtype is not None and checkpoint_dtype != self.checkpoint_dtype:
            found.append(Refusal("checkpoint_dtype", checkpoint_dtype, self.checkpoint_dtype))
        if prefix is not None:
            found += prefix_refusals(prefix, self.prefix)
        return tuple(found)

    def require(
        self,
        identity: StateIdentity | None = None,
        prefix: PrefixHash | None = None,
        page_tokens: int | None = None,
        checkpoint_dtype: str | None = None,
    ) -> None:
        """As :meth:`refusals`.

        Raises:
            BundleRefusedError: something differs.
        """
        require(self.refusals(identity, prefix, page_tokens, checkpoint_dtype))

    # -- bytes (``kdalab.transfer.blob``) ------------------------------------------------------

    def metadata(self) -> BundleMeta:
        """What is written about it; the checksums are computed if they are not known yet."""
        return blob.metadata(self)

    def parts(self, version: int = VERSION) -> list[Buffer]:
        """The blob in pieces, for a vectored write: the header, then each tensor's own memory.

        Raises:
            BundleFormatError: a version that is not known here.
        """
        return blob.parts(self, version)

    def to_bytes(self, version: int = VERSION) -> bytes:
        """The blob: a safetensors file. See :meth:`parts` for one without a copy."""
        return b"".join(self.parts(version))

    @property
    def blob_bytes(self) -> int:
        """Bytes of the blob."""
        return blob.header_size(self) + self.nbytes

    def write_into(self, target: bytearray | memoryview) -> int:
        """Write the blob to the front of memory that is there already, such as a registered
        buffer; checksums are computed while the bytes move. Returns ``blob_bytes``.

        Raises:
            KdalabError: ``target`` is too small or read-only. Nothing was written.
        """
        return blob.write_into(self, target)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Bundle:
        """Read a blob. Tensors are views of ``data`` (give a ``bytearray`` to have them writable).

        Everything is checked before it is used: the header's size and every size in it, the
        metadata field by field, the stamp of the whole header, each tensor's own stamp, the
        checksum of each tensor, and the shapes against boundary and identity.

        Raises:
            BundleFormatError: damaged, malformed, or of another version.
            BundleRefusedError: a tensor in it is of another identity, prefix or boundary.
        """
        return blob.read(cls, data)

    # -- other forms of the same -------------------------------------------------------------

    def changed(self, **changes: object) -> Bundle:
        """A copy with other fields; checksums are computed anew."""
        return replace(self, **{"checksums": None, **changes})  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Latent, recurrent, conv."""
        return iter((self.latent, self.recurrent, self.conv))

    def __repr__(self) -> str:
        p = self.parallel
        return (
            f"<bundle {self.identity.model} at {self.boundary:,} tokens, rank {p.tp_rank} of "
            f"{p.tp_size}, {self.nbytes:,} bytes>"
        )


def combine(kv: Bundle, state: Bundle) -> Bundle:
    """Latent KV of one bundle with the recurrent and conv state of another.

    Raises:
        BundleRefusedError: unless both are of one identity, prefix and boundary.
    """
    require(
        kv.refusals(state.identity, state.prefix, checkpoint_dtype=state.checkpoint_dtype),
        "latent KV for this state",
    )
    return kv.changed(recurrent=state.recurrent, conv=state.conv)


def bundle_key(identity: StateIdentity, prefix: PrefixHash) -> str:
    """The name under which a store keeps a bundle: identity, prefix, boundary and rank.

    Of hexadecimal digits, hyphens and letters: a file name anywhere, and a key in any store.
    """
    p = identity.parallel
    rank = f"tp{p.tp_rank}of{p.tp_size}-pp{p.pp_rank}of{p.pp_size}"
    return f"kdalab-{identity.digest()[:32]}-{prefix.digest}-{prefix.boundary}-{rank}"


def _check_shapes(b: Bundle) -> None:
    """Every size against every other, so that a bundle that exists is whole."""
    identity, tp = b.identity, b.identity.parallel.tp_size
    for name, axes in (("latent", 4), ("recurrent", 4), ("conv", 3)):
        tensor = getattr(b, name)
        if tensor.ndim != axes or 0 in tensor.shape:
            raise KdalabError(
                f"{name}: shape {list(tensor.shape)}; expected {axes} axes, none of them empty"
            )
    for name, dtype in (
        ("latent", identity.kv_dtype),
        ("recurrent", identity.state_dtype),
        ("conv", identity.conv_dtype),
    ):
        if getattr(b, name).dtype != torch_dtype(dtype):
            raise KdalabError(f"{name}: {getattr(b, name).dtype}, but the identity says {dtype}")
    if b.embeddings is not None and b.embeddings.ndim != 2:
        raise KdalabError(f"embeddings: shape {list(b.embeddings.shape)}; expected [token, hidden]")
    pages = -(-b.boundary // b.page_tokens)
    if b.latent.shape[0] != pages:
        raise KdalabError(
            f"latent: {b.latent.shape[0]} pages of {b.page_tokens} tokens for a boundary of "
            f"{b.boundary:,}; it takes {pages}: key length equals state length"
        )
    if len(b.channels) != 3 or any(c < 1 or c % tp for c in b.channels):
        raise KdalabError(
            f"channels {list(b.channels)}: those of q, k and v, each dealt evenly to {tp} ranks"
        )
    layers, width = _conv_sizes(b)
    if width != sum(b.channels) // tp or layers != b.recurrent.shape[0]:
        raise KdalabError(
            f"conv: {layers} layers of {width} channels; {b.recurrent.shape[0]} layers of "
            f"{sum(b.channels) // tp} belong to channels {list(b.channels)} on {tp} ranks "
            f"({identity.conv_layout})"
        )
    heads = b.recurrent.shape[1]
    v_axis = 2 if identity.recurrent_layout == "v_first" else 3
    if heads * b.recurrent.shape[v_axis] != b.channels[2] // tp:
        raise KdalabError(
            f"recurrent: {heads} heads of V = {b.recurrent.shape[v_axis]} "
            f"({identity.recurrent_layout}) are not the {b.channels[2] // tp} channels of v on "
            "this rank"
        )
    k_axis = 3 if identity.recurrent_layout == "v_first" else 2
    if b.channels[0] != b.channels[1] or b.channels[0] // tp % b.recurrent.shape[k_axis]:
        raise KdalabError(
            f"channels {list(b.channels)}: q and k have equally many, in heads of K = "
            f"{b.recurrent.shape[k_axis]} ({identity.recurrent_layout})"
        )


def _conv_sizes(b: Bundle) -> tuple[int, int]:
    """(layers, channels) of the conv state, whichever axis the channels are."""
    axis = 2 if b.identity.conv_layout == "time_first" else 1
    return int(b.conv.shape[0]), int(b.conv.shape[axis])
