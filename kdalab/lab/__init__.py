"""Traces in, figures out: the engine's own cache code over real workloads, with counting pools."""

from kdalab.lab.account import Account
from kdalab.lab.readers import READERS, Reader, ReadOptions, open_trace
from kdalab.lab.replay import ReplayResult, replay
from kdalab.lab.request import Report, report_of
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import Setup
from kdalab.lab.synthetic import synthetic_trace, write_synthetic
from kdalab.lab.trace import Requests, Skipped, Trace, TraceFile, TraceRequest, read_mooncake

__all__ = [
    "READERS",
    "Account",
    "ReadOptions",
    "Reader",
    "ReplayResult",
    "Report",
    "Requests",
    "Setup",
    "Skipped",
    "Trace",
    "TraceFile",
    "TraceRequest",
    "open_trace",
    "read_mooncake",
    "replay",
    "replay_setup",
    "report_of",
    "synthetic_trace",
    "write_synthetic",
]
