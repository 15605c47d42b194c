"""One place that chooses the op: by phase, and by the backend that was asked for.

Extend has many tokens of one sequence and runs the chunk form; decode has one token of many
sequences and runs the recurrence; verify has a few tokens of many sequences, and runs the
recurrence token by token because every intermediate state must be kept. A state that is wanted at
a boundary needs a form that gives it out there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import torch

from kdalab.errors import KdalabError, shown
from kdalab_kernels.dispatch import backend_for


class Work(StrEnum):
    """What a forward is for."""

    EXTEND = "extend"
    DECODE = "decode"
    VERIFY = "verify"


OPS: dict[Work, tuple[str, str]] = {
    Work.EXTEND: ("chunk_kda", "many tokens of one sequence: the chunk form, cell by cell"),
    Work.DECODE: ("fused_recurrent_kda", "one token of each sequence: the recurrence"),
    Work.VERIFY: (
        "fused_recurrent_kda",
        "a few tokens of each sequence, every intermediate state kept: the recurrence",
    ),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """``op`` of ``kdalab_kernels`` on ``backend`` for ``work``, and ``why``."""

    work: Work
    op: str
    backend: str
    why: str


@cache
def choose(work: Work, backend: str = "auto") -> Choice:
    """The op and backend of a phase; the engine's pools are in the CPU's memory.

    Raises:
        KdalabError: the op has no such backend here; the message lists those that it has.
    """
    op, why = OPS[work]
    try:
        return Choice(work, op, backend_for(op, backend, torch.device("cpu")), why)
    except ValueError as error:
        raise KdalabError(f"backend = {shown(backend)} for {work}: {error}") from None
