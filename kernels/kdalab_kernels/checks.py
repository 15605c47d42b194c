"""Every check of an argument, in one place: ValueError with name, what is expected, what was given.

Shape and dtype checks read metadata only. The checks of *values* (g <= 0, beta in [0, 2]) are one
reduction each over a tensor that the op reads anyway; they run on CPU tensors only, because on an
accelerator they would make the host wait for the device.
"""

import math
from itertools import pairwise
from typing import NoReturn

import torch

MAX_KEY_DIM = 256  # as in FLA: the state of one head must fit the fast memory of a kernel
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _fail(name: str, expected: str, given: object) -> NoReturn:
    raise ValueError(f"{name}: expected {expected}, given {given}")


def floating(name: str, x: object) -> torch.Tensor:
    """A floating-point tensor."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name}: expected a torch.Tensor, given {type(x).__name__}")
    if x.dtype not in FLOATS:
        _fail(name, "dtype float16, bfloat16, float32 or float64", x.dtype)
    return x


def shaped(name: str, x: object, axes: str, shape: tuple[int, ...]) -> None:
    """A floating-point tensor of exactly this shape; axes names it, e.g. ``[B, T, HV, K]``."""
    t = floating(name, x)
    if t.shape != shape:
        _fail(name, f"shape {axes} = {list(shape)}", list(t.shape))


def same_place(first: tuple[str, torch.Tensor], *others: tuple[str, torch.Tensor | None]) -> None:
    """All on the device of the first."""
    name, x = first
    for other, y in others:
        if y is not None and y.device != x.device:
            _fail(other, f"the device of {name}, {x.device}", y.device)


def no_gradient(op: str, *tensors: torch.Tensor | None) -> None:
    """The fast paths write into buffers and have no backward: say so instead of cutting a graph."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise ValueError(
            f"{op}: an input requires grad, and this backend has no backward; call it under "
            "torch.no_grad() or torch.inference_mode(), or use backend='reference'"
        )


def qkvgb(q: object, k: object, v: object, g: object, beta: object) -> None:
    """Shapes, dtypes, devices of the five token inputs."""
    k_ = floating("k", k)
    if k_.ndim != 4:
        _fail("k", "4 axes [B, T, H, K]", list(k_.shape))
    B, T, H, K = k_.shape
    if not 1 <= K <= MAX_KEY_DIM:
        _fail("k", f"a head dimension K of 1 to {MAX_KEY_DIM}", K)
    shaped("q", q, "[B, T, H, K]", (B, T, H, K))
    v_ = floating("v", v)
    if v_.ndim != 4 or v_.shape[:2] != (B, T) or v_.shape[3] < 1:
        _fail("v", f"shape [B, T, HV, V] = [{B}, {T}, HV, V]", list(v_.shape))
    HV = v_.shape[2]
    if H < 1 or HV < H or HV % H:
        _fail("v", f"value heads HV a multiple of the key heads H={H}", f"HV={HV}")
    shaped("g", g, "[B, T, HV, K]", (B, T, HV, K))
    shaped("beta", beta, "[B, T, HV]", (B, T, HV))
    assert isinstance(q, torch.Tensor)
    for name, x in (("q", q), ("v", v_)):
        if x.dtype != k_.dtype:
            _fail(name, f"the dtype of k, {k_.dtype}", x.dtype)
    assert isinstance(g, torch.Tensor)
    assert isinstance(beta, torch.Tensor)
    same_place(("k", k_), ("q", q), ("v", v_), ("g", g), ("beta", beta))


def decay_values(g: torch.Tensor) -> None:
    """g is a log-decay: at most 0, and not NaN (-inf is a full reset and allowed)."""
    if g.device.type == "cpu" and g.numel():
        largest = g.detach().max().item()
        if not largest <= 0:
            _fail("g", "log-decay of at most 0, without NaN", f"a largest value of {largest:g}")


