"""Every op is compared with its specification, and a wrong op is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import kdalab_kernels as kk
from kdalab.verify.op_cases import CASES
from kdalab.verify.ops import LIMIT, Draw, op_claims, relative
from kdalab_kernels.dispatch import MODULES

INSIDE = {"beta_sigmoid"}
"""Parts of other ops, without a public name of their own."""


def test_every_op_has_a_case() -> None:
    assert set(CASES) == set(MODULES) - INSIDE


def test_every_op_equals_its_specification() -> None:
    claims = op_claims(12, seed=5)
    assert [c.name for c in claims if not c.passed] == []
    assert all("torch" in c.note for c in claims)
    if kk.has_triton():
        here = [c.name.split(" ")[0] for c in claims if "triton" in c.note]
        assert here == [op for op in CASES if "triton" in kk.backends_of(op)]


def test_the_same_seed_draws_the_same_inputs() -> None:
    for case in CASES.values():
        first, second = (case.draw(Draw(torch.Generator().manual_seed(3)))[0] for _ in range(2))
        assert first.keys() == second.keys()
        for name, value in first.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(value, second[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", ["l2norm", "chunk_kda", "causal_conv1d"])
def test_an_op_that_is_off_by_one_in_ten_thousand_fails(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest: Any = getattr(kk, op)

    def wrong(*args: Any, backend: str = "auto", **kwargs: Any) -> Any:
        out = honest(*args, backend=backend, **kwargs)
        if backend == "reference":
            return out
        return out * 1.0001 if op == "l2norm" else (out[0] * 1.0001, *out[1:])

    monkeypatch.setattr(kk, op, wrong)
    if op == "chunk_kda":
        from kdalab.verify import op_cases

        monkeypatch.setitem(CASES, op, op_cases._scan(wrong, return_intermediate_states=True))
    assert [c.name for c in op_claims(3, seed=5, interpret=False) if c.failed] == [
        f"{op} = fp64 specification"
    ]


def test_nan_and_another_shape_are_infinitely_wrong() -> None:
    one = torch.ones(2, 2)
    assert relative(one * torch.nan, one) == float("inf")
    assert relative(one[:1], one) == float("inf")
    assert relative(one, one) == 0


def test_what_fp32_cannot_hold_is_no_error_and_what_it_can_is() -> None:
    nothing = torch.zeros(3)
    assert relative(nothing, torch.full((3,), 1e-46, dtype=torch.float64)) < LIMIT
    assert relative(nothing, torch.full((3,), 1e-37, dtype=torch.float64)) > LIMIT
    assert relative(torch.full((3,), 1e-30), nothing.double()) > LIMIT
