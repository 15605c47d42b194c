"""Notebooks are committed clean, and their exercises accept the solution and nothing less."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from kdalab.resources import resource_dir

NOTEBOOKS = sorted(resource_dir("notebooks").glob("*.ipynb"))
RESTORE = resource_dir("notebooks") / "01_restore_step_by_step.ipynb"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=nbformat.NO_CONVERT)


def test_the_restore_notebook_is_there() -> None:
    assert RESTORE in NOTEBOOKS


def test_a_notebook_is_valid_and_has_named_cells(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


def test_a_notebook_is_committed_without_outputs(notebook: nbformat.NotebookNode) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [], cell.id
            assert cell.execution_count is None, cell.id


def test_the_first_code_cell_says_how_to_install(notebook: nbformat.NotebookNode) -> None:
    first = next(c for c in notebook.cells if c.cell_type == "code")
    assert all(line.startswith("#") for line in first.source.splitlines())
    assert "%pip install" in first.source


def tagged(notebook: nbformat.NotebookNode, tag: str) -> nbformat.NotebookNode:
    (cell,) = (c for c in notebook.cells if tag in c.metadata.get("tags", []))
    return cell


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(o.get("text", "") for o in cell.outputs)


def errors(cell: nbformat.NotebookNode) -> list[str]:
    return [o.evalue for o in cell.outputs if o.output_type == "error"]


def test_the_exercise_takes_the_solution_and_refuses_what_is_nearly_right(tmp_path: Path) -> None:
    notebook = nbformat.read(RESTORE, as_version=4)
    check = tagged(notebook, "check").source
    match = re.search(r"```python\n(.*?)```", tagged(notebook, "solution").source, re.DOTALL)
    assert match is not None
    solution = match[1]
    attempts = {
        "solution": solution,
        "a state beyond the KV": solution.replace("set(kv) & ", ""),
        "conv left out": solution.replace(" & set(conv)", ""),
        "nothing left to compute": solution.replace("b < n_tokens", "b <= n_tokens"),
        "the first, not the largest": solution.replace("max(", "min("),
    }
    assert len(set(attempts.values())) == len(attempts)
    tried = {}
    for name, source in attempts.items():
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        tried[name] = nbformat.v4.new_code_cell(check, metadata={"tags": ["raises-exception"]})
        notebook.cells.append(tried[name])

    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()

    assert "not solved yet" in printed(tagged(notebook, "check"))
    assert "passed" in printed(tried.pop("solution"))
    for name, cell in tried.items():
        assert errors(cell), f"{name}: accepted"
        assert "should give" in errors(cell)[0]
