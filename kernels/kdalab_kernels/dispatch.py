"""One name per op, several backends, and no silent change of backend.

A backend is a subpackage; an op is a function of that name in the module listed in ``MODULES``.
Adding a file with that function to a subpackage is all it takes to add an implementation.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

MODULES = {
    "chunk_kda": "chunk",
    "fused_recurrent_kda": "recurrent",
    "fused_kda_gate": "gate",
    "causal_conv1d": "conv",
    "causal_conv1d_update": "conv",
    "beta_sigmoid": "gate",
    "l2norm": "norm",
    "chunk_summary": "summary",
    "compose": "summary",
    "apply": "summary",
    "quantize_states": "checkpoint",
    "dequantize_states": "checkpoint",
    "store_checkpoints_inplace": "checkpoint",
    "load_checkpoints_inplace": "checkpoint",
    "fused_recurrent_kda_inplace": "decode",
    "fused_recurrent_kda_verify": "decode",
    "commit_verified_inplace": "decode",
    "causal_conv1d_update_inplace": "conv_slots",
    "causal_conv1d_verify": "conv_slots",
}
PACKAGES = {"torch": "torch_path", "triton": "triton_path", "reference": "reference"}


@cache
def _find(op: str, backend: str) -> Callable[..., Any] | None:
    package = f"{__package__}.{PACKAGES[backend]}"
    if importlib.util.find_spec(package) is None:
        return None
    name = f"{package}.{MODULES[op]}"
    if importlib.util.find_spec(name) is None:
        return None
    return getattr(importlib.import_module(name), op, None)


def backends_of(op: str) -> tuple[str, ...]:
    """The backends that have op, e.g. ``("torch", "reference")``; ValueError for an unknown op."""
    if op not in MODULES:
        raise ValueError(f"unknown op {op!r}; there are {', '.join(sorted(MODULES))}")
    return tuple(b for b in PACKAGES if _find(op, b) is not None)


def implementation(op: str, backend: str) -> Callable[..., Any]:
    """The function that runs op.

    ``auto`` is a fixed rule, not a fallback: the torch path, on every device. Any other name is
    taken at its word: ValueError when that backend does not have the op.
    """
    if backend == "auto":
        backend = "torch"
    if backend not in PACKAGES:
        raise ValueError(f"backend={backend!r} is unknown; use auto, {', '.join(PACKAGES)}")
    found = _find(op, backend)
    if found is None:
        raise ValueError(
            f"{op} has no {backend} kernel in this version; "
            f"it has backend={' | '.join(repr(b) for b in backends_of(op))}"
        )
    return found
