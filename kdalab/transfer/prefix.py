"""Which prefix a state belongs to: the text, the images in it, and where it ends.

Text and images are hashed apart, so that a refusal can say which of the two differs: the ids of
an image's placeholders are the same for every image.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from kdalab.cache import Image
from kdalab.errors import KdalabError

HASH_BYTES = 16
"""Bytes of one hash: two of 2^40 different prefixes agree with probability 2^-49."""

NO_IMAGES = ""

_HEX = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class PrefixHash:
    """The first ``boundary`` tokens of a prompt, by what they say.

    ``text`` is the BLAKE2b hash, in hex, of the token ids as little-endian int32; ``images`` that
    of the images whose placeholders begin there, "" without any.

    Raises:
        KdalabError: a boundary below 1, or a hash of another form.
    """

    boundary: int
    text: str
    images: str = NO_IMAGES

    def __post_init__(self) -> None:
        if type(self.boundary) is not int or self.boundary < 1:
            raise KdalabError(f"a prefix of {self.boundary!r} tokens; it has at least 1")
        if not _HEX.fullmatch(self.text):
            raise KdalabError(f"prefix.text is {self.text[:40]!r}; it is 32 hexadecimal digits")
        if self.images and not _HEX.fullmatch(self.images):
            raise KdalabError(
                f"prefix.images is {self.images[:40]!r}; it is 32 hexadecimal digits or empty"
            )

    @classmethod
    def of(
        cls, tokens: Sequence[int], boundary: int | None = None, images: Sequence[Image] = ()
    ) -> PrefixHash:
        """Hash ``tokens[:boundary]`` (all of them by default).

        Raises:
            KdalabError: fewer tokens than the boundary, or an id that is no 31-bit number.
        """
        at = len(tokens) if boundary is None else boundary
        return prefix_hashes(tokens, [at], images)[0]

    @property
    def digest(self) -> str:
        """One hash of all three: what a key of a store contains."""
        text = f"{self.boundary}:{self.text}:{self.images}"
        return blake2b(text.encode(), digest_size=HASH_BYTES).hexdigest()


def prefix_hashes(
    tokens: Sequence[int], boundaries: Iterable[int], images: Sequence[Image] = ()
) -> list[PrefixHash]:
    """The hash at each of ``boundaries`` (ascending), in one pass over the tokens.

    Raises:
        KdalabError: as :meth:`PrefixHash.of`; or boundaries that do not ascend.
    """
    try:
        ids = array("i", tokens)
    except (TypeError, OverflowError) as error:
        raise KdalabError(f"token ids are whole numbers below 2**31: {error}") from None
    if array("i", [1]).tobytes() != b"\x01\x00\x00\x00":
        ids.byteswap()  # a hash means the same on every machine
    data = memoryview(ids).cast("B")
    running = blake2b(digest_size=HASH_BYTES)
    done, found = 0, []
    for at in boundaries:
        if not done <= at <= len(tokens) or at < 1:
            raise KdalabError(
                f"boundary {at:,} of a prompt of {len(tokens):,} tokens; boundaries ascend from 1 "
                "to the prompt's length"
            )
        running.update(data[4 * done : 4 * at])
        done = at
        found.append(PrefixHash(at, running.copy().hexdigest(), _of_images(images, at)))
    return found


def _of_images(images: Sequence[Image], boundary: int) -> str:
    """Hash of the images that begin before ``boundary``, each with its place."""
    within = sorted((i.start, i.digest) for i in images if i.start < boundary)
    if not within:
        return NO_IMAGES
    running = blake2b(digest_size=HASH_BYTES)
    for start, digest in within:
        running.update(start.to_bytes(8, "little") + len(digest).to_bytes(8, "little") + digest)
    return running.hexdigest()
