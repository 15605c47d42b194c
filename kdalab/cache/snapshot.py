"""A cache as JSON: to look at one that ran elsewhere, or to keep one for a question.

What is cached is written, not who reads it: leases, locks and transfers belong to a run. The
order of last use is kept, so a cache that is read back evicts in the same order. Reading trusts
nothing: every field is checked, and the tree that results has to pass ``check()``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from kdalab.cache.node import Node
from kdalab.cache.protocol import Checkpoint
from kdalab.cache.radix import RadixStateCache
from kdalab.errors import InvariantError, KdalabError

FORMAT = "kdalab-cache"
VERSION = 1
MAX_BYTES = 256 << 20
MAX_NODES = 1_000_000


def to_dict(cache: RadixStateCache) -> dict[str, Any]:
    """The tree of ``cache`` as plain data, parents before children, ids 1, 2, ... in that order.

    Edges are token ids or, in a cache of a trace, block ids (``ids``). The host's copies are left
    out, and so is what is of no use without them or without its present readers.

    Returns:
        ``{"format", "version", "page_tokens", "grid", "page_bytes", "checkpoint_bytes", "key",
        "nodes": [{"parent", "end", "ids", "pages", "state", "kv_used", "state_used"}, ...]}``
    """
    width = cache.key_width
    kind = "tokens" if width is None or width == 4 * cache.page_tokens else "blocks"
    dtype = np.int32 if kind == "tokens" else np.int64
    kept = _kept(cache)
    numbers = {node.id: n for n, node in enumerate(kept, 1)} | {cache.root.id: 0}
    rows = [
        {
            "parent": numbers[node.parent.id if node.parent is not None else 0],
            "end": node.end,
            "ids": np.frombuffer(node.key, dtype).tolist(),
            "pages": [int(p) for p in node.pages],
            "state": None if node.state is None else int(node.state.slot),
            "kv_used": node.kv_used,
            "state_used": node.state_used,
        }
        for node in kept
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "page_tokens": cache.page_tokens,
        "grid": int(cache.grid),
        "page_bytes": cache.page_bytes,
        "checkpoint_bytes": cache.checkpoint_bytes,
        "key": kind,
        "nodes": rows,
    }


def _kept(cache: RadixStateCache) -> list[Node]:
    """Nodes on the device, parents first, that are of use once nobody reads them."""
    found: list[Node] = []
    todo = list(cache.root.children.values())[::-1]
    while todo:
        node = todo.pop()
        if node.pages:
            found.append(node)
            todo += list(node.children.values())[::-1]
    useful: set[int] = set()
    for node in reversed(found):
        if node.state is not None or node.id in useful:
            useful.add(node.id)
            useful.add(cast(Node, node.parent).id)
    return [node for node in found if node.id in useful]


def from_dict(data: object) -> RadixStateCache:
    """A cache from what ``to_dict`` gave.

    Raises:
        KdalabError: not such data, or data of a tree that breaks a rule; names where and which.
    """
    head = _Fields(data, "the snapshot")
    if head.data.get("format") != FORMAT or head.data.get("version") != VERSION:
        raise KdalabError(f"not a cache snapshot: it must say format {FORMAT!r}, version {VERSION}")
    page, grid, page_bytes, state_bytes = (head.number(n, 1) for n in _HEAD)
    cache = RadixStateCache(page, grid, page_bytes, state_bytes)
    kind = head.data.get("key")
    if kind not in ("tokens", "blocks"):
        raise KdalabError("the snapshot: key must be 'tokens' or 'blocks'")
    dtype = np.dtype(np.int32 if kind == "tokens" else np.int64)
    cache.key_width = dtype.itemsize * (cache.page_tokens if kind == "tokens" else 1)
    rows = head.data.get("nodes")
    if not isinstance(rows, list) or len(rows) > MAX_NODES:
        raise KdalabError(f"the snapshot: nodes must be a list of at most {MAX_NODES:,}")
    made = [cache.root]
    for number, row in enumerate(rows, 1):
        made.append(_node(cache, _Fields(row, f"node {number:,}"), made, dtype))
    _order(cache, made[1:])
    try:
        cache.check()
    except InvariantError as error:
        raise KdalabError(f"the snapshot is of no possible cache: {error}") from None
    return cache


def save(cache: RadixStateCache, path: str | Path) -> None:
    """Write ``cache`` to a JSON file."""
    Path(path).write_text(json.dumps(to_dict(cache), separators=(",", ":")), encoding="utf-8")


def load(path: str | Path) -> RadixStateCache:
    """Read a cache from a JSON file.

    Raises:
        KdalabError: the file cannot be read, is larger than 256 MiB, or is no snapshot.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise KdalabError(f"{file} has {size:,} bytes; at most {MAX_BYTES:,} are read")
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise KdalabError(f"cannot read the snapshot {str(file)!r}: {error.strerror}") from None
    except KdalabError:
        raise
    except (ValueError, RecursionError) as error:
        raise KdalabError(f"{file} is not JSON: {str(error)[:80]}") from None
    return from_dict(data)


