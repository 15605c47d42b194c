"""Who guesses the next tokens. A drafter never decides anything: the model verifies each guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Drafter(Protocol):
    """Proposes the tokens after a sequence."""

    def propose(self, tokens: Sequence[int], n: int) -> tuple[int, ...]:
        """At most ``n`` token ids that may follow ``tokens``; fewer or none when it has no idea."""
        ...


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """What followed the last ``ngram`` tokens when they last stood in the sequence.

    No second model: text that quotes or repeats itself is drafted from itself.
    """

    ngram: int = 2

    def propose(self, tokens: Sequence[int], n: int) -> tuple[int, ...]:
        size = self.ngram
        if n <= 0 or len(tokens) <= size:
            return ()
        last = tuple(tokens[-size:])
        for start in range(len(tokens) - size - 1, -1, -1):
            if tuple(tokens[start : start + size]) == last:
                return tuple(tokens[start + size : start + size + n])
        return ()


@dataclass(frozen=True, slots=True)
class Scripted:
    """Reads its drafts from a known continuation, with every ``miss``-th token wrong.

    ``texts`` are whole sequences, prompt and output; the one that ``tokens`` begins is read on.
    ``miss`` 0 drafts all right, 1 all wrong. For tests and for pages that show acceptance.
    """

    texts: tuple[tuple[int, ...], ...]
    miss: int = 0

    def propose(self, tokens: Sequence[int], n: int) -> tuple[int, ...]:
        at = len(tokens)
        for text in self.texts:
            if text[:at] == tuple(tokens):
                return tuple(
                    token ^ 1 if self.miss and (at + i) % self.miss == 0 else token
                    for i, token in enumerate(text[at : at + n])
                )
        return ()
