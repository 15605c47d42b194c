"""Hit rates over budgets and policies for a cache of latent KV only, measured as simulators do.

The first half of the requests warms the cache up. A budget that has not filled by then says
nothing about eviction: it and all larger ones are left out.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kdalab.errors import KdalabError
from kdalab.lab.kv_only import POLICIES, clairvoyant_hits, fifo_hits, full_by, lru_hits
from kdalab.lab.kv_only_tree import PromptTree, hit_tokens

GIB = 1 << 30
DEFAULT_BUDGETS = tuple(GIB << i for i in range(15))
"""1 GiB to 16,384 GiB, in doubles (bytes)."""

_WORTH_A_PROCESS = 2_000_000  # edges to walk; below, starting a process costs more than it saves


@dataclass(frozen=True, slots=True)
class KvOnlyPoint:
    """One budget (bytes), the blocks it holds, and for each policy the share of measured tokens
    that were hit, 0 to 1."""

    budget: int
    blocks: int
    rates: dict[str, float]


@dataclass(frozen=True, slots=True)
class KvOnlySweep:
    """A whole sweep; ``ceiling`` is the share hit with unlimited memory. ``first`` is the first
    request that counts."""

    trace: str
    requests: int
    unique_blocks: int
    block_tokens: int
    page_bytes: int
    first: int
    measured_tokens: int
    ceiling: float
    points: list[KvOnlyPoint] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def kv_only_sweep(
    tree: PromptTree,
    page_bytes: int,
    budgets: Sequence[int] = DEFAULT_BUDGETS,
    policies: Sequence[str] = POLICIES,
    warmup: float = 0.5,
    jobs: int = 1,
) -> KvOnlySweep:
    """Hit rates of each policy under each budget.

    Args:
        tree: of all blocks, the partial ones included.
        page_bytes: latent KV of one block, all layers.
        budgets: bytes.
        policies: of ``fifo``, ``lru``, ``clairvoyant``.
        warmup: share of the requests that do not count, 0 to below 1.
        jobs: processes; a small trace runs in this one whatever is said.

    Raises:
        KdalabError: an unknown policy; no budget, or one below 0; a warm-up outside 0 to 1.
    """
    unknown = [p for p in policies if p not in POLICIES]
    if unknown or not policies:
        raise KdalabError(f"unknown policy {unknown[:1]}; allowed: {', '.join(POLICIES)}")
    if not budgets or min(budgets) < 0 or page_bytes < 1:
        raise KdalabError("give one budget or more, each of 0 bytes or more, and pages of 1 byte")
    if not 0 <= warmup < 1:
        raise KdalabError(f"a warm-up of {warmup} of the requests; use 0 or more, and below 1")
    first = int(tree.n_requests * warmup)
    measured = sum(tree.tokens[first:])
    seen = tree.seen_blocks()
    sizes: list[tuple[int, int]] = []
    for budget in sorted(set(budgets)):
        blocks = budget // page_bytes
        if blocks > seen[-1] or (blocks and full_by(seen, blocks) >= first):
            break
        sizes.append((budget, blocks))
    capacities = list(dict.fromkeys(c for _, c in sizes if c))
    tokens = _hit_tokens(tree, policies, capacities, first, jobs)
    points = [
        KvOnlyPoint(b, c, {p: (tokens[p, c] if c else 0) / max(1, measured) for p in policies})
        for b, c in sizes
    ]
    return KvOnlySweep(
        tree.name,
        tree.n_requests,
        tree.unique_blocks,
        tree.block_tokens,
        page_bytes,
        first,
        measured,
        hit_tokens(tree, _known(tree), first) / max(1, measured),
        points,
    )


def _known(tree: PromptTree) -> array[int]:
    """Blocks of each request that an earlier one has brought."""
    seen, out = bytearray(len(tree.parent)), array("q")
    for path in tree.paths:
        hit = 0
        for edge in path:
            if not seen[edge]:
                seen[edge] = 1
            else:
                hit += tree.length[edge]
        out.append(hit)
    return out


def _hit_tokens(
    tree: PromptTree, policies: Sequence[str], capacities: list[int], first: int, jobs: int
) -> dict[tuple[str, int], int]:
    one_pass = [(p, capacities) for p in policies if p == "lru" and capacities]
    tasks = [(p, [c]) for c in reversed(capacities) for p in policies if p != "lru"]
    steps = sum(map(len, tree.paths)) * len(tasks)
    if jobs <= 1 or steps < _WORTH_A_PROCESS:
        return _run(tree, one_pass + tasks, first)
    tasks = one_pass + tasks
    shares = [tasks[i::jobs] for i in range(jobs)]
    found: dict[tuple[str, int], int] = {}
    if threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods():
        # A fork has the tree at once, without a copy.
        with multiprocessing.get_context("fork").Pool(jobs, _begin, (tree, first)) as workers:
            for part in workers.imap_unordered(_run_here, shares):
                found |= part
        return found
    # Of a process with threads (a notebook, a server) it might take a lock along that nobody will
    # open again: there, and where nothing forks, new processes are started.
    from joblib import Parallel, delayed

    with Parallel(n_jobs=jobs) as pool:
        for part in pool(delayed(_run)(tree, share, first) for share in shares):
            found |= part
    return found


_here: tuple[PromptTree, int]  # in a worker: what it was started for


def _begin(tree: PromptTree, first: int) -> None:
    global _here
    _here = tree, first
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits


def _run_here(tasks: Sequence[tuple[str, list[int]]]) -> dict[tuple[str, int], int]:
    tree, first = _here
    return _run(tree, tasks, first)


def _run(
    tree: PromptTree, tasks: Sequence[tuple[str, list[int]]], first: int
) -> dict[tuple[str, int], int]:
    following = tree.next_visits() if any(p == "clairvoyant" for p, _ in tasks) else None
    found: dict[tuple[str, int], int] = {}
    for policy, capacities in tasks:
        if policy == "lru":
            for c, hits in zip(capacities, lru_hits(tree, capacities), strict=True):
                found[policy, c] = hit_tokens(tree, hits, first)
            continue
        for c in capacities:
            hits = fifo_hits(tree, c) if policy == "fifo" else clairvoyant_hits(tree, c, following)
            found[policy, c] = hit_tokens(tree, hits, first)
    return found
