"""Every check of an argument, in one place: ValueError with name, what is expected, what was given.

Shape and dtype checks read metadata only. The checks of *values* (g <= 0, beta in [0, 2]) are one
reduction each over a tensor that the op reads anyway; they run on CPU tensors only, because on an
accelerator they would make the host wait for the device.
"""

import math
from itertools import pairwise
from numbers import Integral, Real
from typing import NoReturn, TypeGuard

import torch

MAX_KEY_DIM = 256  # as in FLA: the state of one head must fit the fast memory of a kernel
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _fail(name: str, expected: str, given: object) -> NoReturn:
    raise ValueError(f"{name}: expected {expected}, given {given}")


def given(x: object) -> str:
    """A wrong argument, for a message: numbers and words as they are, all else by its type."""
    if isinstance(x, str | Real):
        text = repr(x)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return type(x).__name__


def flag(name: str, x: object) -> bool:
    """True or False; numbers are neither."""
    if not isinstance(x, bool):
        _fail(name, "True or False", given(x))
    return x


def flags(**named: object) -> None:
    """All of them True or False."""
    for name, x in named.items():
        flag(name, x)


def _whole(x: object) -> TypeGuard[int]:
    return isinstance(x, Integral) and not isinstance(x, bool)


def integer(name: str, x: object, least: int, most: int = 2**63 - 1) -> int:
    """A whole number from least to most; 64.0 and True are none."""
    if not _whole(x) or not least <= x <= most:
        limits = f"from {least} to {most if most < 2**63 - 1 else '2^63 - 1'}"
        _fail(name, f"an integer {limits}", given(x))
    return int(x)


def one_of(name: str, x: object, allowed: tuple[int, ...]) -> int:
    """One of some whole numbers."""
    if not _whole(x) or x not in allowed:
        _fail(name, f"one of {allowed}", given(x))
    return int(x)


def _finite(x: object) -> TypeGuard[float]:
    try:
        return isinstance(x, Real) and not isinstance(x, bool) and math.isfinite(x)
    except OverflowError:  # a whole number that no float holds
        return False


def number(name: str, x: object, least: float = -math.inf) -> float:
    """A finite number of at least least; a tensor is none: reading it would make the host wait."""
    if not _finite(x) or x < least:
        limit = "" if least == -math.inf else f" of at least {least:g}"
        _fail(name, f"a finite number{limit}", given(x))
    return float(x)


def scale(x: object) -> float | None:
    """None, or a finite number."""
    return None if x is None else number("scale", x)


def dtype(name: str, x: object, allowed: tuple[torch.dtype, ...]) -> torch.dtype:
    """One of these dtypes."""
    if not isinstance(x, torch.dtype) or x not in allowed:
        names = ", ".join(str(d) for d in allowed)
        _fail(name, f"dtype {names}", x if isinstance(x, torch.dtype) else given(x))
    return x


def tensor(name: str, x: object) -> torch.Tensor:
    """A tensor whose elements lie in memory, by strides: not on the meta device, not sparse."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name}: expected a torch.Tensor, given {given(x)}")
    if x.device.type == "meta" or x.layout != torch.strided:
        what = "one on the meta device" if x.device.type == "meta" else str(x.layout)
        _fail(name, "a strided torch.Tensor with data", what)
    return x


def floating(name: str, x: object) -> torch.Tensor:
    """A floating-point tensor."""
    x = tensor(name, x)
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
    k_ = token_inputs(q, k, v, g, beta)
    if k_.shape[3] > MAX_KEY_DIM:
        _fail("k", f"a head dimension K of 1 to {MAX_KEY_DIM}", k_.shape[3])
    for name, x in (("q", q), ("v", v)):
        assert isinstance(x, torch.Tensor)
        if x.dtype != k_.dtype:
            _fail(name, f"the dtype of k, {k_.dtype}", x.dtype)


def token_inputs(
    q: object, k: object, v: object, g: object, beta: object, S: object = None
) -> torch.Tensor:
    """Shapes and devices of the five token inputs (and of a state for each row, K-first), of any
    floating dtypes; gives k back."""
    k_ = floating("k", k)
    if k_.ndim != 4:
        _fail("k", "4 axes [B, T, H, K]", list(k_.shape))
    B, T, H, K = k_.shape
    if K < 1:
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
    for name, x in (("q", q), ("v", v_), ("g", g), ("beta", beta)):
        assert isinstance(x, torch.Tensor)
        same_place(("k", k_), (name, x))
    if S is not None:
        shaped("initial_state", S, "[B, HV, K, V]", (B, HV, K, v_.shape[3]))
        assert isinstance(S, torch.Tensor)
        same_place(("k", k_), ("initial_state", S))
    return k_


def decay_values(g: torch.Tensor, promised: float | None = None) -> None:
    """g is a log-decay: at most 0, and not NaN (-inf is a full reset and allowed).

    With a promised bound (safe_gate) also at least that.
    """
    if g.device.type == "cpu" and g.numel():
        largest = g.detach().max().item()
        if not largest <= 0:
            _fail("g", "log-decay of at most 0, without NaN", f"a largest value of {largest:g}")
        if promised is not None and (least := g.detach().min().item()) < promised:
            _fail("g", f"values of at least {promised:g}, as safe_gate=True promises", f"{least:g}")


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
    A_log: object,
    dt_bias: object,
    lower_bound: object,
) -> None:
    """A_log ``[HV]`` (may be None with a lower bound), dt_bias ``[HV * K]``, bound below 0."""
    if A_log is None and lower_bound is None:
        _fail("A_log", f"shape [HV] = [{HV}] (None only with lower_bound)", None)
    if A_log is not None:
        shaped("A_log", A_log, "[HV]", (HV,))
    if dt_bias is not None:
        shaped("dt_bias", dt_bias, "[HV * K]", (HV * K,))
    bound(lower_bound)


def gate_inputs(
    g: object, A_log: object, dt_bias: object, lower_bound: object, output_dtype: object
) -> None:
    """g ``[.., HV, K]`` with its parameters, and the result's dtype or None."""
    g_ = floating("g", g)
    if output_dtype is not None:
        dtype("output_dtype", output_dtype, FLOATS)
    if g_.ndim < 2:
        _fail("g", "shape [..., HV, K]", list(g_.shape))
    gate_parameters(g_.shape[-2], g_.shape[-1], A_log, dt_bias, lower_bound)
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        if isinstance(x, torch.Tensor):
            same_place(("g", g_), (name, x))


def bound(lower_bound: object, required: bool = False) -> float | None:
    """None (unless required), or a finite number below 0."""
    if lower_bound is None and not required:
        return None
    if not _finite(lower_bound) or lower_bound >= 0:
        _fail("lower_bound", "a finite number below 0", given(lower_bound))
    return float(lower_bound)


def sequence_offsets(cu_seqlens: object, B: int, T: int) -> list[int] | None:
    """``cu_seqlens`` ``[N + 1]`` as host integers: from 0 to T, never decreasing; B must be 1."""
    if cu_seqlens is None:
        return None
    cu_seqlens = tensor("cu_seqlens", cu_seqlens)
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
    activation: object,
    state: object,
    N: int | None = None,
    state_name: str = "state",
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
        _fail("activation", "None or 'silu'", given(activation))
    if state is not None:
        N = x_.shape[0] if N is None else N
        shaped(state_name, state, "[N, W - 1, D]", (N, w.shape[1] - 1, D))
    others = (("weight", w), ("bias", bias), (state_name, state))
    same_place(("x", x_), *((n, t) for n, t in others if isinstance(t, torch.Tensor)))
