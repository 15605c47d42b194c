"""Gate, l2 norm and short convolution: against torch's own functions and against their spec."""

import pytest
import torch

from kdalab_kernels import causal_conv1d, causal_conv1d_update, fused_kda_gate, l2norm

BACKENDS = ["torch", "reference"]


def by_conv1d(x, weight, bias, activation, S):
    """The same convolution through torch's conv1d in float64."""
    seq = torch.cat([S, x], dim=1).double().transpose(1, 2)
    y = torch.nn.functional.conv1d(
        seq,
        weight.double()[:, None],
        None if bias is None else bias.double(),
        groups=x.shape[2],
    )
    y = torch.nn.functional.silu(y) if activation else y
    return y.transpose(1, 2)


def close(y, exact):
    """To a few float32 roundings."""
    torch.testing.assert_close(y.double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("T", [1, 2, 3, 4, 5, 64])
@pytest.mark.parametrize("W", [1, 2, 4])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_convolution_equals_conv1d(backend, T, W, activation):
    x, weight, S = torch.randn(3, T, 10), torch.randn(10, W), torch.randn(3, W - 1, 10)
    for bias in (None, torch.randn(10)):
        y, end = causal_conv1d(x, weight, bias, activation, S, True, backend=backend)
        close(y, by_conv1d(x, weight, bias, activation, S))
        assert torch.equal(end, torch.cat([S, x], 1)[:, T:])
    y, end = causal_conv1d(x, weight, None, activation, backend=backend)
    assert end is None
    close(y, by_conv1d(x, weight, None, activation, S * 0))


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("D", [32, 100])
def test_convolution_cut_at_every_token_gives_the_same_bits(activation, D):
    x, weight, bias = torch.randn(2, 96, D), torch.randn(D, 4), torch.randn(D)
    S = torch.randn(2, 3, D)
    whole, end = causal_conv1d(x, weight, bias, activation, S, True)
    for i in range(97):
        a, mid = causal_conv1d(x[:, :i], weight, bias, activation, S, True)
        b, last = causal_conv1d_update(x[:, i:], mid, weight, bias, activation)
        assert torch.equal(torch.cat([a, b], 1), whole), i
        assert torch.equal(last, end), i


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_updates_of_any_size_equal_one_pass(backend, step):
    x, weight = torch.randn(2, 11, 8), torch.randn(8, 4)
    whole, end = causal_conv1d(x, weight, output_final_state=True)
    S = torch.zeros(2, 3, 8)
    rows = []
    for t in range(0, 11, step):
        given, before = x[:, t : t + step], S.clone()
        if step == 1:
            y, new = causal_conv1d_update(given[:, 0], S, weight, backend=backend)
            y = y[:, None]
        else:
            y, new = causal_conv1d_update(given, S, weight, backend=backend)
        assert torch.equal(S, before)
        S = new
        rows.append(y)
    torch.testing.assert_close(torch.cat(rows, 1), whole)
    assert torch.equal(S, end)


def test_convolution_state_holds_raw_inputs_in_its_own_memory():
    x, weight = torch.randn(1, 5, 4), torch.randn(4, 4)
    _, end = causal_conv1d(x, weight, output_final_state=True)
    assert torch.equal(end, x[:, 2:])
    x.fill_(float("nan"))
    assert end.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_convolution_is_computed_wide_and_keeps_its_dtypes(backend):
    x, weight = torch.randn(1, 9, 4).bfloat16(), torch.randn(4, 4)
    S = torch.randn(1, 3, 4).bfloat16()
    y, end = causal_conv1d(x, weight, None, "silu", S, True, backend=backend)
    assert y.dtype == end.dtype == torch.bfloat16
    expected = by_conv1d(x, weight, None, "silu", S)
    torch.testing.assert_close(y.double(), expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_gate_equals_float64_formula(backend, lower_bound):
    f, A_log, bias = torch.randn(2, 7, 3, 8) * 8, torch.randn(3), torch.randn(24)
    wide = f.double() + bias.double().view(3, 8)
    rate = A_log.double().exp()[:, None]
    if lower_bound is None:
        expected = -rate * torch.nn.functional.softplus(wide)
    else:
        expected = lower_bound * torch.sigmoid(rate * wide)
    g = fused_kda_gate(f, A_log, bias, lower_bound, backend=backend)
    assert g.dtype == torch.float32
    torch.testing.assert_close(g.double(), expected, rtol=2e-6, atol=1e-7)
    g = fused_kda_gate(f.double(), A_log, bias, lower_bound, backend=backend)
    torch.testing.assert_close(g, expected, rtol=1e-7, atol=1e-12)
    assert fused_kda_gate(f, A_log, bias, -3.0, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("backend", BACKENDS)
def test_gate_is_finite_and_at_most_zero_at_the_extremes(backend):
    f = torch.tensor([-1e30, -200.0, -88.0, 0.0, 88.0, 200.0]).view(1, 6)
    for A_log in (torch.tensor([-200.0]), torch.tensor([0.0]), torch.tensor([200.0])):
        for lower_bound in (None, -5.0):
            g = fused_kda_gate(f, A_log, None, lower_bound, backend=backend)
            assert not g.isnan().any()
            assert (g <= 0).all()
            if lower_bound is not None:
                assert (g >= lower_bound).all()
    assert torch.equal(
        fused_kda_gate(f[:, 3:4], None, None, -4.0, backend=backend), torch.tensor([[-2.0]])
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_l2norm_has_eps_inside_the_root(backend):
    x = torch.tensor([[3e-4, 4e-4], [0.0, 0.0], [3.0, 4.0]])
    expected = x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(l2norm(x, backend=backend), expected)
    norm = l2norm(x, backend=backend).norm(dim=-1)
    assert norm[0] == pytest.approx(0.4472, abs=1e-3)  # F.normalize would give 1
    assert norm[1] == 0
    assert l2norm(x.bfloat16(), backend=backend).dtype == torch.bfloat16
