"""The functions of others that run on a CPU, or why they are not to be had."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from kdalab.errors import KdalabError


class FlaNaive(NamedTuple):
    """fla-core's naive functions."""

    naive_recurrent_kda: Callable[..., Any]
    naive_chunk_kda: Callable[..., Any]


class Fallback(NamedTuple):
    """What transformers' Kimi Linear computes with where no fast kernel is installed."""

    chunk: Callable[..., Any]
    recurrent: Callable[..., Any]


def fla_naive() -> tuple[FlaNaive | None, str]:
    """fla-core's naive functions, or None and why."""
    module, why_not = find("fla.ops.kda.naive")
    if module is None:
        return None, why_not
    return FlaNaive(module.naive_recurrent_kda, module.naive_chunk_kda), ""


def transformers_fallback() -> tuple[Fallback | None, str]:
    """transformers' own torch functions (behind its wrappers, which prefer fla), or why not."""
    module, why_not = find("transformers.models.kimi_linear.modeling_kimi_linear")
    if module is None:
        return None, why_not
    names = "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"
    try:
        functions = [getattr(module, name) for name in names]
    except AttributeError as error:
        return None, f"another version: {error}"
    return Fallback(*(getattr(f, "__wrapped__", f) for f in functions)), ""


def require_triton() -> None:
    """KdalabError with the way to get it where Triton is not installed.

    Looked for, not imported: ``TRITON_INTERPRET`` counts at the moment of its first import.
    """
    from kdalab_kernels import has_triton

    if not has_triton():
        raise KdalabError(
            "this needs Triton, which is not installed; on Linux: `make setup`, or "
            "pip install 'kdalab[bench]'"
        )


def find(name: str) -> tuple[ModuleType | None, str]:
    try:
        with warnings.catch_warnings():  # both warn at import that a CPU is not their home
            warnings.simplefilter("ignore")
            return importlib.import_module(name), ""
    except ModuleNotFoundError as error:
        return None, f"not installed (no module named {error.name})"
    except Exception as error:  # fla-core imports Triton, which fails in many ways on odd machines
        return None, f"installed, but its import fails: {error}"
