"""Notebooks are committed clean, are built alike, and their exercises take the solution.

That they run from start to end is tried by ``make notebooks``; here nothing is executed but the
cells of the exercises.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kdalab.exercises import EXERCISES, Status, check
from kdalab.resources import resource_dir

NOTEBOOKS = sorted(resource_dir("notebooks").glob("*.ipynb"))
Notebook = nbformat.NotebookNode

# Headings of the second level that every notebook has, in this order, perhaps with others between.
SECTIONS = (
    "your prediction",
    "what breaks",
    "exercise",
    "what sglang and vllm call this",
    "further reading",
)


def read(path: Path) -> Notebook:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def code(notebook: Notebook) -> list[Notebook]:
    return [c for c in notebook.cells if c.cell_type == "code"]


def tags(cell: Notebook) -> list[str]:
    return list(cell.metadata.get("tags", []))


def asked(notebook: Notebook) -> list[tuple[str, str, Notebook]]:
    """(exercise, name of the function to write, cell with the stub) in order."""
    cells = code(notebook)
    found = []
    for stub, after in itertools.pairwise(cells):
        if "exercise" not in tags(stub):
            continue
        assert "check" in tags(after), f"{stub.id}: the next code cell has no tag `check`"
        calls = re.findall(r'\bcheck\(\s*"(ex\d\d)",\s*(\w+)\s*\)', after.source)
        assert len(calls) == 1, f"{after.id}: checks {len(calls)} exercises"
        found.append((*calls[0], stub))
    return found


def defined(name: str, source: str, function: str) -> Any:
    """What a cell with this source defines; kernels and checks can look the source up."""
    file = f"<cell of {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), namespace)
    return namespace[function]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Notebook:
    return read(request.param)


ASKED = [
    pytest.param(name, function, cell.source, id=f"{path.stem}-{name}")
    for path in NOTEBOOKS
    for name, function, cell in asked(read(path))
]


def test_notebooks_are_numbered_from_one_each_number_once() -> None:
    numbers = [int(path.name[:2]) for path in NOTEBOOKS]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 1


def test_a_notebook_is_valid_and_has_named_cells(notebook: Notebook) -> None:
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


def test_a_notebook_is_committed_without_outputs(notebook: Notebook) -> None:
    for cell in code(notebook):
        assert cell.outputs == [], cell.id
        assert cell.execution_count is None, cell.id


def test_the_first_code_cell_says_how_to_install(notebook: Notebook) -> None:
    first = code(notebook)[0]
    assert all(line.startswith("#") for line in first.source.splitlines())
    assert "%pip install" in first.source


def test_a_notebook_begins_with_a_question_and_what_it_needs(notebook: Notebook) -> None:
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "?" in first.source
    assert "needs" in first.source.lower()


def test_a_notebook_has_the_sections_in_their_order(notebook: Notebook) -> None:
    text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    headings = [h.lower() for h in re.findall(r"^##+ +(.+)$", text, re.MULTILINE)]
    first = [
        next((i for i, h in enumerate(headings) if h.startswith(section)), None)
        for section in SECTIONS
    ]
    missing = [s for s, at in zip(SECTIONS, first, strict=True) if at is None]
    assert not missing, f"no heading for {missing}; there are {headings}"
    assert first == sorted(first, key=lambda at: at or 0), f"the order is {headings}"


def test_a_reader_predicts_first_and_a_later_cell_compares(notebook: Notebook) -> None:
    sources = [c.source for c in code(notebook)]
    blank = [i for i, s in enumerate(sources) if re.search(r"^my_guess = None\b", s, re.MULTILINE)]
    assert len(blank) == 1
    assert any("my_guess" in s for s in sources[blank[0] + 1 :])


def test_a_notebook_has_a_control_and_pictures_without_one(notebook: Notebook) -> None:
    sources = [c.source for c in code(notebook)]
    control = next(i for i, s in enumerate(sources) if re.search(r"\binteract\(", s))
    plain = [s for s in sources[control + 1 :] if re.search(r"\b(picture|show|show_table)\(", s)]
    assert plain


def test_a_notebook_asks_every_exercise_that_names_it() -> None:
    for path in NOTEBOOKS:
        named = [e.name for e in EXERCISES.values() if e.notebook == path.stem]
        here = [name for name, _, _ in asked(read(path))]
        if named:
            assert here == named, path.stem
        else:  # it may ask again what an earlier one has asked
            assert here, path.stem
            assert all(EXERCISES[name].notebook < path.stem for name in here), path.stem


def test_every_notebook_imports_and_names_the_hints_of_its_exercises() -> None:
    import kdalab.exercises

    for path in NOTEBOOKS:
        book = read(path)
        setup = ast.parse(code(book)[1].source)
        imported = {
            alias.asname or alias.name
            for node in ast.walk(setup)
            if isinstance(node, ast.ImportFrom) and node.module == "kdalab.exercises"
            for alias in node.names
        }
        assert {"EXERCISES", "check", "hint"} <= imported, path.stem
        assert all(hasattr(kdalab.exercises, name) for name in imported)
        text = "\n".join(c.source for c in book.cells if c.cell_type == "markdown")
        named = re.findall(r'`hint\("(ex\d\d)"\)`', text)
        assert named, path.stem
        assert set(named) <= {name for name, _, _ in asked(book)}, path.stem


@pytest.mark.parametrize(("name", "function", "source"), ASKED)
def test_the_cell_defines_what_the_exercise_asks_for(name: str, function: str, source: str) -> None:
    assert function == EXERCISES[name].function
    parameters = {
        where: [ast.dump(d.args) for d in ast.walk(ast.parse(text)) if is_named(d, function)]
        for where, text in (("cell", source), ("stub", EXERCISES[name].stub))
    }
    assert len(parameters["cell"]) == 1
    assert parameters["cell"] == parameters["stub"]


def is_named(node: ast.AST, function: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == function


@pytest.mark.parametrize(("name", "function", "source"), ASKED)
def test_the_stub_is_not_solved_and_the_solution_is(name: str, function: str, source: str) -> None:
    exercise = EXERCISES[name]
    if exercise.environment is not None:
        # A process each, seconds long: tests/exercises tries both. Here only that the cell's text
        # can be found, from which that process is started.
        kernel = defined(name, source, function)
        assert "def " + function in inspect.getsource(inner(kernel))
        return
    stub = check(name, defined(name, source, function))
    assert stub.status is Status.UNSOLVED, stub.text
    solved = check(name, defined(name, exercise.solution, function))
    assert solved.status is Status.PASSED, solved.text


def inner(kernel: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(kernel, "fn", kernel)
    return function
