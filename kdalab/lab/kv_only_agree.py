"""Our KV-only hit rates beside kvcache-simulator's, and beside what a hybrid model really restores.

A KV-only figure says how much text the cache knows. A hybrid model can use it only from a boundary
at which its recurrent state was kept, and those states take room from the KV. Both figures are
taken over the same requests under the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from kdalab.cache import Placement
from kdalab.errors import KdalabError
from kdalab.lab.kv_only import POLICIES
from kdalab.lab.kv_only_sweep import DEFAULT_BUDGETS, GIB, kv_only_sweep
from kdalab.lab.kv_only_tree import PromptTree
from kdalab.lab.live import LiveReplay
from kdalab.lab.trace import Requests
from kdalab.spec import ModelSpec, state_sizes

PEER = "kvcache-simulator"
_THEIR_NAME = {"fifo": "fifo", "lru": "lru", "clairvoyant": "optimal"}


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """One budget (bytes). Rates are shares of the measured prompt tokens, 0 to 1, by policy;
    ``theirs`` is empty without the peer, ``hybrid`` None where one request does not fit."""

    budget: int
    blocks: int
    ours: dict[str, float]
    theirs: dict[str, float]
    hybrid: float | None

    @property
    def difference(self) -> float:
        """The largest difference of any policy, as a share."""
        return max((abs(self.ours[p] - t) for p, t in self.theirs.items()), default=0.0)

    @property
    def overstated(self) -> float | None:
        """By how much the KV-only LRU rate exceeds the hybrid's, as a share."""
        return None if self.hybrid is None else self.ours["lru"] - self.hybrid


@dataclass(frozen=True, slots=True)
class Agreement:
    """The whole table. ``peer`` is its name and version, or "" where it is not installed."""

    trace: str
    model: str
    placement: str
    peer: str
    requests: int
    first: int
    page_bytes: int
    checkpoint_bytes: int
    ceiling: float
    their_ceiling: float | None
    hybrid_ceiling: float
    rows: list[AgreementRow]

    @property
    def difference(self) -> float:
        """The largest difference in the table, as a share."""
        return max((r.difference for r in self.rows), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "difference": self.difference}


def agree(
    trace: Requests,
    spec: ModelSpec,
    placement: Placement,
    budgets: Sequence[int] = DEFAULT_BUDGETS,
    backend: str = "python",
    jobs: int = 1,
) -> Agreement:
    """Both tools on one trace.

    Args:
        trace: read three times; all of it is in the peer's memory.
        placement: where the hybrid's checkpoints are taken; what goes first is least recent use.
        budgets: bytes. Those that the warm-up does not fill are left out, as the peer does.
        backend: the peer's, "python" or "cpp" (which compiles itself with the first use).
        jobs: processes, for both.

    Raises:
        KdalabError: an unknown backend; the peer cannot run.
    """
    if backend not in ("python", "cpp"):
        raise KdalabError(f"backend {backend!r}; the peer has python and cpp")
    sizes = state_sizes(spec)
    page = sizes.latent_bytes(trace.block_tokens)
    ours = kv_only_sweep(PromptTree(trace), page, budgets, jobs=jobs)
    theirs = run_peer(trace, page, budgets, backend, jobs)
    live = LiveReplay(trace, spec)

    def hybrid(budget: int | None) -> float | None:
        if budget is not None and budget < live.smallest_budget:
            return None
        restored: list[int] = []
        live.run(placement, budget, restored)
        return sum(restored[ours.first :]) / max(1, ours.measured_tokens)

    found = {p["gib"] * GIB: p["results"] for p in theirs["points"]} if theirs else {}
    rows = [
        AgreementRow(
            p.budget,
            p.blocks,
            p.rates,
            {name: found[p.budget][_THEIR_NAME[name]]["hitRate"] for name in POLICIES}
            if p.budget in found
            else {},
            hybrid(p.budget),
        )
        for p in ours.points
    ]
    if theirs and set(found) != {p.budget for p in ours.points}:
        raise KdalabError(
            f"{PEER} measured {len(found)} budgets and this {len(ours.points)}: they disagree on "
            "when the cache is full; please report the trace"
        )
    return Agreement(
        trace.name,
        spec.name,
        str(placement),
        f"{PEER} {metadata.version(PEER)}, {backend}" if theirs else "",
        ours.requests,
        ours.first,
        page,
        sizes.checkpoint_bytes,
        ours.ceiling,
        theirs["hitRateCeiling"] if theirs else None,
        hybrid(None) or 0.0,
        rows,
    )


def run_peer(
    trace: Requests, page_bytes: int, budgets: Sequence[int], backend: str, jobs: int
) -> dict[str, Any] | None:
    """The peer's own sweep over the same requests, or None where it is not installed.

    It is given a model of one layer whose latent KV takes ``page_bytes`` a block, so that any
    model of ours can be compared.

    Raises:
        KdalabError: it refused, or has no compiler; its words are in the message.
    """
    if find_spec("kvcache_sim") is None:
        return None
    from kvcache_sim.simulator import run_sweep
    from kvcache_sim.trace import parse_trace_lines

    model = {
        "id": "given",
        "formula": "mla",
        "fields": {
            "num_hidden_layers": 1,
            "kv_lora_rank": page_bytes / trace.block_tokens,
            "qk_rope_head_dim": 0,
            "default_precision_id": "fp8_int8",  # one byte an element
        },
    }
    rows = (
        json.dumps({"input_length": r.input_tokens, "hash_ids": r.blocks.tolist()}) for r in trace
    )
    try:
        result: dict[str, Any] = run_sweep(
            parse_trace_lines(rows, block_size=trace.block_tokens),
            model_id="given",
            budgets_gib=[b / GIB for b in budgets],
            backend=backend,
            jobs=jobs,
            models_data={"models": [model]},
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise KdalabError(f"{PEER} could not run: {error}") from error
    return result