_HEAD = ("page_tokens", "grid", "page_bytes", "checkpoint_bytes")


class _Fields:
    """One JSON object, and where it stands, for the messages."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise KdalabError(f"{where} must be an object, not {type(data).__name__}")
        self.data, self.where = data, where

    def number(self, name: str, least: int, most: int = 2**62) -> int:
        value = self.data.get(name)
        if type(value) is not int or not least <= value <= most:
            raise KdalabError(f"{self.where}: {name} must be a whole number of {least} or more")
        return value

    def numbers(self, name: str, least: int, most: int) -> list[int]:
        value = self.data.get(name)
        if not isinstance(value, list) or not all(type(v) is int for v in value):
            raise KdalabError(f"{self.where}: {name} must be a list of whole numbers")
        if value and not (least <= min(value) and max(value) <= most):
            raise KdalabError(f"{self.where}: {name} must lie in {least}..{most}")
        return value


def _node(cache: RadixStateCache, row: _Fields, made: list[Node], dtype: np.dtype[Any]) -> Node:
    parent = made[row.number("parent", 0, len(made) - 1)]
    pages = row.numbers("pages", 0, 2**62)
    limit = int(np.iinfo(dtype).max)
    key = np.asarray(row.numbers("ids", -limit - 1, limit), dtype).tobytes()
    end = parent.end + len(pages) * cache.page_tokens
    if not pages or len(key) != len(pages) * (cache.key_width or 0) or row.data.get("end") != end:
        raise KdalabError(
            f"{row.where}: {len(pages):,} pages from token {parent.end:,} on need that many pages "
            f"of ids, and end {end:,}"
        )
    if key[: cache.key_width] in parent.children:
        raise KdalabError(f"{row.where}: its parent has a child with the same first page")
    node = cache.add_node(parent, key, pages, end)
    node.kv_used = row.number("kv_used", 0)
    node.state_used = row.number("state_used", 0)
    cache.cached_pages += len(pages)
    cache.evictable_pages += len(pages)
    if row.data.get("state") is not None:
        node.state = Checkpoint(row.number("state", 0), end)
        cache.cached_states += 1
    return node


def _order(cache: RadixStateCache, nodes: list[Node]) -> None:
    """Both orders of use, oldest first. A path is never older than what hangs below it."""
    for node in reversed(nodes):  # children before parents
        above = cast(Node, node.parent)
        above.kv_used = max(above.kv_used, node.kv_used)
    cache.root.kv_used = 0
    deepest_first = sorted(nodes, key=lambda n: (n.kv_used, -n.end))
    for node in deepest_first:
        cache.kv_lru[node.id] = node
    for node in sorted((n for n in nodes if n.state is not None), key=lambda n: n.state_used):
        cache.state_lru[node.id] = node
    cache.clock = max([0, *(max(n.kv_used, n.state_used) for n in nodes)])
