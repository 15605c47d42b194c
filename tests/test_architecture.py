"""Arrows between the rooms only point down, and what must start quickly imports nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdalab.resources import RESOURCES, resource_dir

ROOT = Path(__file__).resolve().parent.parent

# Helpers that every room may use: they import nothing of the project but each other.
BASE = {"errors", "units", "resources", "threads", "words", "particles", "phrases", "__init__"}

# Room -> the rooms below it that it may import. `docs/architecture.md` draws the same.
MAY_IMPORT: dict[str, set[str]] = {
    "kdalab_kernels": set(),
    "base": set(),
    "spec": set(),
    "sources": set(),
    "cache": {"spec"},
    "memory": {"spec"},
    "model": {"spec", "kdalab_kernels"},
    "engine": {"spec", "cache", "memory", "model", "kdalab_kernels"},
    "recall": {"model"},
    "viz": {"spec", "cache", "memory", "engine"},
    "lessons": {
        "spec",
        "cache",
        "memory",
        "model",
        "engine",
        "recall",
        "lab",
        "transfer",
        "serve",
        "kdalab_kernels",
    },
    "exercises": {
        "spec",
        "cache",
        "memory",
        "model",
        "engine",
        "lab",
        "lessons",
        "viz",
        "transfer",
        "kdalab_kernels",
    },
    "lab": {"spec", "cache", "memory"},
    "transfer": {"spec", "cache", "memory", "model", "engine", "kdalab_kernels"},
    "bench": {
        "spec",
        "cache",
        "memory",
        "model",
        "engine",
        "lab",
        "verify",
        "transfer",
        "kdalab_kernels",
    },
    "serve": {"spec", "cache", "memory", "model", "engine", "transfer"},
    "verify": {
        "spec",
        "cache",
        "model",
        "engine",
        "lab",
        "transfer",
        "serve",
        "kdalab_kernels",
    },
    "cli": {
        "spec",
        "cache",
        "memory",
        "engine",
        "viz",
        "lessons",
        "lab",
        "bench",
        "verify",
        "recall",
        "transfer",
        "serve",
        "sources",
        "exercises",
    },
}

# What people open stays thin: of these rooms it may use the public names, not the files inside.
OPENED = ("demos", "plot_scripts", "notebooks")
PUBLIC_ONLY = {"cache", "memory", "model"}

# Heavy or optional libraries -> the only rooms that may name them.
ONLY_IN: dict[str, set[str]] = {
    "torch": {
        "kdalab_kernels",
        "memory",
        "model",
        "engine",
        "recall",
        "transfer",
        "serve",
        "lessons",
        "verify",
        "bench",
        "exercises",
        "notebooks",
        "base",
    },
    "triton": {"kdalab_kernels", "bench", "exercises", "notebooks"},
    "hypothesis": {"exercises"},
    "fla": {"bench"},
    "transformers": {"verify", "bench"},
    "mlx": {"verify"},
    "mlx_lm": {"verify"},
    "plotly": {"viz", "demos", "plot_scripts", "notebooks"},
    "gradio": {"demos", "cli"},
    "typer": {"cli"},
    "rich": {"cli"},
    "pydantic": {"transfer", "serve"},
    "fastapi": {"serve", "cli"},
    "uvicorn": {"serve"},
    "httpx": {"serve", "verify"},
    "filelock": {"transfer"},
    "mooncake": {"transfer"},
}


def files_of(folder: Path) -> list[Path]:
    """Python files and notebooks under ``folder``."""
    found = sorted(folder.rglob("*.py")) + sorted(folder.rglob("*.ipynb"))
    return [f for f in found if ".ipynb_checkpoints" not in f.parts]


def source_of(file: Path) -> str:
    """The Python text of a file; of a notebook, its code cells without magics."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return text
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    lines = "\n".join("".join(c["source"]) for c in cells).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


