"""Reference pages: the public names of a room, each with its docstring.

``{{ api kdalab.spec }}`` stands for everything that the package's ``__init__`` offers, read from
the source without importing it; ``{{ api kdalab.viz.tree }}``, a module, for the module itself.
"""

from __future__ import annotations

import ast
from pathlib import Path

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]


def api(dotted: str) -> str:
    """What mkdocstrings is asked for, as Markdown.

    Raises:
        PluginError: no package or module of this name in the tree.
    """
    base = ROOT / "kernels" if dotted.startswith("kdalab_kernels") else ROOT
    path = base.joinpath(*dotted.split("."))
    if path.with_suffix(".py").is_file():
        options = "{heading_level: 3, show_root_heading: false}"
        return f"## `{dotted}`\n\n::: {dotted}\n    options: {options}\n"
    if not (path / "__init__.py").is_file():
        raise PluginError(f"no package or module {dotted!r} to document")
    tree = ast.parse((path / "__init__.py").read_text("utf-8"))
    parts = [ast.get_docstring(tree) or ""]
    for module, name in public_names(tree):
        if module.startswith(dotted):
            parts.append(f"::: {module}.{name}")
    return "\n\n".join(parts) + "\n"


def public_names(tree: ast.Module) -> list[tuple[str, str]]:
    """(module, name) of everything that an ``__init__`` takes from elsewhere, in its order."""
    found: dict[tuple[str, str], None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kdalab"):
            found.update(((node.module, alias.name), None) for alias in node.names)
    return list(found)
