"""Named scenarios, the steps through them, and the recordings that pages and notebooks show."""

from kdalab.lessons.chunks import DECAYS, ChunkRun, Span, play_chunks
from kdalab.lessons.cold import Measured, cold_run
from kdalab.lessons.player import Recording, StateImage, lesson_model, play
from kdalab.lessons.restore import RESTORE, scenario
from kdalab.lessons.scenario import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MIN_NEW_TOKENS,
    Prompt,
    Scenario,
)
from kdalab.lessons.steps import Step, steps_of
from kdalab.lessons.tree import STORIES, TREE_BYTES, Act, TreeRun, play_tree

__all__ = [
    "DECAYS",
    "MAX_NEW_TOKENS",
    "MAX_PROMPT_TOKENS",
    "MIN_NEW_TOKENS",
    "RESTORE",
    "STORIES",
    "TREE_BYTES",
    "Act",
    "ChunkRun",
    "Measured",
    "Prompt",
    "Recording",
    "Scenario",
    "Span",
    "StateImage",
    "Step",
    "TreeRun",
    "cold_run",
    "lesson_model",
    "play",
    "play_chunks",
    "play_tree",
    "scenario",
    "steps_of",
]
