"""Named scenarios, the steps through them, and the recordings that pages and notebooks show."""

from kdalab.lessons.both import Asked, BothRun, Chapter, Found, examples, run_both
from kdalab.lessons.chunks import DECAYS, ChunkRun, Span, play_chunks
from kdalab.lessons.cold import Measured, cold_run
from kdalab.lessons.density import (
    DENSITY_REQUESTS,
    INTERVALS,
    DensityPoint,
    DensityReplays,
    DensityRun,
    best_interval,
    play_density,
)
from kdalab.lessons.figure_blocks import (
    UnitGain,
    Waste,
    WasteCurve,
    gains_by_unit,
    hits_by_policy,
    waste_by_block,
)
from kdalab.lessons.figure_traces import figure_trace
from kdalab.lessons.figure_trades import (
    BudgetCurves,
    Trade,
    hit_rates_over_budgets,
    placement_trades,
)
from kdalab.lessons.figure_tree import TraceTree, trace_tree
from kdalab.lessons.grouping import GroupingRun, LayoutBytes, play_groups
from kdalab.lessons.int8 import (
    Int8Run,
    ScaleLine,
    Served,
    play_int8,
    rounded_with,
    scale_lines,
    shrunk,
)
from kdalab.lessons.invariants import RULES, play_rule
from kdalab.lessons.invariants import Broken as BrokenRule
from kdalab.lessons.joint import JOINT, MIXES, JointRun, Mix, play_joint
from kdalab.lessons.modes import (
    MODE_BLOCK,
    MODE_UNIT,
    Broken,
    ModeAct,
    ModeResult,
    ModeRun,
    play_modes,
)
from kdalab.lessons.pairs import PAIRS, Pair, Share
from kdalab.lessons.parcels import Parcel, TransferRun
from kdalab.lessons.partial import PartialAct, PartialRun, play_partial
from kdalab.lessons.player import Recording, StateImage, lesson_model, play
from kdalab.lessons.restore import RESTORE, scenario
from kdalab.lessons.retention import (
    RETENTION_STORIES,
    Candidate,
    Evicting,
    PolicyFigures,
    RetentionRun,
    play_retention,
    policies_on_trace,
)
from kdalab.lessons.scenario import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MIN_NEW_TOKENS,
    Prompt,
    Scenario,
)
from kdalab.lessons.sharing import SHARING_STRATEGIES, SharingRun, SlotView, play_sharing
from kdalab.lessons.ship_or_replay import real_bytes, refused_offers, worth_lines
from kdalab.lessons.state import (
    RECALL_EPISODES,
    RECALL_SIMILARITY,
    StateRun,
    Write,
    play_state,
    recall_rows,
)
from kdalab.lessons.state import K as STATE_CHANNELS
from kdalab.lessons.steps import Step, steps_of
from kdalab.lessons.transfer import TRANSFER_FAULTS, play_transfer
from kdalab.lessons.tree import STORIES, TREE_BYTES, Act, TreeRun, play_tree
from kdalab.lessons.unified import WORKLOADS, UnifiedRun, play_unified
from kdalab.lessons.verify import (
    MAX_DRAFTS,
    KeptState,
    KnowingDrafter,
    VerifyRun,
    VerifyStep,
    play_verify,
)

__all__ = [
    "DECAYS",
    "DENSITY_REQUESTS",
    "INTERVALS",
    "JOINT",
    "MAX_DRAFTS",
    "MAX_NEW_TOKENS",
    "MAX_PROMPT_TOKENS",
    "MIN_NEW_TOKENS",
    "MIXES",
    "MODE_BLOCK",
    "MODE_UNIT",
    "PAIRS",
    "RECALL_EPISODES",
    "RECALL_SIMILARITY",
    "RESTORE",
    "RETENTION_STORIES",
    "RULES",
    "SHARING_STRATEGIES",
    "STATE_CHANNELS",
    "STORIES",
    "TRANSFER_FAULTS",
    "TREE_BYTES",
    "WORKLOADS",
    "Act",
    "Asked",
    "BothRun",
    "Broken",
    "BrokenRule",
    "BudgetCurves",
    "Candidate",
    "Chapter",
    "ChunkRun",
    "DensityPoint",
    "DensityReplays",
    "DensityRun",
    "Evicting",
    "Found",
    "GroupingRun",
    "Int8Run",
    "JointRun",
    "KeptState",
    "KnowingDrafter",
    "LayoutBytes",
    "Measured",
    "Mix",
    "ModeAct",
    "ModeResult",
    "ModeRun",
    "Pair",
    "Parcel",
    "PartialAct",
    "PartialRun",
    "PolicyFigures",
    "Prompt",
    "Recording",
    "RetentionRun",
    "ScaleLine",
    "Scenario",
    "Served",
    "Share",
    "SharingRun",
    "SlotView",
    "Span",
    "StateImage",
    "StateRun",
    "Step",
    "TraceTree",
    "Trade",
    "TransferRun",
    "TreeRun",
    "UnifiedRun",
    "UnitGain",
    "VerifyRun",
    "VerifyStep",
    "Waste",
    "WasteCurve",
    "Write",
    "best_interval",
    "cold_run",
    "examples",
    "figure_trace",
    "gains_by_unit",
    "hit_rates_over_budgets",
    "hits_by_policy",
    "lesson_model",
    "placement_trades",
    "play",
    "play_chunks",
    "play_density",
    "play_groups",
    "play_int8",
    "play_joint",
    "play_modes",
    "play_partial",
    "play_retention",
    "play_rule",
    "play_sharing",
    "play_state",
    "play_transfer",
    "play_tree",
    "play_unified",
    "play_verify",
    "policies_on_trace",
    "real_bytes",
    "recall_rows",
    "refused_offers",
    "rounded_with",
    "run_both",
    "scale_lines",
    "scenario",
    "shrunk",
    "steps_of",
    "trace_tree",
    "waste_by_block",
    "worth_lines",
]
