"""What one forward reads and where it writes, as arrays: the page table of a step.

One pure function from the rows of a batch to named arrays. The engine reads and writes by these
arrays and by nothing else, so a page that draws them draws what happened.

The central formula is vLLM's: a request's state after ``seq_len`` tokens stands in
``block_table[max((seq_len - 1) // block, 0)]``, and with drafts in the columns after it, one for
each draft that may be the last accepted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kdalab.cache import StateWork
from kdalab.errors import InvariantError

NULL_BLOCK = 0
"""The block that stands for "nothing here"; never read, never written."""


class QueryRow(NamedTuple):
    """One request's part in a step: it computes tokens [start, end), and ``drafts`` guesses more.

    ``tables`` are its block tables, group by group, by column. ``inside`` are states stored in
    the middle of the chunk: (boundary, column).
    """

    request: str
    start: int
    end: int
    drafts: int
    tables: tuple[tuple[int, ...], ...]
    inside: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BatchMetadata:
    """The arrays of one step. Axes are named in brackets; lengths are in tokens.

    ``requests`` [row]; ``query_start`` [row + 1]: where each row's tokens begin in the flat batch;
    ``positions`` [query token]; ``context_lens`` [row]: tokens computed before; ``seq_lens``
    [row]: and after, drafts not counted; ``drafts`` [row].

    ``block_tables[group]`` [row, column], ``slot_mapping[full group]`` [query token]: block x
    block tokens + offset, where each token's latent KV is written.

    ``state_read`` [state group, row]: the block to begin from, ``has_initial_state`` [row]
    whether there is one. ``state_index`` [state group, row, 1 + drafts]: where the states after
    ``seq_lens + j`` tokens go.

    ``checkpoint_offset`` [row, n]: tokens of the chunk before a state that is stored inside it;
    ``checkpoint_column`` [row, n] and ``checkpoint_index`` [state group, row, n]: the table's
    column and the block that gets it. Offset 0 and NULL_BLOCK where there is none.
    """

    requests: tuple[str, ...]
    query_start: np.ndarray
    positions: np.ndarray
    context_lens: np.ndarray
    seq_lens: np.ndarray
    drafts: np.ndarray
    block_tables: dict[int, np.ndarray]
    slot_mapping: dict[int, np.ndarray]
    state_read: np.ndarray
    has_initial_state: np.ndarray
    state_index: np.ndarray
    checkpoint_offset: np.ndarray
    checkpoint_column: np.ndarray
    checkpoint_index: np.ndarray

    def row_of(self, request: str) -> int:
        """The row of a request, by name."""
        return self.requests.index(request)

    def tables_of(self, row: int) -> dict[int, np.ndarray]:
        """One row's block tables, by group."""
        return {group: table[row] for group, table in self.block_tables.items()}

    def slots_of(self, row: int, first: int, last: int) -> dict[int, np.ndarray]:
        """Slots of one row's tokens at positions [first, last), by full group."""
        at = int(self.query_start[row]) - int(self.context_lens[row])
        return {group: slots[at + first : at + last] for group, slots in self.slot_mapping.items()}


def state_column(n_tokens: int, block: int | None) -> int:
    """The column of the state after ``n_tokens``; ``block`` None: states never move on (mode
    ``none``)."""
    return 0 if block is None else max((n_tokens - 1) // block, 0)


def state_row(
    work: StateWork, start: int, end: int, drafts: int, block: int | None
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """One state group's table row for a step, and the (boundary, column) of states inside it.

    Slots by position first, drafts after the state at ``end``. A state inside the chunk stands in
    its own slot where that is free, and in a column of its own behind all others where the slot
    is taken by a later state: a prompt's tail and its end lie in one block.
    """
    last = state_column(end, block)
    row = [NULL_BLOCK] * (last + 1 + drafts)
    if start:
        row[state_column(start, block)] = work.read
    for j in range(drafts + 1):
        row[last + j] = work.writes[end + j]
    if start and row[state_column(start, block)] != work.read:
        raise InvariantError(f"the state of {start:,} tokens has no column of its own")
    inside = []
    for boundary in sorted(b for b in work.writes if b < end):
        column = state_column(boundary, block)
        if row[column] not in (NULL_BLOCK, work.writes[boundary]):
            column = len(row)
            row.append(NULL_BLOCK)
        row[column] = work.writes[boundary]
        inside.append((boundary, column))
    return tuple(row), tuple(inside)


def batch_metadata(
    rows: Sequence[QueryRow],
    full_blocks: dict[int, int],
    state_groups: Sequence[int],
    state_block: int | None,
) -> BatchMetadata:
    """The arrays for ``rows``.

    Args:
        rows: the requests of the step, in the order of the batch.
        full_blocks: full group -> tokens of its block.
        state_groups: numbers of the state groups.
        state_block: tokens of their block; None in mode ``none``, whose state never moves on.
    """
    n = len(rows)
    start = np.array([r.start for r in rows], dtype=np.int64)
    end = np.array([r.end for r in rows], dtype=np.int64)
    drafts = np.array([r.drafts for r in rows], dtype=np.int32)
    query_start = np.concatenate([[0], np.cumsum(end - start + drafts)]).astype(np.int64)
    positions = np.concatenate(
        [np.arange(r.start, r.end + r.drafts, dtype=np.int64) for r in rows] or [np.zeros(0, int)]
    )
    row_of_token = np.repeat(np.arange(n), end - start + drafts)
    tables = {g: _padded([r.tables[g] for r in rows]) for g in (*full_blocks, *state_groups)}
    slots = {
        g: tables[g][row_of_token, positions // size].astype(np.int64) * size + positions % size
        for g, size in full_blocks.items()
    }
    width = 1 + int(drafts.max(initial=0))
    most = max([len(r.inside) for r in rows], default=0)
    state_read = np.zeros((len(state_groups), n), dtype=np.int32)
    state_index = np.zeros((len(state_groups), n, width), dtype=np.int32)
    index = np.zeros((len(state_groups), n, most), dtype=np.int32)
    offset, column = np.zeros((n, most), dtype=np.int64), np.zeros((n, most), dtype=np.int32)
    for i, row in enumerate(rows):
        before, last = state_column(row.start, state_block), state_column(row.end, state_block)
        for j, (boundary, at) in enumerate(row.inside):
            offset[i, j], column[i, j] = boundary - row.start, at
        for g, group in enumerate(state_groups):
            table = tables[group][i]
            if row.start:
                state_read[g, i] = table[before]
            for j in range(row.drafts + 1):
                state_index[g, i, j] = table[last + j]
            for j in range(len(row.inside)):
                index[g, i, j] = table[column[i, j]]
    return BatchMetadata(
        tuple(r.request for r in rows),
        query_start,
        positions,
        start,
        end,
        drafts,
        tables,
        slots,
        state_read,
        start > 0,
        state_index,
        offset,
        column,
        index,
    )


def _padded(tables: Sequence[Sequence[int]]) -> np.ndarray:
    """[row, column], rows of any length filled up with the null block."""
    out = np.full((len(tables), max(map(len, tables), default=0)), NULL_BLOCK, dtype=np.int32)
    for row, table in enumerate(tables):
        out[row, : len(table)] = table
    return out