def beta_values(beta: torch.Tensor, most: int = 2) -> None:
    """Write strength: [0, 1], or up to 2 with negative eigenvalues; beyond, the state explodes."""
    if beta.device.type == "cpu" and beta.numel():
        low, high = (x.item() for x in torch.aminmax(beta.detach()))
        if not (low >= 0 and high <= most):
            more = "" if most == 2 else ", up to 2 with allow_neg_eigval=True"
            _fail(
                "beta",
                f"values in [0, {most}]{more} (for logits set use_beta_sigmoid_in_kernel=True)",
                f"values from {low:g} to {high:g}",
            )


def gate_parameters(
    HV: int,
    K: int,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
) -> None:
    """A_log ``[HV]`` (may be None with a lower bound), dt_bias ``[HV * K]``, bound below 0."""
    if A_log is None and lower_bound is None:
        _fail("A_log", f"shape [HV] = [{HV}] (None only with lower_bound)", None)
    if A_log is not None:
        shaped("A_log", A_log, "[HV]", (HV,))
    if dt_bias is not None:
        shaped("dt_bias", dt_bias, "[HV * K]", (HV * K,))
    if lower_bound is not None and not (math.isfinite(lower_bound) and lower_bound < 0):
        _fail("lower_bound", "a finite number below 0", lower_bound)


def sequence_offsets(cu_seqlens: object, B: int, T: int) -> list[int] | None:
    """``cu_seqlens`` ``[N + 1]`` as host integers: from 0 to T, never decreasing; B must be 1."""
    if cu_seqlens is None:
        return None
    if not isinstance(cu_seqlens, torch.Tensor):
        raise ValueError(f"cu_seqlens: expected a torch.Tensor, given {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.ndim != 1:
        _fail(
            "cu_seqlens",
            "int32 or int64 of shape [N + 1]",
            f"{cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}",
        )
    if B != 1:
        _fail("cu_seqlens", "a batch of B=1 with all sequences in one row of tokens", f"B={B}")
    offsets: list[int] = cu_seqlens.tolist()
    if not offsets or offsets[0] != 0 or offsets[-1] != T:
        _fail("cu_seqlens", f"offsets from 0 to T={T}", f"{offsets[:1]} to {offsets[-1:]}")
    for n, (start, end) in enumerate(pairwise(offsets)):
        if end < start:
            _fail("cu_seqlens", "offsets that never decrease", f"{start}, {end} at entry {n}")
    return offsets


def initial_state(
    S: object, N: int, HV: int, K: int, V: int, v_first: bool, dtypes: tuple[torch.dtype, ...]
) -> None:
    """``[N, HV, K, V]`` (``[N, HV, V, K]`` when v_first) in one of dtypes."""
    if S is None:
        return
    t = floating("initial_state", S)
    if t.ndim == 4 and t.shape[0] != N:
        _fail("initial_state", f"one state for each of N={N} sequences", list(t.shape))
    axes, shape = ("[N, HV, V, K]", (N, HV, V, K)) if v_first else ("[N, HV, K, V]", (N, HV, K, V))
    shaped("initial_state", t, axes, shape)
    if t.dtype not in dtypes:
        _fail("initial_state", f"dtype {' or '.join(str(d) for d in dtypes)}", t.dtype)


def conv_inputs(
    x: object,
    weight: object,
    bias: object,
    activation: str | None,
    state: object,
    N: int | None = None,
) -> None:
    """x ``[B, T, D]``, weight ``[D, W]``, bias ``[D]``, state ``[N, W - 1, D]``."""
    x_ = floating("x", x)
    if x_.ndim != 3:
        _fail("x", "3 axes [B, T, D]", list(x_.shape))
    D = x_.shape[2]
    w = floating("weight", weight)
    if w.ndim != 2 or w.shape[0] != D or w.shape[1] < 1:
        _fail("weight", f"shape [D, W] = [{D}, W]", list(w.shape))
    if bias is not None:
        shaped("bias", bias, "[D]", (D,))
    if activation not in (None, "silu"):
        _fail("activation", "None or 'silu'", repr(activation))
    if state is not None:
        N = x_.shape[0] if N is None else N
        shaped("state", state, "[N, W - 1, D]", (N, w.shape[1] - 1, D))
    others = (("weight", w), ("bias", bias), ("state", state))
    same_place(("x", x_), *((n, t) for n, t in others if isinstance(t, torch.Tensor)))
