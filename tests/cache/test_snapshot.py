"""A cache as JSON: what is read back answers alike, and nothing broken is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cache_cases import Book, text
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.cache import Bytes, HostTier, PrefixKey, RadixStateCache, load_cache, save_cache
from kdalab.cache.snapshot import from_dict, to_dict
from kdalab.errors import KdalabError
from kdalab.spec.checkpoint import Checkpoint


def some_cache() -> Book:
    book = Book(page_bytes=3, state_bytes=7)
    book.run(text(32), 16, 32)
    book.run([*text(20), *text(20, 1)], 40)
    book.run(text(24, 2), 8, 24)
    book.run([*text(16), 1])
    return book


def test_a_cache_that_is_read_back_answers_and_evicts_alike(tmp_path: Path) -> None:
    book = some_cache()
    save_cache(book.cache, tmp_path / "c.json")
    again = load_cache(tmp_path / "c.json")
    assert to_dict(again) == to_dict(book.cache)
    for prompt in (text(33), [*text(20), 5], [*text(20), *text(21, 1)], text(25, 2), [9]):
        a, b = (c.lookup(book.key(prompt)) for c in (book.cache, again))
        assert (a.why, a.branching) == (b.why, b.branching)
    for need in (Bytes(state=1), Bytes(kv=1), Bytes(either=1), Bytes(kv=20), Bytes(either=99)):
        a, b = book.cache.evict(need), again.evict(need)
        assert (a.pages, a.states) == (b.pages, b.states)
        again.check()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=40), max_size=6))
def test_any_cache_survives_the_way_there_and_back(prompts: list[list[int]]) -> None:
    book = Book()
    for prompt in prompts:
        end = len(prompt) // 8 * 8
        found = book.cache.lookup(book.key(prompt))
        book.run(prompt, *([end] if end > found.restore else []))
    data = json.loads(json.dumps(to_dict(book.cache)))
    assert to_dict(from_dict(data)) == data


def test_readers_locks_and_host_copies_stay_behind() -> None:
    host = HostTier(1)
    book = Book(host=host)
    book.run(text(16), 16)
    book.back_up()
    book.cache.evict(Bytes(kv=9))  # lives from its copy
    held = book.run(text(24, 1), 8, 24, hold=True)
    book.cache.evict(Bytes(state=2))  # a tombstone that only its reader keeps
    book.run(text(16, 2), 16)
    again = from_dict(to_dict(book.cache))
    assert [n.end for n in again.nodes.values()] == [0, 16]
    book.cache.release(held)


def test_a_path_that_is_being_read_is_no_older_than_what_hangs_below() -> None:
    book = Book()
    held = book.run(text(8), 8, hold=True)
    book.run(text(16), 16)
    again = from_dict(to_dict(book.cache))
    assert [n.end for n in again.kv_lru.values()] == [16, 8]
    book.cache.release(held)


def test_a_cache_of_block_ids_keeps_them() -> None:
    cache = RadixStateCache(512, 512)
    key = PrefixKey.from_blocks([1 << 40, 7], 512, 1024)
    lease = cache.acquire(cache.lookup(key))
    cache.release(cache.commit(lease, key, (0, 1), Checkpoint(0, 1024)).lease)
    again = from_dict(to_dict(cache))
    assert again.lookup(PrefixKey.from_blocks([1 << 40, 7, 3], 512, 1536)).restore == 1024


def put(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda d: d.__setitem__(name, value)


def put_node(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda d: d["nodes"][1].__setitem__(name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", "x"), "not a cache snapshot"),
        (put("version", 2), "not a cache snapshot"),
        (put("page_tokens", 0), "page_tokens must be a whole number of 1"),
        (put("page_tokens", True), "page_tokens must be a whole number"),
        (put("grid", 6), "multiple of the page"),
        (put("key", "words"), "'tokens' or 'blocks'"),
        (put("nodes", {}), "nodes must be a list"),
        (put("nodes", [3]), "node 1 must be an object"),
        (put_node("parent", 2), "node 2: parent"),
        (put_node("parent", -1), "node 2: parent"),
        (put_node("end", 99), "node 2: 1 pages from token 16 on need"),
        (put_node("pages", []), "node 2: 0 pages"),
        (put_node("pages", [0.5]), "pages must be a list of whole numbers"),
        (put_node("pages", [0]), "a latent page belongs to one node"),
        (put_node("ids", [1, 2]), "node 2: 1 pages"),
        (put_node("ids", [1 << 40] * 4), "ids must lie in"),
        (put_node("state", -1), "state must be a whole number"),
        (put_node("state", 0), "of no possible cache"),
        (put_node("kv_used", "now"), "kv_used must be"),
    ],
)
def test_what_is_no_cache_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = to_dict(some_cache().cache)
    change(data)
    with pytest.raises(KdalabError, match=message):
        from_dict(data)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(KdalabError):
        load_cache(path)
    with pytest.raises(KdalabError, match="cannot read"):
        load_cache(tmp_path / "none.json")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with path.open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(KdalabError, match="at most 268,435,456 are read"):
        load_cache(path)
