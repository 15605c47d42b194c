"""A span of tokens as one affine map: composed summaries equal the recurrence."""

import pytest
import torch
from kernel_cases import GATES, inputs, rel_rms, state

from kdalab_kernels import AffineSummary, apply, chunk_summary, compose, naive_recurrent_kda

BACKENDS = ["torch", "reference"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("correlated", [False, True])
def test_three_composed_spans_equal_the_recurrence(backend, kind, correlated):
    x = inputs(2, 100, 1, 2, 16, 24, kind=kind, correlated=correlated)
    S = state(2, 2, 16, 24)
    _, end = naive_recurrent_kda(*x, initial_state=S, output_final_state=True)
    a, b, c = (
        chunk_summary(*(t[:, lo:hi] for t in x[1:]), backend=backend)
        for lo, hi in ((0, 33), (33, 64), (64, 100))
    )
    left = compose(compose(a, b, backend=backend), c, backend=backend)
    right = compose(a, compose(b, c, backend=backend), backend=backend)
    for whole in (left, right):
        assert rel_rms(apply(whole, S, backend=backend), end) < 1e-12
    assert rel_rms(compose(b, a).M, left.M) > 1e-3 or kind in ("saturated", "huge")


@pytest.mark.parametrize("kind", ["tiny", "random", "mixed"])
def test_float32_summary_equals_the_float64_one(kind):
    x = inputs(1, 64, 2, 2, 32, 48, kind=kind, dtype=torch.float32)
    fast = chunk_summary(*x[1:])
    exact = chunk_summary(*(t.double() for t in x[1:]), backend="reference")
    assert fast.M.shape == (1, 2, 32, 32)
    assert fast.b.shape == (1, 2, 32, 48)
    assert rel_rms(fast.M, exact.M) < 2e-5
    assert rel_rms(fast.b, exact.b) < 2e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_span_is_the_identity(backend):
    x = inputs(1, 0, 1, 2, 5, 7)
    M, b = chunk_summary(*x[1:], backend=backend)
    assert torch.equal(M, torch.eye(5, dtype=M.dtype).expand(1, 2, 5, 5))
    assert b.shape == (1, 2, 5, 7)
    assert not b.any()


def test_one_token_by_its_formula():
    _, k, v, g, beta = inputs(1, 1, 1, 1, 5, 7)
    M, b = chunk_summary(k, v, g, beta)
    k, v, g, beta = k.view(5, 1), v.view(1, 7), g.view(5), beta.item()
    expected = (torch.eye(5, dtype=k.dtype) - beta * k @ k.T) @ torch.diag(g.exp())
    torch.testing.assert_close(M[0, 0], expected)
    torch.testing.assert_close(b[0, 0], beta * k @ v)


def test_shapes_that_do_not_fit_are_refused():
    x = inputs(1, 4, 1, 2, 5, 7)
    s = chunk_summary(*x[1:])
    with pytest.raises(ValueError, match=r"S: expected shape \[B, HV, K, V\] = \[1, 2, 5, 7\]"):
        apply(s, torch.zeros(1, 2, 7, 5))
    with pytest.raises(ValueError, match=r"second\.b"):
        compose(s, AffineSummary(s.M, s.b[..., :3]))
    with pytest.raises(ValueError, match="AffineSummary"):
        apply((s.M, s.b), s.b)
    with pytest.raises(ValueError, match=r"summary\.M"):
        apply(AffineSummary(s.M[..., :3], s.b), s.b)
