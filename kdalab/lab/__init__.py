"""Traces in, figures out: the engine's own cache code over real workloads, with counting pools."""

from kdalab.lab.replay import ReplayResult, replay
from kdalab.lab.synthetic import synthetic_trace, write_synthetic
from kdalab.lab.trace import Requests, Skipped, Trace, TraceFile, TraceRequest, read_mooncake

__all__ = [
    "ReplayResult",
    "Requests",
    "Skipped",
    "Trace",
    "TraceFile",
    "TraceRequest",
    "read_mooncake",
    "replay",
    "synthetic_trace",
    "write_synthetic",
]
