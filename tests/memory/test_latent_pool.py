"""A page table over a paged pool reads like one plain tensor; shared pages are read-only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.memory import CACHE, LatentPool

LAYERS, DIM = 2, 3


def latents(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(LAYERS, n, DIM, generator=torch.Generator().manual_seed(seed))


def bits(pool: LatentPool) -> torch.Tensor:
    """Every byte as integers, so that NaN can be compared."""
    return pool.data.view(torch.int32).clone()


@settings(max_examples=120, deadline=None)
@given(
    page=st.sampled_from([1, 2, 4, 7]),
    lengths=st.lists(st.integers(0, 12), max_size=8),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_pieces_written_over_page_borders_read_like_one_tensor(
    page: int, lengths: list[int], seed: int, data: st.DataObject
) -> None:
    total = sum(lengths)
    pool = LatentPool(40 * 4, LAYERS, page, DIM)
    count = -(-total // page)
    pages = list(data.draw(st.permutations(pool.slots.allocate("A", count + 3)))) if total else []
    expected, at = latents(0), 0
    for i, n in enumerate(lengths):
        piece = latents(n, seed + i)
        pool.write(pages, at, piece, "A")
        expected, at = torch.cat([expected, piece], 1), at + n
        assert torch.equal(pool.gather(pages, at), expected)
    if not total:
        return
    # Overwriting a stretch in the middle, as a rejected draft is, changes that stretch alone.
    start = data.draw(st.integers(0, total - 1))
    n = data.draw(st.integers(1, total - start))
    expected[:, start : start + n] = latents(n, seed + 99)
    pool.write(pages, start, latents(n, seed + 99), "A")
    upto = data.draw(st.integers(0, total))
    assert torch.equal(pool.gather(pages, upto), expected[:, :upto])
    unwritten = pool.data[pages].transpose(0, 1).reshape(LAYERS, -1, DIM)[:, total:]
    assert bool(unwritten.isnan().all())


def test_bytes_are_those_of_the_tensor() -> None:
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        pool = LatentPool(5, LAYERS, 16, DIM, dtype)
        assert pool.page_bytes == LAYERS * 16 * DIM * size
        assert pool.nbytes == 5 * pool.page_bytes


def test_what_is_gathered_cannot_be_written_through() -> None:
    pool = LatentPool(2, LAYERS, 4, DIM)
    pages = pool.slots.allocate("A", 2)
    pool.write(pages, 0, latents(6), "A")
    pool.gather(pages, 6).fill_(7)
    pool.gather(pages, 4).fill_(7)
    assert torch.equal(pool.gather(pages, 6), latents(6))


def test_shared_pages_are_read_only_and_a_refused_write_changes_nothing() -> None:
    pool = LatentPool(6, LAYERS, 4, DIM)
    shared, own = pool.slots.allocate("A", 2), pool.slots.allocate("B", 2)
    pool.write(shared, 0, latents(8), "A")
    pool.slots.transfer(shared, "A", CACHE)
    table = [*shared, *own]
    pool.write(table, 8, latents(5, 1), "B")
    assert torch.equal(pool.gather(table, 13), torch.cat([latents(8), latents(5, 1)], 1))
    mixed = [own[0], shared[0]]
    before = bits(pool)
    for pages, start, who in ((table, 7, "B"), (table, 0, "A"), (mixed, 2, "B"), (table, 8, "A")):
        with pytest.raises(KdalabError, match=f"{who} must not write it"):
            pool.write(pages, start, latents(4, 2), who)
        assert torch.equal(bits(pool), before)
    with pytest.raises(KdalabError, match="belongs to nobody"):
        pool.write([own[0], 5], 0, latents(6, 2), "B")
    assert torch.equal(bits(pool), before)


def test_a_page_table_that_is_too_short_is_refused_before_anything_is_written() -> None:
    pool = LatentPool(3, LAYERS, 4, DIM)
    pages = pool.slots.allocate("A", 2)
    before = bits(pool)
    with pytest.raises(KdalabError, match="9 tokens need 3 pages of 4; the page table has 2"):
        pool.write(pages, 5, latents(4), "A")
    assert torch.equal(bits(pool), before)
    with pytest.raises(KdalabError, match="the page table has 2"):
        pool.gather(pages, 9)


@pytest.mark.parametrize("page", [-1, 3])
def test_a_page_number_out_of_range_is_neither_written_nor_read(page: int) -> None:
    pool = LatentPool(3, LAYERS, 4, DIM)
    pages = pool.slots.allocate("A", 3)
    before = bits(pool)
    with pytest.raises(KdalabError, match="out of range"):
        pool.write([pages[0], page], 0, latents(6), "A")
    with pytest.raises(KdalabError, match="out of range"):
        pool.gather([pages[0], page], 6)
    assert torch.equal(bits(pool), before)


def test_latents_of_another_shape_or_before_the_first_token_are_refused() -> None:
    pool = LatentPool(3, LAYERS, 4, DIM)
    pages = pool.slots.allocate("A", 3)
    before = bits(pool)
    for start, bad in ((0, latents(4)[:1]), (0, latents(4)[..., :2]), (-1, latents(4))):
        with pytest.raises(KdalabError, match="expected"):
            pool.write(pages, start, bad, "A")
    assert torch.equal(bits(pool), before)


def test_freed_pages_are_poison_and_only_the_owner_frees() -> None:
    pool = LatentPool(4, LAYERS, 4, DIM)
    own, other = pool.slots.allocate("A", 2), pool.slots.allocate("B", 2)
    for pages, who in ((own, "A"), (other, "B")):
        pool.write(pages, 0, latents(8), who)
    before = bits(pool)
    for pages, who in (
        ((own[0], other[0]), "A"),
        ((own[0], own[0]), "A"),
        (own, "B"),
        ((-1,), "B"),
    ):
        with pytest.raises(KdalabError):
            pool.free(pages, who)
        assert torch.equal(bits(pool), before)
        assert pool.slots.n_free == 0
    pool.free(own, "A")
    assert bool(pool.data[list(own)].isnan().all())
    assert torch.equal(pool.gather(other, 8), latents(8))
    pool.free([], "A")
    pool.fill = None
    pool.free(other, "B")
    assert torch.equal(pool.gather(other, 8), latents(8))
