"""Images in a prompt: positions whose input is an encoder's output instead of a token's embedding.

Each of these positions has an id that is made of the image's hash and lies beyond the vocabulary.
So whatever compares tokens (the tree, the hash of a prefix) tells images apart without knowing of
them: the same text with another image is another prefix, and the same image is the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch

from kdalab.cache import PrefixKey
from kdalab.engine import events as ev
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.engine.core import Engine
    from kdalab.engine.request import Request

MOST_ID = 2**31 - 1


def media_ids(digest: bytes, n: int, vocab_size: int) -> tuple[int, ...]:
    """Ids of the ``n`` positions of an image, each in [vocab_size, 2^31 - 1): 31 bits a position.

    Raises:
        KdalabError: no positions.
    """
    if n < 1:
        raise KdalabError(f"an image over {n} positions; it covers at least one")
    room = MOST_ID - vocab_size
    ids = []
    for i in range(n):
        found = blake2b(digest + i.to_bytes(4, "little"), digest_size=8).digest()
        ids.append(vocab_size + int.from_bytes(found, "little") % room)
    return tuple(ids)


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """Positions [start, start + n) of a prompt stand for the image with this hash.

    ``embeddings`` [n, hidden] are None where nobody will compute these positions: decode knows an
    image by its hash alone, as long as the state comes from elsewhere.
    """

    start: int
    n: int
    digest: bytes
    embeddings: torch.Tensor | None = None

    @property
    def end(self) -> int:
        """The first position behind it."""
        return self.start + self.n


@dataclass(frozen=True, eq=False, slots=True)
class Media:
    """All images of a prompt, in the order of their positions."""

    spans: tuple[Span, ...]

    def check(
        self, tokens: Sequence[int], vocab_size: int, hidden: int, dtype: torch.dtype
    ) -> tuple[int, ...]:
        """``tokens`` with every image's positions set to 0, which is in every vocabulary.

        Raises:
            KdalabError: spans that overlap or leave the prompt, ids that are not those of the
                image, or embeddings of another shape or dtype, or not finite.
        """
        plain, at = list(tokens), 0
        for span in self.spans:
            if not at <= span.start < span.end <= len(tokens):
                raise KdalabError(
                    f"an image at [{span.start:,}, {span.end:,}) of a prompt of {len(tokens):,} "
                    "tokens; images follow one another within the prompt"
                )
            ids = media_ids(span.digest, span.n, vocab_size)
            if tuple(tokens[span.start : span.end]) != ids:
                raise KdalabError(
                    f"the ids at [{span.start:,}, {span.end:,}) are not those of the image there"
                )
            x = span.embeddings
            if x is not None and (tuple(x.shape) != (span.n, hidden) or x.dtype != dtype):
                raise KdalabError(
                    f"embeddings {list(x.shape)} of {x.dtype}; expected [{span.n}, {hidden}] of "
                    f"{dtype}"
                )
            if x is not None and not bool(x.isfinite().all()):
                raise KdalabError("the embeddings of an image are not finite")
            plain[span.start : span.end] = [0] * span.n
            at = span.end
        return tuple(plain)

    def rows(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(row [k], input [k, hidden]) of the image positions in [first, last), rows counted from
        ``first``; None without any.

        Raises:
            KdalabError: an image there is known by its hash alone.
        """
        at: list[int] = []
        values = []
        for span in self.spans:
            begin, end = max(first, span.start), min(last, span.end)
            if begin >= end:
                continue
            if span.embeddings is None:
                raise KdalabError(
                    f"the image at [{span.start:,}, {span.end:,}) is known by its hash alone: its "
                    "embeddings are needed to compute it"
                )
            at += range(begin - first, end - first)
            values.append(span.embeddings[begin - span.start : end - span.start])
        return (torch.tensor(at), torch.cat(values)) if at else None


def share_key(engine: Engine, request: Request) -> None:
    """Fault ``ignore_images``: of two prompts that differ in an image alone, both have the key of
    the one that came first, as if an image's positions were placeholders."""
    assert request.media is not None
    ids = list(request.tokens)
    whose = ""
    for span in request.media.spans:
        for other in engine.requests.values():
            spans = other.media.spans if other is not request and other.media is not None else ()
            same = next((s for s in spans if (s.start, s.n) == (span.start, span.n)), None)
            if same is not None:
                ids[span.start : span.end] = other.tokens[span.start : span.end]
                whose = other.name
                break
    if whose and tuple(ids) != request.tokens:
        request.key = PrefixKey.from_tokens(tuple(ids), engine.config.page_tokens)
        what = f"an image's positions are placeholders in the key, so it is the key of {whose}."
        engine.emit(ev.FaultInjected(request.name, "ignore_images", what))
