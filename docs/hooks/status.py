"""The status table: mechanism by mechanism, what the tree really has.

Each page below ``docs/mechanisms`` names, in its front matter, the code of its mechanism and the
demo pages, notebooks, figures and measurements that belong to it. Code, pages and measurements are
looked up, and what is gone stops the build. Notebooks and figures count only when the tree has
them; a test fails for one that the tree has and no page names, which also catches a new name.
Tests are not named but found: a test belongs to a mechanism if its file imports the mechanism's
code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.utils import meta

ROOT = Path(__file__).resolve().parents[2]
MECHANISMS = ROOT / "docs" / "mechanisms"
FIELDS = ("code", "demo", "notebook", "figure", "measured")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One page of ``docs/mechanisms`` and what belongs to it."""

    slug: str
    title: str
    code: tuple[str, ...]
    demo: tuple[str, ...]
    notebook: tuple[str, ...]
    figure: tuple[str, ...]
    measured: tuple[str, ...]


@lru_cache(maxsize=1)
def mechanisms() -> tuple[Mechanism, ...]:
    """Every mechanism, in the order of the front matter's ``order``.

    Raises:
        PluginError: a page without title or code, or a field that is not known.
    """
    found: list[tuple[int, Mechanism]] = []
    for file in sorted(MECHANISMS.glob("*.md")):
        if file.stem == "index":
            continue
        text, data = meta.get_data(file.read_text("utf-8"))
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        unknown = set(data) - {*FIELDS, "order"}
        if title is None or not data.get("code") or unknown:
            raise PluginError(
                f"{file.name}: needs a title and 'code' in its front matter, and no {unknown or ''}"
            )
        fields = {name: tuple(data.get(name) or ()) for name in FIELDS}
        fields["notebook"] = tuple(n for n in fields["notebook"] if _notebook(n).is_file())
        fields["figure"] = tuple(f for f in fields["figure"] if _script(f).is_file())
        found.append((int(data.get("order", 99)), Mechanism(file.stem, title[1], **fields)))
    return tuple(m for _, m in sorted(found, key=lambda pair: (pair[0], pair[1].slug)))


def look_up(one: Mechanism, demos: frozenset[str]) -> None:
    """Refuse a mechanism that names something which is not there."""
    headings = _headings(ROOT / "docs" / "benchmarks.md")
    missing = [
        *(c for c in one.code if not (ROOT / c).exists()),
        *(f"demo {d}" for d in one.demo if d not in demos),
        *(f"heading {h!r} of benchmarks.md" for h in one.measured if h not in headings),
    ]
    if missing:
        raise PluginError(f"mechanisms/{one.slug}.md names what is not there: {', '.join(missing)}")


def status_page() -> str:
    """The table as Markdown."""
    lines = [
        "---",
        "hide: [navigation, toc]",
        "---",
        "# Status",
        "",
        "Made from the tree when the book is built: nothing here is typed by hand. A test counts",
        "for a mechanism if its file imports the mechanism's code, so one may count for several.",
        "",
        "| mechanism | code | tests | demo | notebook | figure | measured |",
        "|---|---:|---:|---|---|---|---|",
    ]
    for one in mechanisms():
        files = [f for c in one.code for f in _python(ROOT / c)]
        size = sum(len(f.read_text("utf-8").splitlines()) for f in files)
        measured = ", ".join(f"[{h}](benchmarks.md#{_anchor(h)})" for h in one.measured)
        lines.append(
            f"| [{one.title}](mechanisms/{one.slug}.md) | {_files(len(files))}, {size:,} lines "
            f"| {_tests_of(one):,} | {_listed('demo', one.demo)} "
            f"| {_listed('notebook', one.notebook)} | {_code(one.figure)} | {measured or '-'} |"
        )
    kinds = {"notebooks": "*.ipynb", "plot_scripts": "plot_*.py"}
    counts = {folder: len(list((ROOT / folder).glob(glob))) for folder, glob in kinds.items()}
    lines += [
        "",
        f"In all: {sum(n for _, n in _test_files()):,} test functions, "
        f"{counts['notebooks']} notebooks, {counts['plot_scripts']} figures.",
    ]
    return "\n".join(lines) + "\n"


def box(one: Mechanism) -> str:
    """What stands under the title of a mechanism's page: where to run, study and read it."""
    rows = [f"**Run it**: {_listed('demo', one.demo)}" if one.demo else "**Run it**: no page"]
    if one.notebook:
        rows.append(f"**Study it**: {_listed('notebook', one.notebook)}")
    if one.figure:
        rows.append("**Draw it**: " + ", ".join(f"`kdalab plot {f}`" for f in one.figure))
    rows.append("**Read it**: " + ", ".join(f"`{c}`" for c in one.code))
    body = "\n\n".join(rows)
    return f'<div class="kl-box" markdown>\n\n{body}\n\n</div>\n'


def following(one: Mechanism) -> str:
    """The link to the next mechanism, for the foot of a page."""
    pages = mechanisms()
    after = pages[pages.index(one) + 1 :]
    return f"\n\nNext: [{after[0].title}]({after[0].slug}.md)\n" if after else ""


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def _listed(kind: str, names: tuple[str, ...]) -> str:
    return ", ".join("{{ " + f"{kind} {name}" + " }}" for name in names) or "-"


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "-"


def _notebook(name: str) -> Path:
    return ROOT / "notebooks" / f"{name}.ipynb"


def _script(name: str) -> Path:
    return ROOT / "plot_scripts" / f"plot_{name}.py"


@lru_cache(maxsize=4)
def _headings(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE))


def _anchor(heading: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _python(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@lru_cache(maxsize=1)
def _test_files() -> tuple[tuple[frozenset[str], int], ...]:
    """For each test file: the modules that it imports, and its test functions."""
    found = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        count = sum(
            isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith("test_")
            for n in ast.walk(tree)
        )
        found.append((frozenset(_imports(tree)), count))
    return tuple(found)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Modules by name; a name imported from a package counts as the module that defines it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            names = _exports(node.module)
            for alias in node.names:
                yield names.get(alias.name, f"{node.module}.{alias.name}")


@lru_cache(maxsize=64)
def _exports(package: str) -> dict[str, str]:
    """Public name of a package -> the module that its ``__init__`` takes it from."""
    base = ROOT / "kernels" if package.startswith("kdalab_kernels") else ROOT
    file = base.joinpath(*package.split("."), "__init__.py")
    if not file.is_file():
        return {}
    taken: dict[str, str] = {}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            taken |= {alias.asname or alias.name: node.module for alias in node.names}
    return taken


def _tests_of(one: Mechanism) -> int:
    modules: set[str] = set()
    for path in one.code:
        for file in _python(ROOT / path):
            parts = list(file.relative_to(ROOT).with_suffix("").parts)
            if parts[0] == "kernels":
                parts = parts[1:]
            modules.add(".".join(p for p in parts if p != "__init__"))
    return sum(count for imports, count in _test_files() if imports & modules)


def as_data() -> list[dict[str, Any]]:
    """The same as plain data, for a test."""
    return [{"slug": m.slug, "tests": _tests_of(m), "code": m.code} for m in mechanisms()]
