"""What goes when room is needed? The specification is the eviction of the project's tree."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kdalab.cache import Bytes, Checkpoint, Lru
from kdalab.cache.eviction import evict
from kdalab.cache.tree import RadixTree
from kdalab.exercises.exercise import Exercise, Given
from kdalab.exercises.values import Held
from kdalab.viz.answers import Cell, Picture, Row, Rows


@st.composite
def _cases(draw: st.DrawFn) -> Given:
    n = draw(st.integers(1, 5))
    ids = range(1, n + 1)
    parent = {i: draw(st.integers(0, i - 1)) for i in ids}
    below = {i: [j for j in ids if i in _up(j, parent)] for i in ids}
    reads = {i: draw(st.sampled_from([0, 0, 1])) for i in ids}
    locks = {i: sum(reads[j] for j in below[i]) for i in ids}
    ages = {i: draw(st.integers(0, 9)) for i in ids}
    by_kv = sorted(ids, key=lambda i: (max(ages[j] for j in below[i]), -len(_up(i, parent)), i))
    by_state = sorted(ids, key=lambda i: (draw(st.integers(0, 9)), i))
    nodes = []
    for i in ids:
        # A leaf without a state that nobody reads would have gone long ago.
        has_state = draw(st.booleans()) or (len(below[i]) == 1 and not locks[i])
        state_lock = draw(st.integers(0, reads[i])) if has_state else 0
        used = (by_kv.index(i) + 1, by_state.index(i) + 1)
        nodes.append(
            Held(i, parent[i], draw(st.integers(1, 3)), has_state, locks[i], state_lock, *used)
        )
    return {
        "nodes": nodes,
        "pages_wanted": draw(st.integers(0, 6)),
        "states_wanted": draw(st.integers(0, 4)),
    }


def _up(i: int, parent: dict[int, int]) -> list[int]:
    path = []
    while i:
        path.append(i)
        i = parent[i]
    return path


def expected(nodes: list[Held], pages_wanted: int, states_wanted: int) -> list[tuple[int, str]]:
    """Build the tree with its locks and its two orders of use, and let it evict."""
    tree = RadixTree(1, 1)
    tree.key_width = 1
    made = {0: tree.root}
    for n in sorted(nodes, key=lambda n: n.id):
        end = made[n.parent].end + n.pages
        node = tree.add_node(made[n.parent], bytes([n.id]) * n.pages, range(n.pages), end)
        node.kv_lock, node.state_lock = n.kv_lock, n.state_lock
        made[n.id] = node
        tree.cached_pages += n.pages
    for n in sorted(nodes, key=lambda n: n.state_used):
        if n.has_state:
            tree.set_state(made[n.id], Checkpoint(n.id, made[n.id].end))
        if n.state_lock:
            tree.state_lru.pop(made[n.id].id, None)
    for n in sorted(nodes, key=lambda n: n.kv_used):
        if not n.kv_lock:
            tree.kv_lru[made[n.id].id] = made[n.id]
            tree.evictable_pages += n.pages
    names = {node.id: i for i, node in made.items()}
    dropped = evict(tree, Lru(), Bytes(kv=pages_wanted, state=states_wanted)).dropped
    return [(names[d.node], "node" if d.removed else "state") for d in dropped]


def picture(given: Given, expected: Any, got: Any) -> Picture:
    """The tree, an edge a row, and what goes. Locks are of KV / of the state."""
    nodes = {n.id: n for n in given["nodes"]}
    ends = {0: 0}
    rows = []
    for n in sorted(nodes.values(), key=lambda n: n.id):
        start = ends[n.parent]
        ends[n.id] = start + n.pages
        name = f"{n.id} under {n.parent or 'root'}, locks {n.kv_lock}/{n.state_lock}"
        cell = Cell(start, ends[n.id], "kv", f"KV {n.kv_used}")
        at = (ends[n.id],)
        rows.append(Row(name, (cell,), at if n.has_state else (), () if n.has_state else at))
    for title, order in (("goes", expected), ("yours", got)):
        if order is not None:
            cells = (Cell(i, i + 1, "free", f"{a} {b}") for i, (a, b) in enumerate(order))
            rows.append(Row(title, tuple(cells)))
    return Rows(tuple(rows), "pages; locks of KV/state; KV 1 was used longest ago")


EXERCISE = Exercise(
    number=9,
    title="Evict",
    level=2,
    notebook="05_radix_tree",
    function="evict",
    statement="""
        A `Held` is a node: `id`, its parent's id `parent` (0: the root, which is not listed),
        `pages`, `has_state`, `kv_lock` and `state_lock` (how many read them), `kv_used` and
        `state_used` (when they were last used: larger is later, no two are equal). A node's KV is
        always used later than that of the nodes below it.

        Write `evict(nodes, pages_wanted, states_wanted)`: what the tree gives up, in order.

        1. While fewer than `pages_wanted` pages have been freed: the leaf (no child, `kv_lock`
           0) whose KV was used longest ago (`kv_used`) goes, with all that it holds.
        2. While fewer than `states_wanted` states have been freed, by step 1 too: the unlocked
           state (`state_lock` 0) used longest ago (`state_used`) goes. Where the node has
           children, or readers of its KV, only the state goes and a tombstone stays; else the
           whole node.
        3. Whenever a node goes, its parent may have become useless: no
           child, no state, no KV lock. Then it goes next, and so on upwards.

        Each entry of the answer is `(id, "node")` or `(id, "state")`. If all that is left
        is locked, less is freed.
    """,
    cases=_cases,
    expected=expected,
    hints=(
        "Keep a dict of what is left, and compute leaves anew after every removal.",
        "One function removes a node, counts its pages and its state, and then asks its parent.",
        "A state on an unlocked leaf takes its node with it: step 2 ends in the same function.",
    ),
    picture=picture,
)
