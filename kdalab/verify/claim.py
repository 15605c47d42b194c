"""One row of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed, how often it was tried, and how far off the worst case was.

    ``worst`` is a largest difference, ``limit`` what is allowed (0: bit for bit). ``skipped``
    says why a claim could not be tried here; it then counts neither as passed nor as failed.
    """

    name: str
    cases: int = 0
    worst: float = 0.0
    limit: float = 0.0
    unit: str = "max |difference|"
    note: str = ""
    skipped: str = ""

    @property
    def passed(self) -> bool:
        """True when it was tried and held. NaN never passes."""
        return not self.skipped and self.cases > 0 and self.worst <= self.limit

    @property
    def failed(self) -> bool:
        """True when it was tried and did not hold."""
        return not self.skipped and not self.passed

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "passed": self.passed}


Progress = Callable[[str, int, int], None]
"""Called with (what is being tried, cases done, cases in all)."""
