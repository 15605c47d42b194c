"""The forms of a trace and Mooncake's reader, under their first names; the other formats are in
``kdalab.lab.readers``."""

from __future__ import annotations

from kdalab.lab.readers.mooncake import BLOCK_TOKENS, FIELDS, TraceFile, read_mooncake
from kdalab.lab.readers.source import MAX_LINE_BYTES
from kdalab.lab.request import (
    MAX_BAD_LINES,
    MAX_TOKENS,
    Requests,
    Skipped,
    Trace,
    TraceRequest,
)

__all__ = [
    "BLOCK_TOKENS",
    "FIELDS",
    "MAX_BAD_LINES",
    "MAX_LINE_BYTES",
    "MAX_TOKENS",
    "Requests",
    "Skipped",
    "Trace",
    "TraceFile",
    "TraceRequest",
    "read_mooncake",
]
