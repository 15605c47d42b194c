"""What a transfer lesson has seen: the pieces on the wire, and the whole story, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parcel:
    """One piece on the wire.

    ``kind`` is "embedding", "latent" or "state"; ``start`` and ``end`` its tokens. Sizes in bytes:
    of each kind of state in it, and of the frame as it travels. ``tick`` counts prefill steps so
    far. ``fate`` is what became of it: "taken", "twice" (known already, bit for bit the same),
    "kept" (a state before the last latent KV: it waits), "early" (such a state, and decode began),
    "late" (latent KV behind the state), "unused" (nobody waited for it), "damaged", "cut", or
    "other" (of another image).
    ``why`` is the receiver's own message. ``front`` are the tokens that are in place without a gap
    after it, ``missing`` those whose latent KV is not.
    """

    attempt: int
    seq: int
    kind: str
    start: int
    end: int
    latent: int
    recurrent: int
    conv: int
    embedding: int
    frame: int
    tick: int
    fate: str
    why: str = ""
    front: int = 0
    missing: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in it."""
        return self.latent + self.recurrent + self.conv + self.embedding


@dataclass(frozen=True, slots=True)
class TransferRun:
    """The whole story, as plain data. Lengths in tokens.

    ``held`` tokens of latent KV were on the decode side before, with a state at ``idle_state`` that
    is of no use (0: none). ``image`` is [start, end) of the image, or None. ``asked`` is, for
    each attempt, from which token on latent KV was wanted. ``chunks`` are the (start, end, attempt)
    that prefill computed, step by step. ``early`` are the tokens that were missing when decode
    began. ``difference`` is max |difference| of the logits to those of one engine, up to the first
    other choice; ``refused`` what the request ended with, "" for all of its tokens.
    """

    way: str
    n_tokens: int
    held: int
    idle_state: int
    image: tuple[int, int] | None
    chunk: int
    parcels: tuple[Parcel, ...]
    asked: tuple[int, ...]
    chunks: tuple[tuple[int, int, int], ...]
    early: int
    fell_back: str
    generated: tuple[int, ...]
    alone: tuple[int, ...]
    difference: float
    refused: str
    token_bytes: int
    state_bytes: int

    @property
    def first_wrong(self) -> int | None:
        """Place of the first token in the output that is another than one engine's."""
        pairs = enumerate(zip(self.generated, self.alone, strict=False))
        wrong = next((i for i, (a, b) in pairs if a != b), None)
        short = len(self.generated) if len(self.generated) < len(self.alone) else None
        return short if wrong is None else wrong
