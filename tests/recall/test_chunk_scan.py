"""The differentiable chunk form against the recurrence, in fp64: outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from kdalab.errors import KdalabError
from kdalab.recall.chunk import chunk_scan
from kdalab_kernels import naive_recurrent_kda

GATES = ("slow", "mixed", "closed")


def inputs(T: int, gate: str, alike: bool = False) -> list[torch.Tensor]:
    """q, k, v, g, beta of 2 sequences and 3 heads, K = 6 and V = 5, leaves of autograd."""
    r = torch.Generator().manual_seed(T)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(2, T, 3, *shape, generator=r, dtype=torch.float64)

    k = normal(6)
    if alike:
        k = k[:, :1] + 0.05 * k
    rate = {
        "slow": torch.full((6,), 1e-4),
        "mixed": torch.tensor([1e-3, 0.1, 1.0, 5.0, 30.0, 1000.0]),
        "closed": torch.full((6,), 1000.0),
    }[gate]
    g = -rate.double() * torch.rand(2, T, 3, 6, generator=r, dtype=torch.float64)
    beta = torch.sigmoid(normal())
    return [x.requires_grad_() for x in (normal(6), normalize(k, dim=-1), normal(5), g, beta)]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("T", [1, 2, 15, 16, 17, 50])
def test_outputs_and_gradients_equal_the_recurrence(T: int, gate: str) -> None:
    compare(inputs(T, gate), chunk=16)


@pytest.mark.parametrize("chunk", [1, 8, 64])
def test_the_chunk_does_not_matter(chunk: int) -> None:
    compare(inputs(40, "mixed"), chunk)


def test_similar_keys_with_slow_decay_stay_exact() -> None:
    """Where a Neumann series for the inverse fails (cosines near 1, hardly any decay)."""
    compare(inputs(64, "slow", alike=True), chunk=32)


def compare(x: list[torch.Tensor], chunk: int) -> None:
    expected, _ = naive_recurrent_kda(*x)
    got = chunk_scan(*x, chunk=chunk)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    weight = torch.randn(
        expected.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    wanted = torch.autograd.grad((expected * weight).sum(), x)
    found = torch.autograd.grad((got * weight).sum(), x)
    for name, a, b in zip(("q", "k", "v", "g", "beta"), found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("chunk", [0, 3, 48])
def test_a_chunk_that_cannot_be_halved_is_refused(chunk: int) -> None:
    with pytest.raises(KdalabError, match="power of 2"):
        chunk_scan(*inputs(4, "slow"), chunk=chunk)


def test_no_tokens_are_refused() -> None:
    with pytest.raises(KdalabError, match="at least one token"):
        chunk_scan(*(x[:, :0] for x in inputs(1, "slow")))
