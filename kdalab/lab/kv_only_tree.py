"""Every prompt of a trace as a path of edges, in one tree that is finished before anything runs.

An edge is a run of blocks that every prompt visits as a whole: the tree is cut wherever two prompts
part and wherever one ends. So a simulation walks edges, a few a prompt, and never blocks. A prompt
is matched against the tree by memory comparisons, one an edge.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from kdalab.cache.keys import common_pages
from kdalab.lab.trace import Requests

ID_BYTES = 8


class PromptTree:
    """The prompts of a trace; edge 0 is the root and holds nothing.

    ``parent[e]`` is the edge above, ``length[e]`` the blocks of an edge, ``tokens[r]`` and
    ``blocks[r]`` the length of request r in tokens and in blocks, and ``end[r]`` its last edge (0
    for a prompt without a block). A tree holds no ids: 85 million blocks that repeat each other
    come down to what is new in them.

    Args:
        trace: read once.
        whole_only: leave out a last, partial block, as a cache of whole pages does. Otherwise it
            counts as a block, as KV-only simulators count it.
    """

    def __init__(self, trace: Requests, whole_only: bool = False) -> None:
        self.name = trace.name
        self.block_tokens = trace.block_tokens
        self.parent: list[int] = [0]
        self.length: list[int] = [0]
        self.tokens: list[int] = []
        self.blocks: list[int] = []
        self.end: list[int] = []
        self._edge: list[bytes] = [b""]
        self._children: list[dict[bytes, int]] = [{}]
        for request in trace:
            ids = request.blocks
            if whole_only:
                ids = ids[: request.input_tokens // self.block_tokens]
            self.tokens.append(request.input_tokens)
            self.blocks.append(len(ids))
            self.end.append(self._add(ids.tobytes()))
        del self._edge, self._children
        self.paths = self._paths()

    @property
    def n_requests(self) -> int:
        """Requests."""
        return len(self.tokens)

    @property
    def unique_blocks(self) -> int:
        """Different blocks, each with all that comes before it."""
        return sum(self.length)

    @property
    def longest(self) -> int:
        """Blocks of the longest prompt."""
        return max(self.blocks, default=0)

    def next_visits(self) -> list[tuple[int, ...]]:
        """For each edge of each path: the next request that visits it, or ``n_requests``."""
        following = [self.n_requests] * len(self.parent)
        out: list[tuple[int, ...]] = [()] * self.n_requests
        for r in range(self.n_requests - 1, -1, -1):
            path = self.paths[r]
            out[r] = tuple([following[e] for e in path])
            for e in path:
                following[e] = r
        return out

    def previous_visits(self) -> list[tuple[int, ...]]:
        """For each edge of each path: the last request before that visited it, or -1."""
        last = [-1] * len(self.parent)
        out: list[tuple[int, ...]] = []
        for r, path in enumerate(self.paths):
            out.append(tuple([last[e] for e in path]))
            for e in path:
                last[e] = r
        return out

    def seen_blocks(self) -> list[int]:
        """Different blocks that requests 0 .. r have brought, for each r."""
        new = [0] * self.n_requests
        seen = bytearray(len(self.parent))
        for r, path in enumerate(self.paths):
            for e in reversed(path):
                if seen[e]:
                    break
                seen[e] = 1
                new[r] += self.length[e]
        return list(accumulate(new))

    # -- building ----------------------------------------------------------------------------

    def _add(self, data: bytes) -> int:
        """Walk down along ``data``, cutting and adding edges; the edge it ends with."""
        node, offset, size = 0, 0, len(data)
        edges, children = self._edge, self._children
        while offset < size:
            child = children[node].get(data[offset : offset + ID_BYTES])
            if child is None:
                return self._hang(node, data[offset:])
            edge = edges[child]
            if not data.startswith(edge, offset):
                shared = common_pages(data[offset : offset + len(edge)], edge, ID_BYTES)
                child = self._cut(child, shared)
                edge = edges[child]
            node, offset = child, offset + len(edge)
        return node

    def _hang(self, parent: int, edge: bytes) -> int:
        new = len(self.parent)
        self.parent.append(parent)
        self.length.append(len(edge) // ID_BYTES)
        self._edge.append(edge)
        self._children.append({})
        self._children[parent][edge[:ID_BYTES]] = new
        return new

    def _cut(self, lower: int, blocks: int) -> int:
        """Cut an edge after so many blocks; the new upper edge. The lower one keeps its number,
        so that who ended with it still does."""
        edge, cut = self._edge[lower], blocks * ID_BYTES
        upper = self._hang(self.parent[lower], edge[:cut])
        self.parent[lower], self.length[lower] = upper, self.length[lower] - blocks
        self._edge[lower] = edge[cut:]
        self._children[upper][edge[cut : cut + ID_BYTES]] = lower
        return upper

    def _paths(self) -> list[tuple[int, ...]]:
        """Edges of each request, top first."""
        parent, out = self.parent, []
        for edge in self.end:
            up = []
            while edge:
                up.append(edge)
                edge = parent[edge]
            up.reverse()
            out.append(tuple(up))
        return out


def hit_tokens(tree: PromptTree, hits: array[int], first: int) -> int:
    """Tokens of ``hits`` blocks of each request, from request ``first`` on; a last block is as
    long as the prompt leaves it."""
    size = tree.block_tokens
    pairs = zip(hits[first:], tree.tokens[first:], strict=True)
    return sum([h * size if h * size < n else n for h, n in pairs])
