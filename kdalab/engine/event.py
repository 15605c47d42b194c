"""What every event has: the request it concerns, a sentence, and a form for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; ``request`` is the request it concerns, "" for none."""

    request: str

    tone: ClassVar[str] = "plain"
    """How a page marks it: plain, restore, copy, compute, snapshot, evict, finish."""

    def sentence(self) -> str:
        """One plain sentence for the step bar and the log."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The event's name, as in the design."""
        return type(self).__name__

    def as_dict(self) -> dict[str, Any]:
        """Name, sentence and fields, ready for JSON."""
        return {"event": self.name, "sentence": self.sentence(), **asdict(self)}
