"""The latent pages of a path, put together only when somebody reads them.

A lease names every page of its prompt. An engine reads them; a replay, which only counts, never
does, and with prompts of thousands of pages putting them together would be most of its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload


class PagePath(Sequence[int]):
    """Page numbers, in order; equal to a tuple of the same. Immutable.

    Args:
        parts: the pages of each edge, top first. They are not copied and must not change.
        above: what comes before them.
    """

    __slots__ = ("_above", "_pages", "_parts", "_size")

    def __init__(self, parts: Sequence[Sequence[int]], above: PagePath | None = None) -> None:
        self._parts, self._above = parts, above
        self._size: int = sum([len(p) for p in parts]) + (len(above) if above is not None else 0)
        self._pages: tuple[int, ...] | None = None

    @property
    def pages(self) -> tuple[int, ...]:
        """All of them; put together once."""
        if self._pages is None:
            found: list[Sequence[int]] = []
            path: PagePath | None = self
            while path is not None:
                if path._pages is not None:
                    found.append(path._pages)
                    break
                found += reversed(path._parts)
                path = path._above
            self._pages = tuple(chain.from_iterable(reversed(found)))
            self._parts, self._above = (), None
        return self._pages

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return iter(self.pages)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        return self.pages[at]

    def __add__(self, more: Sequence[int]) -> tuple[int, ...]:
        return self.pages + tuple(more)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PagePath):
            return self.pages == other.pages
        return self.pages == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.pages)

    def __repr__(self) -> str:
        return repr(self.pages)
