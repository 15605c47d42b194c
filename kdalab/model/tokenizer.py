"""Text to ids without any file: one id a byte, and a few marks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


class ByteTokenizer:
    """Ids 0..255 are bytes of UTF-8; the marks follow.

    ``fingerprint`` names the mapping: states built under another tokenizer's ids describe other
    text, so it is part of every state's identity.
    """

    marks: tuple[str, ...] = ("<bos>", "<eos>", "<pad>", "<system>", "<user>", "<assistant>")

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return 256 + len(self.marks)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that decides which id a text gets."""
        rule = "utf-8 bytes 0..255, then " + " ".join(self.marks)
        return hashlib.sha256(rule.encode()).hexdigest()

    def id_of(self, mark: str) -> int:
        """Id of one of ``marks``."""
        return 256 + self.marks.index(mark)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``. Marks in the text stay text: nobody can type one."""
        return list(text.encode())

    def decode(self, ids: Sequence[int] | Iterable[int]) -> str:
        """Text of ``ids``; marks by name, ids beyond them and broken UTF-8 as U+FFFD."""
        parts: list[str] = []
        run = bytearray()
        for i in ids:
            if 0 <= i < 256:
                run.append(i)
                continue
            parts.append(run.decode(errors="replace"))
            run.clear()
            parts.append(self.marks[i - 256] if 256 <= i < self.vocab_size else "\ufffd")
        parts.append(run.decode(errors="replace"))
        return "".join(parts)
