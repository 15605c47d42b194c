"""What happens between the device and the host: events of ``kdalab.engine.events``.

A transfer starts in one step and is acknowledged at the start of the next. ``pages`` and ``state``
are its targets: host numbers for a backup, device numbers for a load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kdalab.cache.protocol import Change
from kdalab.engine.events import Event


def _what(pages: int, state: bool) -> str:
    """ "4 latent pages and the last state" """
    parts = [f"{pages:,} latent page{'s' * (pages != 1)}"] if pages else []
    return " and ".join(parts + ["the last state"] * state)


@dataclass(frozen=True, slots=True)
class BackupStarted(Event):
    """A node is hot: what it lacks on the host is on its way there."""

    transfer: int
    node: int
    boundary: int
    pages: tuple[int, ...]
    state: int | None
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        what = _what(len(self.pages), self.state is not None)
        return f"Node {self.node} is used often: {what} start on their way to the host."


@dataclass(frozen=True, slots=True)
class BackedUp(Event):
    """The host holds the copy from now on."""

    transfer: int
    node: int
    boundary: int
    changes: tuple[Change, ...]
    bytes: int

    tone: ClassVar[str] = "copy"

    def sentence(self) -> str:
        return f"The host holds the first {self.boundary:,} tokens of node {self.node} as well."


@dataclass(frozen=True, slots=True)
class BackupSkipped(Event):
    """The host cannot take this copy now; nothing was taken."""

    node: int
    boundary: int
    reason: str

    def sentence(self) -> str:
        return f"Node {self.node} is not copied to the host: {self.reason}."


@dataclass(frozen=True, slots=True)
class LoadStarted(Event):
    """The request waits one step: the host holds more of its prompt than the device."""

    transfer: int
    node: int
    boundary: int
    pages: tuple[int, ...]
    state: int | None
    bytes: int

    tone: ClassVar[str] = "restore"

    def sentence(self) -> str:
        what = _what(len(self.pages), self.state is not None)
        return (
            f"{self.request} waits for {what} from the host, to be restored at {self.boundary:,}."
        )


@dataclass(frozen=True, slots=True)
class LoadSkipped(Event):
    """A load that could not be started: the request starts from what the device has."""

    boundary: int
    reason: str

    def sentence(self) -> str:
        return f"{self.request} does without the host's {self.boundary:,} tokens: {self.reason}."


@dataclass(frozen=True, slots=True)
class Loaded(Event):
    """The device holds the prefix again. What it had got meanwhile went back: ``duplicate_pages``,
    and ``duplicate_state`` (None: the state was needed)."""

    transfer: int
    node: int
    boundary: int
    changes: tuple[Change, ...]
    duplicate_pages: tuple[int, ...]
    duplicate_state: int | None
    bytes: int

    tone: ClassVar[str] = "restore"

    def sentence(self) -> str:
        return f"Tokens up to {self.boundary:,} are back from the host, at node {self.node}."


@dataclass(frozen=True, slots=True)
class TransferFailed(Event):
    """A copy did not happen; its targets went back and nothing else has changed."""

    transfer: int
    direction: str
    pages: tuple[int, ...]
    state: int | None
    reason: str

    tone: ClassVar[str] = "evict"

    def sentence(self) -> str:
        return f"The {self.direction} {self.transfer} is given up: {self.reason}."
