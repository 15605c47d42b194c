"""One name per op, several backends, and no silent change of backend.

A backend is a subpackage; an op is a function of that name in the module listed in ``MODULES``.
Adding a file with that function to a subpackage is all it takes to add an implementation.
"""

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

MODULES = {
    "chunk_kda": "chunk",
    "fused_recurrent_kda": "recurrent",
    "fused_kda_gate": "gate",
    "kda_gate_chunk_cumsum": "gate",
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
    "snapshot_states_inplace": "snapshot",
    "mla_decode_paged": "mla",
    "mla_prefill_paged": "mla",
    "gather_pages": "pages",
    "scatter_pages_inplace": "pages",
    "gather_shard": "pages",
    "scatter_shard_inplace": "pages",
}
PACKAGES = {"torch": "torch_path", "triton": "triton_path", "reference": "reference"}


@cache
def _defines(op: str, backend: str) -> bool:
    """Whether the backend's file has a function op. Read, not imported: see :func:`_usable`."""
    file = Path(__file__).parent / PACKAGES[backend] / f"{MODULES[op]}.py"
    if not file.is_file():
        return False
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return any(isinstance(node, ast.FunctionDef) and node.name == op for node in body)


@cache
def _find(op: str, backend: str) -> Callable[..., Any]:
    module = importlib.import_module(f"{__package__}.{PACKAGES[backend]}.{MODULES[op]}")
    found: Callable[..., Any] = getattr(module, op)
    return found


def backends_of(op: str) -> tuple[str, ...]:
    """The backends that have op, e.g. ``("torch", "reference")``; ValueError for an unknown op.

    Whether this machine can run the ``triton`` one is another question: asking for it tells.
    """
    if not isinstance(op, str) or op not in MODULES:
        raise ValueError(f"unknown op {op!r}; there are {', '.join(sorted(MODULES))}")
    return tuple(b for b in PACKAGES if _defines(op, b))


def has_triton() -> bool:
    """Whether the triton package is installed (it is published for Linux only)."""
    found = importlib.util.find_spec("triton")
    return found is not None and found.origin is not None


def _require_triton(op: str, device: torch.device | None) -> None:
    """ValueError unless Triton kernels can run on device, saying how to get there.

    A kernel is built for a GPU or for the interpreter when its file is imported, by
    ``TRITON_INTERPRET`` at that moment; so this looks before anything is imported.
    """
    if not has_triton():
        raise ValueError(
            f"{op}: backend='triton' needs the triton package, which is not installed "
            "(Linux: pip install triton); backend='torch' runs everywhere"
        )
    if device is not None and device.type == "cuda":  # ROCm calls its devices cuda as well
        return
    wanted = os.environ.get("TRITON_INTERPRET") == "1"
    built = sys.modules.get(f"{__package__}.triton_path.launch")
    interpreted = wanted if built is None else bool(built.INTERPRETED)
    if interpreted and (device is None or device.type == "cpu"):
        return
    where = "without a tensor on a GPU" if device is None else f"on {device.type} tensors"
    how = (
        "TRITON_INTERPRET=1 was set after the kernels had been imported, too late for them: set "
        "it before starting Python"
        if wanted and not interpreted
        else "move the tensors to a GPU (x.to('cuda')), or start Python with TRITON_INTERPRET=1 to "
        "run the kernels slowly on CPU tensors"
    )
    raise ValueError(f"{op}: backend='triton' cannot run {where}: {how}; or use backend='torch'")


def backend_for(
    op: str, backend: str, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> str:
    """The backend that runs op on tensors of this device and dtype, by name.

    ``auto`` is a fixed rule, not a fallback: Triton for GPU tensors where the op has a Triton
    kernel and the package is installed (float64 excepted: the kernels compute in float32), the
    torch path for all others. Any other name is taken at its word.

    Raises:
        ValueError: that backend is unknown, does not have the op, or cannot run it here.
    """
    if backend == "auto":
        on_gpu = device is not None and device.type == "cuda" and dtype != torch.float64
        backend = "triton" if on_gpu and _defines(op, "triton") and has_triton() else "torch"
    if not isinstance(backend, str) or backend not in PACKAGES:
        raise ValueError(f"backend={backend!r} is unknown; use auto, {', '.join(PACKAGES)}")
    if not _defines(op, backend):
        raise ValueError(
            f"{op} has no {backend} kernel in this version; "
            f"it has backend={' | '.join(repr(b) for b in backends_of(op))}"
        )
    if backend == "triton":
        _require_triton(op, device)
    return backend


def implementation(
    op: str, backend: str, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> Callable[..., Any]:
    """The function that runs op: that of :func:`backend_for`, whose errors it raises."""
    return _find(op, backend_for(op, backend, device, dtype))
