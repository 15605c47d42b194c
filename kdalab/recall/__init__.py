"""Trained tiny networks that show what a fixed state forgets: associative recall."""

from kdalab.recall.evaluate import CHANCE, NETWORKS, PAIRS, Row, curves
from kdalab.recall.files import check_free, command_for, load, read_metadata, save
from kdalab.recall.networks import TITLES, memory_of
from kdalab.recall.task import KEYS, SIMILARITIES
from kdalab.recall.training import Plan, Trained, train

__all__ = [
    "CHANCE",
    "KEYS",
    "NETWORKS",
    "PAIRS",
    "SIMILARITIES",
    "TITLES",
    "Plan",
    "Row",
    "Trained",
    "check_free",
    "command_for",
    "curves",
    "load",
    "memory_of",
    "read_metadata",
    "save",
    "train",
]
