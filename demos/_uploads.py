"""What visitors brought: in memory, under tickets that only the server hands out, and not for long.

A ticket stands in a visitor's own state on the server. No address, no script and no download names
one: text is never taken for a ticket.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gradio as gr

from kdalab.errors import KdalabError

MAX_KEPT = 64
MAX_KEPT_BYTES = 512 << 20
"""Files of all visitors together, one of each, and their bytes in memory; the one used longest ago
goes first."""


class Ticket(str):
    """Stands for a visitor's file."""

    __slots__ = ()


class Uploads:
    """Files by their tickets, no more than ``most`` and ``most_bytes``; the newest is kept even
    where it alone is more."""

    def __init__(self, most: int = MAX_KEPT, most_bytes: int = MAX_KEPT_BYTES) -> None:
        self._most, self._most_bytes, self._lock = most, most_bytes, threading.Lock()
        self._kept: OrderedDict[Ticket, tuple[str, Any]] = OrderedDict()
        self._bytes: dict[Ticket, int] = {}

    def keep(self, visit: str, thing: Any, size: int = 0) -> Ticket:
        """Keep a visitor's file of ``size`` bytes until the visitor brings another one, it is
        dropped, the visitor leaves, or others need room."""
        ticket = Ticket(secrets.token_urlsafe(16))
        with self._lock:
            for older in [known for known, (whose, _) in self._kept.items() if whose == visit]:
                self._forget(older)
            self._kept[ticket], self._bytes[ticket] = (visit, thing), size
            while len(self._kept) > 1 and (
                len(self._kept) > self._most or sum(self._bytes.values()) > self._most_bytes
            ):
                self._forget(next(iter(self._kept)))
        return ticket

    def _forget(self, ticket: Ticket) -> None:
        self._kept.pop(ticket, None)
        self._bytes.pop(ticket, None)

    def get(self, ticket: str) -> Any:
        """The file.

        Raises:
            KdalabError: there is none, or it is gone.
        """
        if not isinstance(ticket, Ticket):
            raise KdalabError(
                "no file of yours is here; upload one on the page, or choose a trace from the list"
            )
        with self._lock:
            if ticket not in self._kept:
                raise KdalabError("your file is no longer kept here; upload it again")
            self._kept.move_to_end(ticket)
            return self._kept[ticket][1]

    def has(self, ticket: str) -> bool:
        """Whether it is still there."""
        with self._lock:
            return ticket in self._kept

    def drop(self, ticket: str) -> None:
        """Forget a file; one that is gone already is fine."""
        with self._lock:
            self._forget(Ticket(ticket))

    def leave(self, visit: str) -> list[Ticket]:
        """Forget what a visitor brought; the tickets that are void now."""
        with self._lock:
            gone = [ticket for ticket, (whose, _) in self._kept.items() if whose == visit]
            for ticket in gone:
                self._forget(ticket)
        return gone


UPLOADS = Uploads()


class Told(Protocol):
    """Hears how far a file has been read, in bytes of its size."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of the visitor's own. Its value is a ``Ticket``, or "" without a file: nothing that an
    address, a script or a download could name.

    Args:
        limit: bytes of the file as it is sent.
        read: the file and its name on the visitor's machine -> what is kept. Raises KdalabError
            for a file that it refuses.
        note: what is kept, and the language -> HTML that says what was read.
        choice: the key of the ``Choice`` whose ``own`` option is this file.
    """

    key: str
    limit: int
    read: Callable[[Path, str, Told], Any]
    note: Callable[[Any, str], str]
    choice: str
    default: str = ""

    def check(self, value: Any) -> str:
        """A ticket, or "" for no file.

        Raises:
            KdalabError: anything else.
        """
        if isinstance(value, Ticket) or value == "":
            return value
        raise KdalabError(
            f"{self.key} = {str(value)[:40]!r}; a file is named by no link and no setting, upload "
            "it on the page"
        )

    def component(self, page: str) -> Any:
        """Holds the ticket, on the server."""
        return gr.State(self.default)

    def update(self, page: str, lang: str, value: Any) -> Any:
        """The ticket."""
        return value

    def told(self, lang: str, ticket: str) -> str:
        """What was read, as HTML; without a file, or once it is gone, nothing."""
        return self.note(UPLOADS.get(ticket), lang) if ticket and UPLOADS.has(ticket) else ""
