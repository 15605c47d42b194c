"""What came of checking an answer: text for a terminal, HTML with a picture for a notebook."""

from __future__ import annotations

import html
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    UNSOLVED = "not solved yet"
    WRONG = "not right yet"
    RAISED = "it raised an error"
    CHANGED = "it changes what it was given"
    TOO_LONG = "it takes too long"
    UNSTEADY = "it answers differently each time"
    SKIPPED = "cannot be checked here"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one check. True where the answer passed.

    ``call`` is the smallest call found that shows the fault; ``expected`` and ``got`` are what it
    should return and what it does; ``difference`` names the first place where they part. ``tried``
    is false where no case was run: the file does not run, or has no such function.
    """

    name: str
    title: str
    status: Status
    cases: int = 0
    call: str = ""
    expected: str = ""
    got: str = ""
    difference: str = ""
    picture: str = ""
    picture_text: str = ""
    printed: str = ""
    tried: bool = True

    @property
    def passed(self) -> bool:
        """Was every case right?"""
        return self.status is Status.PASSED

    def __bool__(self) -> bool:
        return self.passed

    @property
    def headline(self) -> str:
        """The result in one line."""
        mark = "✓" if self.passed else "·" if self.status is Status.UNSOLVED else "✗"
        cases = f" ({self.cases} cases)" if self.passed else ""
        return f"{mark} {self.name} {self.title}: {self.status}{cases}"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What there is to say, by name, without the picture."""
        named = [
            ("the smallest case found", self.call),
            ("expected", self.expected),
            ("yours", self.got),
            ("", self.difference),
            ("your code printed", self.printed),
        ]
        return [(name, value) for name, value in named if value]

    @property
    def text(self) -> str:
        """All of it, in plain text, for a notebook."""
        return self.text_with(f'hint("{self.name}")')

    @property
    def terminal_text(self) -> str:
        """As :attr:`text`, with the command that helps in a terminal."""
        return self.text_with(f"`kdalab check {self.name} --hint`")

    def text_with(self, help_words: str) -> str:
        """All of it, in plain text; ``help_words`` is what to ask for a hint."""
        parts = [self.headline]
        parts += [f"  {name}: {value}" if name else f"  {value}" for name, value in self.lines]
        if self.picture_text:
            parts += ["", *(f"  {line}" for line in self.picture_text.splitlines())]
        if self.status is Status.UNSOLVED:
            parts.append(f"  {help_words} helps")
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from kdalab.viz.css import stylesheet

        ink = {Status.PASSED: "kd-good", Status.UNSOLVED: "muted"}.get(self.status, "kd-bad")
        rows = "".join(
            f"<li>{html.escape(name)}{': ' if name else ''}<code>{html.escape(value)}</code></li>"
            for name, value in self.lines
        )
        help_line = (
            f'<p class="muted"><code>hint("{html.escape(self.name)}")</code> helps.</p>'
            if self.status is Status.UNSOLVED
            else ""
        )
        return (
            f"<style>{stylesheet()}</style>"
            '<div class="kd-why" style="background:var(--kd-bg);padding:12px;max-width:900px">'
            f'<p class="{ink}">{html.escape(self.headline)}</p><ul>{rows}</ul>{help_line}'
            f"{self.picture}</div>"
        )

    def to_json(self) -> str:
        """One line of JSON, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """What :meth:`to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "status": Status(fields["status"])})
