"""Text of tokens as they come: only what no later token can change, and up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

UNDECODED = "\N{REPLACEMENT CHARACTER}"

CHARACTER_TOKENS = 3
"""A character has at most four bytes, so at most three tokens wait for one that ends it."""


class Text:
    """What a reader is given, piece by piece.

    Args:
        decode: ids to text.
        stops: strings before the first of which the text ends.
        silent: ids that end an answer and are no part of its text.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        stops: Sequence[str] = (),
        silent: Collection[int] = (),
    ) -> None:
        self.decode, self.stops, self.silent = decode, tuple(stops), frozenset(silent)
        self.ids: list[int] = []
        self.said = 0  # characters
        self.has_stopped = False  # a stop string has come

    def push(self, token: int) -> str:
        """The text that has become certain with one token more."""
        if token in self.silent:
            return ""
        self.ids.append(token)
        text = self.decode(self.ids)
        certain = text
        if text.endswith(UNDECODED):  # perhaps half a character
            certain = text.rstrip(UNDECODED)
            settled = self.decode(self.ids[:-CHARACTER_TOKENS])
            if len(settled) > len(certain) and text.startswith(settled):
                certain = settled
        return self._new(certain, held=True)

    def end(self) -> str:
        """What was held back, when no token comes any more."""
        return self._new(self.decode(self.ids), held=False)

    def _new(self, text: str, held: bool) -> str:
        """What of ``text`` can be said; with ``held`` not what may begin a stop string."""
        if self.has_stopped:
            return ""
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        end = len(text)
        if found:
            self.has_stopped, end = True, min(found)
        elif held:
            end -= max((_overlap(text, stop) for stop in self.stops), default=0)
        new = text[self.said : end]
        self.said += len(new)
        return new


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of ``text`` with which ``stop`` begins."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
