"""The Python of CONTRIBUTING.md runs as it stands, and does what the page says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[1] / "CONTRIBUTING.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def the(marker: str) -> str:
    """The one block with this text in it."""
    found = [block for block in BLOCKS if marker in block]
    assert len(found) == 1, marker
    return found[0]


def run(block: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    module = ModuleType("contributed")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look
    exec(compile(block, str(PAGE), "exec"), module.__dict__)
    return module.__dict__


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(BLOCKS) >= 5
    run(BLOCKS[number], monkeypatch)


def test_the_ops_specification_and_its_fast_path_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    files = re.split(r"^# kernels/kdalab_kernels/", the("def rms_norm"), flags=re.M)[1:]
    ours = [run("import torch\n# " + text, monkeypatch)["rms_norm"] for text in files]
    x, weight = torch.randn(5, 16), torch.randn(16)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)
    for rms_norm in ours[:2]:
        torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected)
    with pytest.raises(ValueError, match="eps"):
        ours[2](x, weight, "a")


def test_the_placement_is_one_that_the_cache_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = run(the("class Doubling"), monkeypatch)["Doubling"]()
    assert placement.boundaries(300, 0, None, 64) == (64, 128, 256)
    assert placement.boundaries(300, 64, None, 64) == (128, 256)
    assert str(placement) == "doubling"


def test_the_exercise_can_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from kdalab.exercises import Status
    from kdalab.exercises.checking import check_exercise

    block = the("number=25")
    stub, solution = (
        run(text, monkeypatch) for text in (block[: block.rindex("# kdalab/exercises/")], block)
    )
    exercise = solution["EXERCISE"]
    assert check_exercise(exercise, stub["whole_pages"]).status is Status.UNSOLVED
    assert check_exercise(exercise, solution["whole_pages"]).passed
    wrong = check_exercise(exercise, lambda n, page: n)
    assert wrong.call == "whole_pages(n_tokens=1, page=2)"
    assert "yours" in wrong.picture


def test_the_plot_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = run(the("PlotScript("), monkeypatch)["build"](None)
    assert len(figure.data[0].x) == len(figure.data[0].y) > 3
