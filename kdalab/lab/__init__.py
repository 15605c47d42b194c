"""Traces in, figures out: the engine's own cache code over real workloads, with counting pools."""

from kdalab.lab.readers import READERS, Reader, ReadOptions, open_trace
from kdalab.lab.replay import ReplayResult, replay
from kdalab.lab.request import Report, report_of
from kdalab.lab.synthetic import synthetic_trace, write_synthetic
from kdalab.lab.trace import Requests, Skipped, Trace, TraceFile, TraceRequest, read_mooncake

__all__ = [
    "READERS",
    "ReadOptions",
    "Reader",
    "ReplayResult",
    "Report",
    "Requests",
    "Skipped",
    "Trace",
    "TraceFile",
    "TraceRequest",
    "open_trace",
    "read_mooncake",
    "replay",
    "report_of",
    "synthetic_trace",
    "write_synthetic",
]
