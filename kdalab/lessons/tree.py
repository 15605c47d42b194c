"""The radix cache by itself, act by act: no tensor, the same class that the engine runs.

A story is a list of prompts made of named parts; prompts with the same first parts share a prefix.
Each prompt is looked up, locks what it reads, makes room, commits at the boundaries that the
placement wants, and lets go. Slots and pages are numbers, as the cache's owner would give them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kdalab.cache import Bytes, Lookup, PrefixKey, RadixStateCache, Retention, parse_placement
from kdalab.cache.protocol import Added, Dropped, Revived, Split
from kdalab.engine.view import NodeView, RequestView, View
from kdalab.errors import KdalabError
from kdalab.spec.checkpoint import Checkpoint

PAGE, GRID = 16, 64
PAGE_BYTES, STATE_BYTES = 1 << 10, 8 << 10

TREE_BYTES = PAGE, PAGE_BYTES, STATE_BYTES
"""Tokens of a page, bytes of a page, bytes of a state."""

# Part -> tokens. Sizes are such that some boundaries lie on the grid of states and some do not.
STORIES: dict[str, dict[str, tuple[tuple[str, int], ...]]] = {
    "fan-out": {
        "A": (("system", 128), ("train", 128)),
        "B": (("system", 128), ("ferry", 96)),
        "C": (("system", 128), ("hotel", 128)),
        "D": (("letter", 192),),
        "E": (("system", 128), ("train", 128), ("again", 64)),
        "F": (("system", 128), ("tram", 96)),
    },
    "turns": {
        "A": (("chat", 64), ("one", 64)),
        "B": (("chat", 64), ("one", 64), ("two", 96)),
        "C": (("chat", 64), ("one", 64), ("two", 96), ("three", 64)),
        "D": (("other", 256),),
        "E": (("chat", 64), ("one", 64), ("two", 96), ("edit", 64)),
    },
    "edit": {
        "A": (("rules", 80), ("Tuesday", 48), ("order", 128)),
        "B": (("rules", 80), ("Thursday", 48), ("order", 128)),
        "C": (("rules", 80), ("Friday", 48), ("order", 128)),
        "D": (("rules", 80), ("Tuesday", 48), ("order", 128), ("note", 64)),
    },
}


@dataclass(frozen=True, slots=True)
class Act:
    """One thing the cache did. ``kind`` names its sentence, ``values`` fill it.

    ``view`` is the tree after it; ``kv_order`` and ``state_order`` are the nodes that may be
    evicted, oldest first; ``locks`` maps a node to its (KV, state) lock counts.
    """

    kind: str
    request: str
    values: dict[str, object]
    view: View
    kv_order: tuple[int, ...]
    state_order: tuple[int, ...]
    locks: dict[int, tuple[int, int]]
    highlight: tuple[str, ...] = ()
    lookup: Lookup | None = None


@dataclass(frozen=True, slots=True)
class TreeRun:
    """A whole story: its acts, a printable word for each token, tokens restored by request."""

    acts: tuple[Act, ...]
    texts: dict[str, tuple[str, ...]]
    hits: dict[str, int]
    owners: dict[int, str]


def play_tree(
    story: str, placement: str, states: int, pages: int, refresh: str = "consumed"
) -> TreeRun:
    """Run a story through ``RadixStateCache`` with room for ``states`` and ``pages``.

    Raises:
        KdalabError: an unknown story or placement, or pools that cannot hold one prompt.
    """
    if story not in STORIES:
        raise KdalabError(f"story {story!r}; use one of {', '.join(STORIES)}")
    player = TreePlayer(STORIES[story], placement, states, pages, Retention(refresh=refresh))
    for name in STORIES[story]:
        player.request(name)
    return TreeRun(tuple(player.acts), player.texts, player.hits, player.owners)


class TreePlayer:
    """The cache of a story and the numbers that its owner would hand out, request by request.

    ``acts`` grows with each. Whoever wants to see more of an act overrides :meth:`act` and
    :meth:`evicted`, which are called as it happens.
    """

    def __init__(
        self,
        prompts: dict[str, tuple[tuple[str, int], ...]],
        placement: str,
        states: int,
        pages: int,
        retention: Retention,
    ) -> None:
        self.placement = parse_placement(placement)
        longest = max(sum(n for _, n in parts) for parts in prompts.values())
        if pages < -(-longest // PAGE) or states < 2:
            raise KdalabError(
                f"{pages} pages and {states} states; the longest prompt needs "
                f"{-(-longest // PAGE)} pages, and 2 states"
            )
        self.cache = RadixStateCache(PAGE, GRID, PAGE_BYTES, STATE_BYTES, retention)
        names = sorted({part for parts in prompts.values() for part, _ in parts})
        self.tokens: dict[str, tuple[int, ...]] = {}
        self.texts: dict[str, tuple[str, ...]] = {}
        for name, parts in prompts.items():
            at = [(part, i) for part, n in parts for i in range(n)]
            self.tokens[name] = tuple(1000 * names.index(part) + i for part, i in at)
            self.texts[name] = tuple(f"{part} " if i == 0 else "·" for part, i in at)
        self.free_states = list(range(states))
        self.free_pages = list(range(pages))
        self.n_states, self.n_pages = states, pages
        self.reading: dict[str, RequestView] = {}
        self.owners: dict[int, str] = {}
        self.hits: dict[str, int] = {}
        self.acts: list[Act] = []
        self.act("start", "", {"states": states, "pages": pages, "page": PAGE, "grid": GRID})

    def request(self, name: str) -> None:
        """One prompt, from the lookup to the release."""
        cache, tokens = self.cache, self.tokens[name]
        key = PrefixKey.from_tokens(tokens, PAGE)
        lookup = cache.lookup(key)
        self.hits[name] = lookup.restore
        facts: dict[str, object] = {
            "who": name, "tokens": len(tokens), "match": lookup.token_match,
            "restore": lookup.restore, "branching": lookup.branching or 0,
        }  # fmt: skip
        kind = "miss" if not lookup.token_match else ("hit" if lookup.restore else "known")
        marks = tuple(f"node:{n}" for n in lookup.path)
        self.act(kind, name, facts, marks, lookup)
        lease = cache.acquire(lookup)
        view = RequestView(
            name, len(tokens), "prefill", lookup.token_match, lookup.restore, lookup.restore,
            node=lease.node,
        )  # fmt: skip
        self.reading[name] = view
        if lease.node:
            self.act("lock", name, facts, (f"node:{lease.node}",), lookup)
        cache.unlock_state(lease)
        wanted = self.placement.boundaries(
            len(tokens), lookup.restore, lookup.branching, cache.grid
        )
        for boundary in wanted:
            need = (boundary - lease.boundary) // PAGE
            self._room(name, need, lookup)
            pages = tuple(self.free_pages.pop(0) for _ in range(need))
            slot = self.free_states.pop(0)
            done = cache.commit(lease, key, pages, Checkpoint(slot, boundary))
            self.free_pages = sorted([*self.free_pages, *done.duplicate_pages])
            if done.state_existed:
                self.free_states = sorted([*self.free_states, slot])
            lease = done.lease
            self.reading[name] = view = replace(view, node=lease.node, computed=boundary)
            for change in done.changes:
                self._own(change, name)
            self._commit(name, boundary, done.changes, done.state_existed, lookup)
        self.reading[name] = replace(view, phase="finished", computed=len(tokens))
        released = cache.release(lease)
        self._take_back(released.pages, released.states)
        self.act("release", name, facts, (f"node:{lease.node}",) if lease.node else ())
        if released.dropped:
            self.evicted(name, released.dropped, lookup)

    def _room(self, name: str, pages: int, lookup: Lookup) -> None:
        short_pages = max(0, pages - len(self.free_pages))
        short_states = 0 if self.free_states else 1
        if not short_pages and not short_states:
            return
        gone = self.cache.evict(Bytes(short_pages * PAGE_BYTES, short_states * STATE_BYTES))
        self._take_back(gone.pages, gone.states)
        if len(self.free_pages) < pages or not self.free_states:
            raise KdalabError(
                f"{name} needs {pages} pages and a state, and all that could go is locked; "
                "give the cache more room"
            )
        self.evicted(name, gone.dropped, lookup)

    def _take_back(self, pages: Sequence[int], states: Sequence[int]) -> None:
        self.free_pages = sorted([*self.free_pages, *pages])
        self.free_states = sorted([*self.free_states, *states])

    def _own(self, change: object, name: str) -> None:
        if isinstance(change, Added):
            self.owners[change.node] = name
        elif isinstance(change, Split):
            self.owners[change.upper] = self.owners.get(change.node, name)

    def _commit(
        self, name: str, boundary: int, changes: Sequence[object], existed: bool, lookup: Lookup
    ) -> None:
        split = next((c for c in changes if isinstance(c, Split)), None)
        added = next((c for c in changes if isinstance(c, Added | Revived)), None)
        values: dict[str, object] = {
            "who": name,
            "boundary": boundary,
            "at": split.at if split else 0,
        }
        marks = [f"node:{c.node}" for c in (added,) if c is not None]
        if split is not None:
            values |= {"upper": split.upper, "lower": split.node}
            marks += [f"node:{split.upper}"]
        values["node"] = added.node if added is not None else 0
        if existed:
            kind = "existed"
        elif isinstance(added, Revived) and split is None:
            kind = "revive"
        else:
            kind = "split" if split is not None else "leaf"
        self.act(kind, name, values, tuple(marks), lookup)

    def evicted(self, name: str, dropped: Sequence[Dropped], lookup: Lookup) -> None:
        """Tell of what had to go for ``name``."""
        whole = [d.node for d in dropped if d.removed]
        stones = [d.node for d in dropped if not d.removed and d.state is not None]
        kind = "evict-both" if whole and stones else ("evict-leaf" if whole else "evict-state")
        shown = {
            "nodes": ", ".join(f"#{n}" for n in whole),
            "states": ", ".join(f"#{n}" for n in stones),
        }
        self.act(kind, name, {"who": name, **shown}, tuple(f"node:{n}" for n in stones), lookup)

    def act(
        self, kind: str, name: str, values: dict[str, object], marks: tuple[str, ...] = (),
        lookup: Lookup | None = None,
    ) -> None:  # fmt: skip
        """Append one act: its sentence, and the tree as it now stands."""
        self.cache.check()
        nodes = [n for n in self.cache.nodes.values() if n.parent is not None]
        checkpoints: list[int | None] = [None] * self.n_states
        for node in nodes:
            if node.state is not None:
                checkpoints[node.state.slot] = node.id
        pages: list[str | None] = ["cache"] * self.n_pages
        for page in self.free_pages:
            pages[page] = None
        view = View([], checkpoints, pages)
        for node in nodes:
            assert node.parent is not None
            state = node.state.slot if node.state is not None else None
            view.nodes[node.id] = NodeView(
                node.id, node.parent.id, node.start, node.end, tuple(node.pages), state
            )
        view.requests = dict(self.reading)
        locks = {n.id: (n.kv_lock, n.state_lock) for n in nodes if n.kv_lock or n.state_lock}
        self.acts.append(
            Act(
                kind, name, values, view, tuple(self.cache.kv_lru), tuple(self.cache.state_lru),
                locks, marks, lookup,
            )
        )  # fmt: skip
