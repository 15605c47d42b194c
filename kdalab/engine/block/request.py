"""A request among blocks."""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.cache import HashChain
from kdalab.engine.request import Request


@dataclass(slots=True)
class BlockRequest(Request):
    """As every request; of the slots and pages that it has there it uses none. Its tables are the
    cache's, under ``lease``.

    ``chain`` are the hashes of its prompt; ``deferred`` counts the steps that it waited for a
    block of its hit to be computed, ``preemptions`` how often it had to give its blocks back.
    """

    chain: HashChain | None = None
    deferred: int = 0
    preemptions: int = 0
