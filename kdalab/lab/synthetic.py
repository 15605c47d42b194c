"""A made-up trace in Mooncake's form, for when there is no real one at hand.

Sessions share a system prompt, grow turn by turn, and now and then fork, as chat and agent
traffic does. Its statistics are invented: use it to see how things work, not to choose settings.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lab.trace import BLOCK_TOKENS, Trace, TraceRequest

SYSTEM_BLOCKS = 3


def synthetic_rows(n: int, seed: int = 0, sessions: int = 0) -> Iterator[dict[str, Any]]:
    """``n`` rows of a trace; the same arguments give the same rows.

    Args:
        n: requests.
        seed: of the random choices.
        sessions: conversations that go on side by side; n // 8 by default.

    Raises:
        KdalabError: ``n`` is below 1.
    """
    if n < 1:
        raise KdalabError(f"{n:,} made-up requests; use 1 or more")
    chance = random.Random(seed)
    next_id = SYSTEM_BLOCKS
    open_sessions: list[tuple[int, list[int]]] = []  # (tokens, ids of whole blocks)
    target = sessions or max(1, n // 8)
    time = 0
    for _ in range(n):
        time += int(chance.expovariate(1 / 300))
        if open_sessions and (len(open_sessions) >= target or chance.random() < 0.7):
            index = chance.randrange(len(open_sessions))
            tokens, ids = open_sessions[index]
            if chance.random() < 0.15:  # a fork: an earlier turn is edited
                keep = chance.randint(0, len(ids))
                tokens, ids = keep * BLOCK_TOKENS, ids[:keep]
        else:
            index = len(open_sessions)
            open_sessions.append((0, []))
            tokens, ids = SYSTEM_BLOCKS * BLOCK_TOKENS, list(range(SYSTEM_BLOCKS))
        total = tokens + 1 + min(20_000, int(chance.lognormvariate(6.5, 1.1)))
        whole = total // BLOCK_TOKENS
        ids = ids + list(range(next_id, next_id + whole - len(ids)))
        next_id = max(next_id, ids[-1] + 1 if ids else next_id)
        last = [next_id] if total % BLOCK_TOKENS else []
        next_id += len(last)
        output = 1 + min(4_000, int(chance.lognormvariate(5.5, 1.0)))
        open_sessions[index] = (total, ids)
        yield {
            "timestamp": time,
            "input_length": total,
            "output_length": output,
            "hash_ids": ids + last,
        }


def write_synthetic(path: str | Path, n: int, seed: int = 0) -> Path:
    """Write ``n`` rows as JSONL."""
    file = Path(path)
    file.write_text("".join(json.dumps(row) + "\n" for row in synthetic_rows(n, seed)))
    return file


def synthetic_trace(n: int, seed: int = 0) -> Trace:
    """The trace that reading ``write_synthetic(path, n, seed)`` gives, without the file."""
    return Trace(
        f"synthetic, {n:,} requests, seed {seed}",
        [
            TraceRequest(
                line,
                float(row["timestamp"]),
                row["input_length"],
                row["output_length"],
                array("q", row["hash_ids"]),
            )
            for line, row in enumerate(synthetic_rows(n, seed), 1)
        ],
    )