def imports_in(source: str) -> Iterator[str]:
    """Every module that is imported, at the top, inside a function or for types only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import: {ast.unparse(node)}"
            module = node.module or ""
            yield module
            # `from kdalab import cache` names a room as well.
            if module == "kdalab":
                yield from (f"kdalab.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    """``kdalab.cache.radix`` -> ``cache``; None for what is not ours."""
    parts = module.split(".")
    if parts[0] == "kdalab_kernels":
        return "kdalab_kernels"
    if parts[0] != "kdalab":
        return None
    if len(parts) == 1 or parts[1] in BASE or parts[1].startswith("__"):
        return "base"
    return parts[1]


def rooms() -> list[tuple[str, Path]]:
    """(room, file) for every file of the two packages."""
    found = [("kdalab_kernels", f) for f in files_of(ROOT / "kernels" / "kdalab_kernels")]
    for file in files_of(ROOT / "kdalab"):
        inside = file.relative_to(ROOT / "kdalab").parts
        if inside == ("__main__.py",):
            found.append(("cli", file))  # `python -m kdalab`: a door to the command line
        elif inside[0] != "_bundled":
            found.append((inside[0] if len(inside) > 1 else "base", file))
    return found


def opened() -> list[tuple[str, Path]]:
    """(folder, file) for every file of demos, plot scripts and notebooks."""
    return [(name, f) for name in OPENED for f in files_of(resource_dir(name))]


def broken_arrows(room: str, source: str) -> list[str]:
    """Imports of ``source``, a file of ``room``, that point up or sideways."""
    allowed = MAY_IMPORT[room] | {room} | ({"base"} if room != "kdalab_kernels" else set())
    targets = ((name, room_of(name)) for name in imports_in(source))
    return [name for name, target in targets if target is not None and target not in allowed]


def too_deep(source: str) -> list[str]:
    """Imports that reach past a room's public names into one of its files."""
    return [
        name
        for name in imports_in(source)
        if room_of(name) in PUBLIC_ONLY and len(name.split(".")) > 2
    ]


def misplaced_libraries(place: str, source: str) -> list[str]:
    """Libraries imported in a room that must not name them."""
    names = {name.split(".")[0] for name in imports_in(source)}
    return sorted(n for n in names if n in ONLY_IN and place not in ONLY_IN[n])


def test_every_room_is_on_the_map() -> None:
    assert {room for room, _ in rooms()} == set(MAY_IMPORT)
    assert set(OPENED) == set(RESOURCES)


def test_the_map_has_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(MAY_IMPORT):
        ready = {r for r, below in MAY_IMPORT.items() if r not in done and below <= done}
        assert ready, f"a circle among {set(MAY_IMPORT) - done}"
        done |= ready


def test_arrows_only_point_down() -> None:
    broken = {str(f.relative_to(ROOT)): broken_arrows(r, source_of(f)) for r, f in rooms()}
    assert {f: names for f, names in broken.items() if names} == {}


def test_pages_scripts_and_notebooks_use_public_names_only() -> None:
    broken = {str(f.relative_to(ROOT)): too_deep(source_of(f)) for _, f in opened()}
    assert {f: names for f, names in broken.items() if names} == {}


def test_libraries_stay_in_their_rooms() -> None:
    places = [*rooms(), *opened()]
    broken = {str(f.relative_to(ROOT)): misplaced_libraries(p, source_of(f)) for p, f in places}
    assert {f: names for f, names in broken.items() if names} == {}


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("cache", "from kdalab.engine import Engine"),
        ("cache", "import kdalab.memory.slots"),
        ("cache", "from kdalab import model"),
        ("memory", "def f():\n    from kdalab.cache import Lease"),
        ("spec", "from kdalab.cache import Lookup"),
        ("kdalab_kernels", "from kdalab.errors import KdalabError"),
        ("engine", "from kdalab.lessons import play"),
    ],
)
def test_an_arrow_that_points_up_is_found(room: str, line: str) -> None:
    assert broken_arrows(room, line)


def test_a_deep_or_misplaced_import_is_found() -> None:
    assert too_deep("from kdalab.cache.radix import RadixStateCache")
    assert not too_deep("from kdalab.cache import RadixStateCache")
    assert misplaced_libraries("cache", "import torch.nn") == ["torch"]


HEAVY = ("torch", "gradio", "plotly", "transformers", "triton", "pandas", "IPython")


@pytest.mark.parametrize(
    "module",
    [
        "kdalab",
        "kdalab.spec",
        "kdalab.cache",
        "kdalab.lab",
        "kdalab.viz.palette",
        "kdalab.exercises",
        "kdalab.cli.main",
    ],
)
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}") == []


def test_building_the_command_line_loads_nothing_heavy() -> None:
    assert loaded_by("from kdalab.cli.main import build_app; build_app()") == []


def loaded_by(statement: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter holds after ``statement``."""
    code = f"import sys; {statement}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
