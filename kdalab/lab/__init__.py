"""Traces in, figures out: the engine's own cache code over real workloads, with counting pools."""

from kdalab.lab.replay import ReplayResult, replay
from kdalab.lab.synthetic import write_synthetic
from kdalab.lab.trace import Skipped, Trace, TraceRequest, read_mooncake

__all__ = [
    "ReplayResult",
    "Skipped",
    "Trace",
    "TraceRequest",
    "read_mooncake",
    "replay",
    "write_synthetic",
]
