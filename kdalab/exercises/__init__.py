"""Exercises with checks: write a function, and see the smallest case that it gets wrong.

``check("ex07", split_node)`` in a notebook, ``kdalab check ex07 FILE`` in a terminal.
"""

from kdalab.exercises.catalog import EXERCISES, find
from kdalab.exercises.checking import check
from kdalab.exercises.exercise import Exercise
from kdalab.exercises.hints import hint
from kdalab.exercises.outcome import Outcome, Status
from kdalab.exercises.values import Edge, Held, PathNode

__all__ = [
    "EXERCISES",
    "Edge",
    "Exercise",
    "Held",
    "Outcome",
    "PathNode",
    "Status",
    "check",
    "find",
    "hint",
]
