"""Prefill, decode and encode as processes of their own, and a router in front of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdalab.serve.errors import ServeError
    from kdalab.serve.limits import Limits
    from kdalab.serve.pieces import Piece, PieceError, read_pieces
    from kdalab.serve.processes import Cluster, start_cluster

# Names load their file, and with it torch or FastAPI, when they are first asked for.
_FILES = {
    "errors": ("ServeError",),
    "limits": ("Limits",),
    "pieces": ("Piece", "PieceError", "read_pieces"),
    "processes": ("Cluster", "start_cluster"),
}
_HOME = {name: file for file, names in _FILES.items() for name in names}

__all__ = [
    "Cluster",
    "Limits",
    "Piece",
    "PieceError",
    "ServeError",
    "read_pieces",
    "start_cluster",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"kdalab.serve.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
