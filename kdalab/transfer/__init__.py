"""Whole model states between instances: bundles, what refuses them, who holds what, and stores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdalab.transfer.bundle import Bundle, bundle_key, combine
    from kdalab.transfer.files import load_bundle, load_metadata, save_bundle
    from kdalab.transfer.instance import (
        export_prefix,
        export_request,
        identity_of,
        import_bundle,
        import_prefix,
        resume_request,
    )
    from kdalab.transfer.metadata import BundleMeta, negotiate
    from kdalab.transfer.prefix import PrefixHash, prefix_hashes
    from kdalab.transfer.refusal import BundleFormatError, BundleRefusedError, Refusal
    from kdalab.transfer.reslice import merge, relayout, reslice, split

# Names load their file, and with it torch, when they are first asked for.
_FILES = {
    "bundle": ("Bundle", "bundle_key", "combine"),
    "files": ("load_bundle", "load_metadata", "save_bundle"),
    "instance": (
        "export_prefix",
        "export_request",
        "identity_of",
        "import_bundle",
        "import_prefix",
        "resume_request",
    ),
    "metadata": ("BundleMeta", "negotiate"),
    "prefix": ("PrefixHash", "prefix_hashes"),
    "refusal": ("BundleFormatError", "BundleRefusedError", "Refusal"),
    "reslice": ("merge", "relayout", "reslice", "split"),
}
_HOME = {name: file for file, names in _FILES.items() for name in names}

__all__ = [
    "Bundle",
    "BundleFormatError",
    "BundleMeta",
    "BundleRefusedError",
    "PrefixHash",
    "Refusal",
    "bundle_key",
    "combine",
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
    "relayout",
    "reslice",
    "resume_request",
    "save_bundle",
    "split",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"kdalab.transfer.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
