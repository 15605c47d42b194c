"""One piece of work of ``kdalab bench lab`` as a process of its own; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def sweep_file(path: str, jobs: str) -> dict[str, Any]:
    """Three policies, 15 budgets, a trace from a file."""
    from kdalab.lab import TraceFile
    from kdalab.lab.kv_only_sweep import kv_only_sweep
    from kdalab.lab.kv_only_tree import PromptTree
    from kdalab.spec import preset, state_sizes

    trace = TraceFile(path)
    page = state_sizes(preset("kimi-k3")).latent_bytes(trace.block_tokens)
    return kv_only_sweep(PromptTree(trace), page, jobs=int(jobs)).as_dict()


def sweep_agents(requests: str, tokens: str, jobs: str) -> dict[str, Any]:
    """The same over made-up agents."""
    from kdalab.bench.lab_trace import AgentTrace
    from kdalab.lab.kv_only_sweep import kv_only_sweep
    from kdalab.lab.kv_only_tree import PromptTree
    from kdalab.spec import preset, state_sizes

    trace = AgentTrace(int(requests), int(tokens))
    page = state_sizes(preset("kimi-k3")).latent_bytes(trace.block_tokens)
    begin = time.perf_counter()
    tree = PromptTree(trace)
    ready = time.perf_counter()
    found = kv_only_sweep(tree, page, jobs=int(jobs)).as_dict()
    return {
        **found,
        "mean_tokens": sum(tree.tokens) / tree.n_requests,
        "blocks": sum(tree.blocks),
        "edges_walked": sum(map(len, tree.paths)),
        "tree_seconds": ready - begin,
        "sweep_seconds": time.perf_counter() - ready,
    }


def replay_agents(requests: str, tokens: str, placement: str, budget: str) -> dict[str, Any]:
    """One hybrid replay over made-up agents, through the engine's own cache."""
    from kdalab.bench.lab_trace import AgentTrace
    from kdalab.cache import parse_placement
    from kdalab.lab import replay
    from kdalab.spec import preset
    from kdalab.units import parse_bytes

    trace = AgentTrace(int(requests), int(tokens))
    found = replay(trace, preset("kimi-k3"), parse_placement(placement), parse_bytes(budget))
    return found.as_dict()


def make_agents(requests: str, tokens: str) -> dict[str, Any]:
    """Only make them up, to see what of the other times is that."""
    from kdalab.bench.lab_trace import AgentTrace

    begin = time.perf_counter()
    total = sum(r.input_tokens for r in AgentTrace(int(requests), int(tokens)))
    return {"input_tokens": total, "seconds": time.perf_counter() - begin}


def read_agents(path: str) -> dict[str, Any]:
    """Only read such a file."""
    from kdalab.lab.trace import BLOCK_TOKENS, TraceFile

    begin = time.perf_counter()
    requests = sum(1 for _ in TraceFile(path))
    return {"requests": requests, "seconds": time.perf_counter() - begin, "block": BLOCK_TOKENS}


JOBS = {f.__name__: f for f in (sweep_file, sweep_agents, replay_agents, make_agents, read_agents)}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
