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

from kdalab.errors import KdalabError
from kdalab_kernels.dispatch import backends_of, implementation


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
    """The op and backend of a phase.

    Raises:
        KdalabError: the op has no such backend here; the message lists those that it has.
    """
    op, why = OPS[work]
    try:
        found = implementation(op, backend)
    except ValueError as error:
        raise KdalabError(f"backend = {backend!r} for {work}: {error}") from None
    package = found.__module__.split(".")[1]
    names = {b: implementation(op, b).__module__.split(".")[1] for b in backends_of(op)}
    chosen = next((b for b, where in names.items() if where == package), backend)
    return Choice(work, op, chosen, why)
