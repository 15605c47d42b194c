"""What may fail while the engine runs, and what becomes of it.

Taking a slot, moving bytes and asking the cache or the model can fail: memory runs out, a copy
breaks, a request's own numbers are no numbers. Each of these leaves nothing half done, and costs
the least that it can: a checkpoint is skipped, a load is done without, or one request ends with
the reason in its name. The others go on.

What gives back (frees, unlocks, transfers of ownership) only moves numbers and cannot fail. So
whatever was taken before a failure is given back in its handler.
"""

from __future__ import annotations

FAILURES = (ValueError, RuntimeError, MemoryError)
"""Bad input or a full pool (``KdalabError``), torch's own errors, memory that has run out. An
``InvariantError`` is none of these: a broken rule has to be seen."""


def named(error: BaseException) -> str:
    """The error's first line, or the name of its class if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
