"""Demos, plot scripts and notebooks: bundled in an installed wheel, beside it in a checkout."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from kdalab.errors import KdalabError

RESOURCES: tuple[str, ...] = ("demos", "plot_scripts", "notebooks")

_PACKAGE = Path(__file__).resolve().parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def resource_dir(name: str) -> Path:
    """The folder ``demos``, ``plot_scripts`` or ``notebooks``, wherever this installation has it.

    Raises:
        KdalabError: another name, or an installation without that folder.
    """
    if name not in RESOURCES:
        raise KdalabError(f"unknown resource {name!r}; use one of {', '.join(RESOURCES)}")
    candidates = (_PACKAGE / "_bundled" / name, _PACKAGE.parent / name)
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise KdalabError(
        f"this installation has no {name}: looked in {' and '.join(map(str, candidates))}; "
        "reinstall kdalab, or run from a checkout"
    )


def plot_script_names() -> list[str]:
    """Names of the plot scripts, ``state_vs_kv`` for ``plot_state_vs_kv.py``, sorted.

    Raises:
        KdalabError: as :func:`resource_dir`.
    """
    folder = resource_dir("plot_scripts")
    return sorted(path.stem.removeprefix("plot_") for path in folder.glob("plot_*.py"))


def load_script(name: str) -> ModuleType:
    """The plot script of that name as a module; it defines ``main(argv) -> int``.

    The ``plot_`` prefix, the ``.py`` ending and hyphens for underscores are all understood. The
    same module object comes back on every call.

    Raises:
        KdalabError: no such script (the message lists the known ones), or one without ``main``.
    """
    key = name.removesuffix(".py").replace("-", "_").removeprefix("plot_")
    known = plot_script_names()
    if not _NAME.fullmatch(key) or key not in known:
        raise KdalabError(f"unknown figure {name!r}; known figures: {', '.join(known)}")
    return _load(f"kdalab_plot_scripts.{key}", resource_dir("plot_scripts") / f"plot_{key}.py")


def _load(module_name: str, path: Path) -> ModuleType:
    loaded = sys.modules.get(module_name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise KdalabError(f"{path}: cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    if not callable(getattr(module, "main", None)):
        del sys.modules[module_name]
        raise KdalabError(f"{path}: a plot script defines main(argv)")
    return module
