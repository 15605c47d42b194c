"""Chained hashes of a prompt at the fine unit, and the coarse ones read off the same chain.

``hash_i = H(hash_{i-1} || tokens of unit i || images in unit i)``, with salt and adapter in the
root. So each hash stands for the complete prefix up to its end, and the hash of a block of
``scale`` units is that of its last unit: one chain serves every block size (vLLM's
``BlockHashListWithBlockSize``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from kdalab.cache.keys import PrefixKey
from kdalab.errors import KdalabError

#: Bytes of one hash. 128 bits: two of 2^40 different prefixes agree with probability 2^-49.
HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class Image:
    """Tokens [start, end) are placeholders of the image with this hash."""

    start: int
    end: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What makes equal tokens a different prefix: who may share (salt), the adapter's weights,
    and what the placeholders of images stand for.

    Raises:
        KdalabError: an image over no token.
    """

    salt: str = ""
    adapter: str = ""
    images: tuple[Image, ...] = ()

    def __post_init__(self) -> None:
        for image in self.images:
            if not 0 <= image.start < image.end:
                raise KdalabError(
                    f"an image over tokens [{image.start}, {image.end}); it covers at least one"
                )

    def root(self, unit: int, width: int) -> bytes:
        """The hash before the first unit, of ``unit`` tokens in ``width`` bytes."""
        return _root(self.salt, self.adapter, unit, width)

    def of_units(self, unit: int) -> dict[int, bytes]:
        """Unit index -> what its images add. An image counts in every unit that it touches, with
        its place: the same image one token later is another prefix."""
        if not self.images:
            return {}
        found: dict[int, list[bytes]] = {}
        for image in sorted(self.images, key=lambda i: (i.start, i.end, i.digest)):
            for index in range(image.start // unit, (image.end - 1) // unit + 1):
                start = (image.start - index * unit).to_bytes(8, "little", signed=True)
                size = (image.end - image.start).to_bytes(8, "little")
                length = len(image.digest).to_bytes(8, "little")
                found.setdefault(index, []).append(start + size + length + image.digest)
        return {index: b"".join(parts) for index, parts in found.items()}


@lru_cache(maxsize=64)
def _root(salt: str, adapter: str, unit: int, width: int) -> bytes:
    # A lone surrogate is text like any other here: what differs must hash differently.
    names = [text.encode("utf-8", "surrogatepass") for text in (salt, adapter)]
    fields = [*names, b"%d" % unit, b"%d" % width]
    # Lengths come first: ("ab", "c") and ("a", "bc") must differ.
    text = b"".join(len(f).to_bytes(8, "little") + f for f in fields)
    return blake2b(text, digest_size=HASH_BYTES).digest()


NO_EXTRAS = ExtraKeys()


def chain_hashes(
    data: bytes,
    width: int,
    parent: bytes,
    extras: Mapping[int, bytes] | None = None,
    first: int = 0,
) -> list[bytes]:
    """Hashes of the whole units in ``data``, ``width`` bytes each, after the hash ``parent``.

    ``extras`` are those of :meth:`ExtraKeys.of_units`; ``first`` is the index of the first unit.
    """
    hashes: list[bytes] = []
    add, size = hashes.append, HASH_BYTES
    if not extras:
        for start in range(0, len(data) - width + 1, width):
            parent = blake2b(parent + data[start : start + width], digest_size=size).digest()
            add(parent)
        return hashes
    for i, start in enumerate(range(0, len(data) - width + 1, width), first):
        text = parent + data[start : start + width] + extras.get(i, b"")
        parent = blake2b(text, digest_size=size).digest()
        add(parent)
    return hashes


class HashChain:
    """The hashes of one sequence of tokens, which may grow.

    ``hashes[i]`` stands for ``tokens[:(i + 1) * unit]``; ``n_tokens`` also counts the tokens of
    the last unit while that is incomplete.

    Args:
        key: the tokens; its pages must divide the unit.
        unit: tokens of one hash (vLLM's ``hash_block_size``, ``--prefix-match-unit``).
        extra: what else tells prefixes apart.

    Raises:
        KdalabError: the unit is not a multiple of the key's page.
    """

    __slots__ = ("_extras", "extra", "hashes", "key", "unit")

    def __init__(self, key: PrefixKey, unit: int, extra: ExtraKeys = NO_EXTRAS) -> None:
        self.unit, self.key, self.extra = unit, key, extra
        width = self._width(key)
        self._extras = extra.of_units(unit)
        self.hashes = chain_hashes(key.data, width, extra.root(unit, width), self._extras)

    @property
    def n_tokens(self) -> int:
        """Tokens of the sequence."""
        return self.key.n_tokens

    @property
    def hashed(self) -> int:
        """Tokens that have a hash: whole units."""
        return len(self.hashes) * self.unit

    def at(self, boundary: int) -> bytes:
        """The hash of ``tokens[:boundary]``; ``boundary`` is a multiple of the unit, not 0."""
        return self.hashes[boundary // self.unit - 1]

    def of_blocks(self, block: int) -> list[bytes]:
        """The hash of every whole block of ``block`` tokens: every scale-th of the fine ones."""
        scale = block // self.unit
        return self.hashes if scale == 1 else self.hashes[scale - 1 :: scale]

    def copy(self) -> HashChain:
        """The same sequence, to be continued on its own."""
        twin = HashChain.__new__(HashChain)
        twin.unit, twin.key, twin.extra = self.unit, self.key, self.extra
        twin._extras, twin.hashes = self._extras, self.hashes.copy()
        return twin

    def extend(self, key: PrefixKey) -> None:
        """Take ``key``, a continuation of the sequence so far: only what is new is hashed.

        Raises:
            KdalabError: it does not continue the sequence. Nothing has changed.
        """
        if key is self.key:
            return
        width, old = self._width(key), self.key
        if width != self._width(old) or not key.data.startswith(old.data):
            raise KdalabError("the key does not continue the sequence that was hashed so far")
        done = len(self.hashes)
        parent = self.hashes[-1] if done else self.extra.root(self.unit, width)
        self.hashes += chain_hashes(key.data[done * width :], width, parent, self._extras, done)
        self.key = key

    def _width(self, key: PrefixKey) -> int:
        pages, rest = divmod(self.unit, key.page_tokens)
        if rest or pages < 1:
            raise KdalabError(
                f"a hash unit of {self.unit} tokens is not a multiple of the key's pages of "
                f"{key.page_tokens}"
            )
        return pages * key.page_bytes
