"""Copies between the device and the host, as the cache sees them: decided here, done elsewhere.

A transfer is a job for whoever owns the memory. The cache says what to copy where and holds the
locks meanwhile; the mover copies, and answers with ``ack`` or ``fail``, once.

    wish = cache.host.due()[0]                                  # what is hot enough
    job = cache.host.start_backup(wish.node, pages, slot)       # numbers of the host's pools
    ...copy job.sources -> job.targets and job.state...
    cache.host.ack(job.id)                                      # or fail(job.id)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kdalab.cache.node import Node
from kdalab.cache.protocol import Change, Evicted


class Direction(StrEnum):
    """Which way a transfer goes."""

    BACKUP = "backup"
    LOAD = "load"


class Wish(NamedTuple):
    """What a copy of the path to ``node`` still needs: so many pages, and its state or not.

    ``node`` is an id, ``boundary`` the tokens up to its end.
    """

    node: int
    boundary: int
    pages: int
    state: bool


class Transfer(NamedTuple):
    """A job: copy page ``sources[i]`` to ``targets[i]``, and the state slot likewise.

    For a backup the sources are the device's numbers, for a load the host's. ``state`` is
    (source slot, target slot), or None when only pages move.
    """

    id: int
    direction: Direction
    node: int
    boundary: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    state: tuple[int, int] | None


class Landed(NamedTuple):
    """What became of an acknowledged transfer.

    ``duplicate_pages`` and ``state_existed`` tell what a load brought that the device had got
    meanwhile; both stay with the caller, who frees them.
    """

    changes: tuple[Change, ...]
    duplicate_pages: tuple[int, ...]
    state_existed: bool
    evicted: Evicted


@dataclass(slots=True)
class Segment:
    """The part of a transfer that belongs to one node: one target page for each of its pages."""

    node: Node
    targets: Sequence[int]


@dataclass(slots=True)
class Flight:
    """A transfer under way. ``anchor`` is the node up to which device KV is locked, ``node`` the
    one whose path is locked on the host and, for a backup with a state, whose state is locked."""

    job: Transfer
    node: Node
    anchor: Node
    locks_state: bool
    segments: list[Segment]

    def split(self, upper: Node, lower: Node, pages: int) -> None:
        """``lower`` was cut after ``pages`` pages: its part becomes two, and both get their ack."""
        for index, part in enumerate(self.segments):
            if part.node is lower:
                self.segments.insert(index, Segment(upper, part.targets[:pages]))
                part.targets = part.targets[pages:]
                return


def cut_into_segments(nodes: Sequence[Node], pages: Sequence[int]) -> list[Segment]:
    """One segment a node: its share of ``pages``, in order."""
    segments, at = [], 0
    for node in nodes:
        n = len(node.pages or node.host_pages)
        segments.append(Segment(node, tuple(pages[at : at + n])))
        at += n
    return segments
