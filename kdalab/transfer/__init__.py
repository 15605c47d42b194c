"""Whole model states between instances: bundles, what refuses them, who holds what, and stores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdalab.transfer.bundle import Bundle, bundle_key, combine
    from kdalab.transfer.directory import Directory, Found, connect, publish
    from kdalab.transfer.files import load_bundle, load_metadata, save_bundle
    from kdalab.transfer.instance import (
        export_prefix,
        export_request,
        identity_of,
        import_bundle,
        import_prefix,
        resume_request,
    )
    from kdalab.transfer.matrix import MatrixRow, refusal_matrix
    from kdalab.transfer.metadata import BundleMeta, negotiate
    from kdalab.transfer.mooncake import MooncakeStore
    from kdalab.transfer.mooncake_master import MooncakeMaster
    from kdalab.transfer.pages import repage
    from kdalab.transfer.prefix import PrefixHash, prefix_hashes
    from kdalab.transfer.ranks import merge, relayout, reslice, split
    from kdalab.transfer.refusal import BundleFormatError, BundleRefusedError, Refusal
    from kdalab.transfer.sources import EngineSource, Query, Reach, Source, StoreSource
    from kdalab.transfer.store import FolderStore, StoreError, StoreProtocol

# Names load their file, and with it torch, when they are first asked for.
_FILES = {
    "bundle": ("Bundle", "bundle_key", "combine"),
    "directory": ("Directory", "Found", "connect", "publish"),
    "files": ("load_bundle", "load_metadata", "save_bundle"),
    "instance": (
        "export_prefix",
        "export_request",
        "identity_of",
        "import_bundle",
        "import_prefix",
        "resume_request",
    ),
    "matrix": ("MatrixRow", "refusal_matrix"),
    "metadata": ("BundleMeta", "negotiate"),
    "mooncake": ("MooncakeStore",),
    "mooncake_master": ("MooncakeMaster",),
    "pages": ("repage",),
    "prefix": ("PrefixHash", "prefix_hashes"),
    "ranks": ("merge", "relayout", "reslice", "split"),
    "refusal": ("BundleFormatError", "BundleRefusedError", "Refusal"),
    "sources": ("EngineSource", "Query", "Reach", "Source", "StoreSource"),
    "store": ("FolderStore", "StoreError", "StoreProtocol"),
}
_HOME = {name: file for file, names in _FILES.items() for name in names}

__all__ = [
    "Bundle",
    "BundleFormatError",
    "BundleMeta",
    "BundleRefusedError",
    "Directory",
    "EngineSource",
    "FolderStore",
    "Found",
    "MatrixRow",
    "MooncakeMaster",
    "MooncakeStore",
    "PrefixHash",
    "Query",
    "Reach",
    "Refusal",
    "Source",
    "StoreError",
    "StoreProtocol",
    "StoreSource",
    "bundle_key",
    "combine",
    "connect",
    "export_prefix",
    "export_request",
    "identity_of",
    "import_bundle",
    "import_prefix",
    "load_bundle",
    "load_metadata",
    "merge",
    "negotiate",
    "prefix_hashes",
    "publish",
    "refusal_matrix",
    "relayout",
    "repage",
    "reslice",
    "resume_request",
    "save_bundle",
    "split",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"kdalab.transfer.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
