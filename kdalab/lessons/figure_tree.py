"""The radix tree that the first requests of a trace leave: the cache itself, with slots counted."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from kdalab.cache import Placement, PrefixKey, RadixStateCache
from kdalab.engine.view import NodeView, RequestView, View
from kdalab.errors import KdalabError
from kdalab.lab.request import Trace
from kdalab.spec import ModelSpec, state_sizes
from kdalab.spec.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One request: its prompt, known text and restore point, in tokens."""

    name: str
    tokens: int
    match: int
    restore: int


@dataclass(frozen=True, slots=True)
class TraceTree:
    """The tree after the last request, each request's letter and what it found, and sizes."""

    view: View
    rows: tuple[TreeRow, ...]
    page_tokens: int
    page_bytes: int
    state_bytes: int
    longest: int


def trace_tree(trace: Trace, spec: ModelSpec, placement: Placement) -> TraceTree:
    """Run every request of ``trace`` through ``RadixStateCache`` without a limit on memory.

    Raises:
        KdalabError: no request fills a block, or an interval off the trace's blocks.
    """
    block, sizes = trace.block_tokens, state_sizes(spec)
    page_bytes = sizes.latent_bytes(block)
    cache = RadixStateCache(block, block, page_bytes, sizes.checkpoint_bytes)
    pages, slots = itertools.count(), itertools.count()
    view, rows = View([], [], []), []
    for number, request in enumerate(trace.requests):
        n = request.input_tokens
        key = PrefixKey.from_blocks(request.blocks, block, n)
        found = cache.lookup(key)
        lease = cache.acquire(found)
        cache.unlock_state(lease)
        for boundary in placement.boundaries(n, found.restore, found.branching, cache.grid):
            new = tuple(itertools.islice(pages, (boundary - lease.boundary) // block))
            lease = cache.commit(lease, key, new, Checkpoint(next(slots), boundary)).lease
        cache.release(lease)
        name = f"{number + 1}"
        rows.append(TreeRow(name, n, found.token_match, found.restore))
        view.requests[name] = RequestView(
            name, n, "finished", found.token_match, found.restore, n, node=lease.node
        )
    cache.check()
    for node in cache.nodes.values():
        if node.parent is not None:
            state = node.state.slot if node.state is not None else None
            view.nodes[node.id] = NodeView(
                node.id, node.parent.id, node.start, node.end, tuple(node.pages), state
            )
    if not view.nodes:
        raise KdalabError(
            f"no request of {trace.name} fills a block of {block:,} tokens; the tree is empty"
        )
    longest = max(node.end for node in view.nodes.values())
    return TraceTree(view, tuple(rows), block, page_bytes, sizes.checkpoint_bytes, longest)
