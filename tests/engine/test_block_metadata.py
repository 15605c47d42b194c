"""The arrays of a step: against the step's own words, against loops, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from block_engine_cases import SMALL, block_engine, run, text
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import StateWork
from kdalab.engine.block import QueryRow, batch_metadata
from kdalab.engine.block.metadata import NULL_BLOCK, state_row
from kdalab.errors import InvariantError


def test_by_hand_two_requests_in_one_batch() -> None:
    """A prefills [0, 200) with its tail's state stored at 192; B decodes token 300 with 2 drafts
    that cross a block boundary."""
    a, at = state_row(StateWork(1, 0, {192: 9, 200: 8}), 0, 200, 0, 128)
    assert (a, at) == ((NULL_BLOCK, 8, 9), ((192, 2),))
    b, none = state_row(StateWork(1, 4, {256: 4, 257: 5, 258: 6}), 255, 256, 2, 128)
    assert (b, none) == ((NULL_BLOCK, 4, 5, 6), ())
    rows = [
        QueryRow("A", 0, 200, 0, ((11, 12), a), at),
        QueryRow("B", 255, 256, 2, ((13, 14, 15), b)),
    ]
    meta = batch_metadata(rows, {0: 128}, [1], 128)
    assert meta.query_start.tolist() == [0, 200, 203]
    assert meta.seq_lens.tolist() == [200, 256]
    assert meta.positions[198:].tolist() == [198, 199, 255, 256, 257]
    assert meta.block_tables[0].tolist() == [[11, 12, 0], [13, 14, 15]]
    slots = meta.slot_mapping[0]
    assert slots[[0, 127, 128, 199]].tolist() == [11 * 128, 11 * 128 + 127, 12 * 128, 12 * 128 + 71]
    assert slots[200:].tolist() == [14 * 128 + 127, 15 * 128, 15 * 128 + 1]
    assert meta.has_initial_state.tolist() == [False, True]
    assert meta.state_read.tolist() == [[0, 4]]
    assert meta.state_index.tolist() == [[[8, 0, 0], [4, 5, 6]]]
    assert meta.checkpoint_offset.tolist() == [[192], [0]]
    assert meta.checkpoint_column.tolist() == [[2], [0]]
    assert meta.checkpoint_index.tolist() == [[[9], [NULL_BLOCK]]]
    assert meta.slots_of(1, 256, 258)[0].tolist() == [15 * 128, 15 * 128 + 1]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), block=st.sampled_from([None, 16, 64, 100]))
def test_the_formula_finds_what_the_step_wrote(data: st.DataObject, block: int | None) -> None:
    """Any batch: state_index by the table is where the work said, whatever the neighbours."""
    ids = iter(range(1, 10_000))
    rows, works = [], []
    for r in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, 300))
        drafts = data.draw(st.integers(0, 3)) if start else 0
        end = start + (1 if drafts else data.draw(st.integers(1, 300)))
        read = next(ids) if start else 0
        size = block or 10**6
        inside = data.draw(st.sets(st.integers(start + 1, end), max_size=2)) - {end}
        if block is None:
            inside = set()
        writes = {p: next(ids) for p in (*sorted(inside), *range(end, end + drafts + 1))}
        for p in reversed([*sorted(inside), end]):
            if start and (block is None or (p - 1) // size == (start - 1) // size):
                writes[p] = read  # in place
                break
        table, at = state_row(StateWork(1, read, writes), start, end, drafts, block)
        kv = tuple(next(ids) for _ in range(-(-(end + drafts) // 32)))
        rows.append(QueryRow(str(r), start, end, drafts, (kv, table), at))
        works.append((read, writes))
    meta = batch_metadata(rows, {0: 32}, [1], block)
    for i, (row, (read, writes)) in enumerate(zip(rows, works, strict=True)):
        assert meta.row_of(row.request) == i
        assert meta.state_read[0, i] == (read if row.start else NULL_BLOCK)
        for j in range(meta.state_index.shape[2]):
            want = writes[row.end + j] if j <= row.drafts else NULL_BLOCK
            assert meta.state_index[0, i, j] == want
        stored = {
            int(offset) + row.start: int(meta.checkpoint_index[0, i, j])
            for j, offset in enumerate(meta.checkpoint_offset[i])
            if offset
        }
        assert stored == {p: b for p, b in writes.items() if p < row.end}
        first = int(meta.query_start[i])
        for n, position in enumerate(range(row.start, row.end + row.drafts)):
            slot = row.tables[0][position // 32] * 32 + position % 32
            assert meta.slot_mapping[0][first + n] == slot
            assert meta.positions[first + n] == position
    used = meta.state_index[meta.state_index != NULL_BLOCK]
    assert len(np.unique(used)) == len(used), "a block is written by one row"


def test_a_state_that_would_be_overwritten_before_it_is_read_is_refused() -> None:
    with pytest.raises(InvariantError, match="no column of its own"):
        state_row(StateWork(1, 4, {120: 5}), 100, 120, 0, 128)


def test_the_engine_reads_and_writes_by_these_arrays_and_by_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Swap two requests' state blocks in the arrays alone: their outputs are spoilt."""
    from kdalab.engine.block import core

    def swapped(*args):  # type: ignore[no-untyped-def]
        meta = batch_metadata(*args)
        if len(meta.requests) == 2 and meta.has_initial_state.all():
            meta.state_read[:] = meta.state_read[:, ::-1].copy()
        return meta

    prompts = text(100), text(100, 1)
    fine = block_engine()
    for p in prompts:
        fine.submit(p, 12)
    fine.run()
    monkeypatch.setattr(core, "batch_metadata", swapped)
    broken = block_engine()
    for p in prompts:
        broken.submit(p, 12)
    broken.run()
    assert fine.requests["A"].generated == SMALL.greedy(prompts[0], 12)
    assert broken.requests["A"].generated != SMALL.greedy(prompts[0], 12)


def test_a_fresh_request_reads_no_state_whatever_lies_in_its_block() -> None:
    engine = block_engine(poison=False)
    run(engine, text(100), text(100, 1))
    assert engine.requests["B"].generated == SMALL.greedy(text(100, 1), 2)
