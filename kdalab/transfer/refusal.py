"""Why a state is not taken: the field that differs, and both values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kdalab.errors import KdalabError
from kdalab.spec import StateIdentity
from kdalab.transfer.prefix import PrefixHash


def printable(text: str) -> str:
    """Text of a stranger as it may be shown: what moves a cursor, hides or turns letters about is
    written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Refusal(NamedTuple):
    """One field that differs: what this side has, and what the other side brings."""

    field: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return printable(f"{self.field}: ours {self.ours}, theirs {self.theirs}")


class BundleRefusedError(KdalabError):
    """States that must not be combined, with a :class:`Refusal` for each field that differs."""

    def __init__(self, refusals: Iterable[Refusal], what: str = "this bundle") -> None:
        self.refusals = tuple(refusals)
        fields = "; ".join(map(str, self.refusals))
        super().__init__(
            f"{what} is refused ({fields}). States combine only under equal identity, prefix "
            "and boundary"
        )


class BundleFormatError(KdalabError):
    """Bytes that are no bundle, or a damaged one. Nothing of them was used."""


@contextmanager
def only_format_errors() -> Iterator[None]:
    """Whatever fails while the bytes of a stranger are read: they are no bundle, and nothing worse.

    Raises:
        BundleFormatError: in place of what Python, torch or pydantic raise.
    """
    try:
        yield
    except KdalabError:
        raise  # it says already what was wrong
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        what = f"{type(error).__name__}: {str(error)[:200]}"
        raise BundleFormatError(f"the bundle cannot be read ({what})") from error


def identity_refusals(ours: StateIdentity, theirs: StateIdentity) -> list[Refusal]:
    """A refusal for each field of the identity that differs."""
    mine, other = ours.to_dict(), theirs.to_dict()
    return [Refusal(name, str(mine[name]), str(other[name])) for name in ours.difference(theirs)]


def prefix_refusals(ours: PrefixHash, theirs: PrefixHash) -> list[Refusal]:
    """A refusal for boundary, text and images, where they differ.

    Texts of different length differ as well; then the boundary alone is named.
    """
    if ours.boundary != theirs.boundary:
        return [Refusal("boundary", f"{ours.boundary:,}", f"{theirs.boundary:,}")]
    found = []
    if ours.text != theirs.text:
        found.append(Refusal("prefix", ours.text[:12], theirs.text[:12]))
    if ours.images != theirs.images:
        found.append(Refusal("images", _shown(ours.images), _shown(theirs.images)))
    return found


def require(refusals: Iterable[Refusal], what: str = "this bundle") -> None:
    """Do nothing without refusals.

    Raises:
        BundleRefusedError: with all of them.
    """
    found = tuple(refusals)
    if found:
        raise BundleRefusedError(found, what)


def _shown(images: str) -> str:
    return images[:12] if images else "none"
