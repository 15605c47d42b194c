"""The token recurrence: one program keeps ``[BV, K]`` of one head's state in registers.

The state is read once and written once, whatever the number of tokens. It is laid out V-first in
the program, so that the sums over K (against k, then against q) run along contiguous memory when
the pool is V-first as well. Gate, l2 norm and beta's sigmoid are computed here, in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.call import L2NORM_EPS, KdaCall, KdaResult
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec

TILE = 4096  # state elements of a program: 32 a thread
EPS = tl.constexpr(L2NORM_EPS)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def gate_activation(f, rate, lower_bound, BOUNDED: tl.constexpr):
    """Natural-log decay of the classic gate or of the one with a lower bound."""
    if BOUNDED:
        g = lower_bound / (1.0 + tl.exp(-rate * f))
    else:
        small = tl.exp(-tl.abs(f))
        up = 1.0 + small
        # log1p: what rounding took from 1 + small is put back by the quotient
        exact = tl.log(up) * (small / tl.where(up == 1.0, 1.0, up - 1.0))
        g = -rate * (tl.maximum(f, 0.0) + tl.where(up == 1.0, small, exact))
    return g


@triton.jit
def recurrent_kernel(
    q,  # [tokens, H, K]
    k,
    v,  # [tokens, HV, V]
    g,  # [tokens, HV, K]
    beta,  # [tokens, HV]
    o,  # [tokens, HV, V]
    A_log,  # [HV]
    dt_bias,  # [HV, K]
    initial,  # [slots, HV, V, K] or [slots, HV, K, V], slots by stride
    final,
    kept,  # [tokens, HV, V, K]: the state after every token
    slots,  # [N]: which slot of initial and final
    offsets,  # [N + 1]: first token of each sequence
    T,  # tokens of each sequence, without VARLEN
    n_slots,
    initial_row,
    final_row,
    scale,
    lower_bound,
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    V_FIRST: tl.constexpr,
    SLOTS: tl.constexpr,
    VARLEN: tl.constexpr,
    INITIAL: tl.constexpr,
    FINAL: tl.constexpr,
    KEPT: tl.constexpr,
    L2NORM: tl.constexpr,
    GATE: tl.constexpr,
    BOUNDED: tl.constexpr,
    RATE: tl.constexpr,
    BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    TWICE: tl.constexpr,
):
    v_blocks: tl.constexpr = (V + BV - 1) // BV
    n = (tl.program_id(0) // (HV * v_blocks)).to(tl.int64)
    hv = tl.program_id(0) // v_blocks % HV
    h = hv // (HV // H)
    kc = tl.arange(0, BK)
    vc = tl.program_id(0) % v_blocks * BV + tl.arange(0, BV)
    on_k, on_v = kc < K, vc < V
    inside = on_v[:, None] & on_k[None, :]

    slot = n
    rows = V
    if SLOTS:
        slot = tl.load(slots + n)
        rows = tl.where((slot >= 0) & (slot < n_slots), V, 0)  # any other slot is not touched
    live = vc < rows
    of_state = live[:, None] & on_k[None, :]
    if V_FIRST:
        place = hv * (V * K) + vc[:, None] * K + kc[None, :]
    else:
        place = hv * (V * K) + vc[:, None] + kc[None, :] * V
    S = tl.zeros([BV, BK], tl.float32)
    if INITIAL:
        initial_p = initial + slot * initial_row + place
        S = tl.load(initial_p, mask=of_state, other=0.0).to(tl.float32)

    first = n * T
    length = T
    if VARLEN:
        first = tl.load(offsets + n)
        length = (tl.load(offsets + n + 1) - first).to(tl.int32)
    rate = 1.0
    if RATE:
        rate = tl.exp(tl.load(A_log + hv).to(tl.float32))
        rate = tl.where(rate > 3.4028234e38, 3.4028234e38, rate)  # kept finite, and NaN kept NaN
    if BIAS:
        bias = tl.load(dt_bias + hv * K + kc, mask=on_k, other=0.0).to(tl.float32)

    for t in range(length):
        token = first + t
        b_q = tl.load(q + (token * H + h) * K + kc, mask=on_k, other=0.0).to(tl.float32)
        b_k = tl.load(k + (token * H + h) * K + kc, mask=on_k, other=0.0).to(tl.float32)
        b_v = tl.load(v + (token * HV + hv) * V + vc, mask=on_v, other=0.0).to(tl.float32)
        b_g = tl.load(g + (token * HV + hv) * K + kc, mask=on_k, other=0.0).to(tl.float32)
        b_beta = tl.load(beta + token * HV + hv).to(tl.float32)
        if L2NORM:
            b_q /= tl.sqrt(tl.sum(b_q * b_q) + EPS)
            b_k /= tl.sqrt(tl.sum(b_k * b_k) + EPS)
        if GATE:
            if BIAS:
                b_g += bias
            b_g = gate_activation(b_g, rate, lower_bound, BOUNDED)
        if SIGMOID:
            b_beta = 1.0 / (1.0 + tl.exp(-b_beta))
            if TWICE:
                b_beta *= 2.0
        S *= tl.exp2(b_g * LOG2E)[None, :]
        delta = b_beta * (b_v - tl.sum(S * b_k[None, :], axis=1))
        S += delta[:, None] * b_k[None, :]
        b_o = tl.sum(S * (b_q * scale)[None, :], axis=1)
        b_o = tl.where(live, b_o, 0.0)
        tl.store(o + (token * HV + hv) * V + vc, b_o.to(o.dtype.element_ty), mask=on_v)
        if KEPT:
            kept_p = kept + (token * HV + hv) * (V * K) + vc[:, None] * K + kc[None, :]
            b_kept = tl.where(live[:, None], S, 0.0)
            tl.store(kept_p, b_kept.to(kept.dtype.element_ty), mask=inside)

    if FINAL:
        final_p = final + slot * final_row + place
        tl.store(final_p, S.to(final.dtype.element_ty), mask=of_state)


def run_recurrent(
    call: KdaCall,
    initial: torch.Tensor | None,
    final: torch.Tensor | None,
    kept: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    v_first: bool = True,
) -> torch.Tensor:
    """One launch over all rows; initial and final ``[slots, ..]`` with packed rows. Returns o."""
    launch.refuse_float64("fused_recurrent_kda", call.q, call.g, call.beta, initial)
    checks.no_gradient("fused_recurrent_kda", call.q, call.k, call.v, call.g, call.beta, initial)
    q, k, v, g, beta = (x.contiguous() for x in (call.q, call.k, call.v, call.g, call.beta))
    o = torch.empty_like(v)
    K, V, HV = call.K, call.V, call.HV
    BK = launch.next_power_of_2(K)
    BV = launch.next_power_of_2(V)
    if not launch.INTERPRETED:  # the interpreter wants few, large programs
        BV = min(BV, max(1, TILE // BK))
    offsets = slots
    if call.cu_seqlens is not None:
        offsets = torch.tensor(call.cu_seqlens, dtype=torch.int64, device=q.device)
    programs = call.N * HV * triton.cdiv(V, BV)
    if not programs or (not q.shape[1] and final is None):
        return o
    constants: dict[str, Any] = {
        "H": q.shape[2],
        "HV": HV,
        "K": K,
        "V": V,
        "BK": BK,
        "BV": BV,
        "V_FIRST": v_first,
        "SLOTS": slots is not None,
        "VARLEN": call.cu_seqlens is not None,
        "INITIAL": initial is not None,
        "FINAL": final is not None,
        "KEPT": kept is not None,
        "L2NORM": call.use_qk_l2norm_in_kernel,
        "GATE": call.use_gate_in_kernel,
        "BOUNDED": call.lower_bound is not None,
        "RATE": call.use_gate_in_kernel and call.A_log is not None,
        "BIAS": call.use_gate_in_kernel and call.dt_bias is not None,
        "SIGMOID": call.use_beta_sigmoid_in_kernel,
        "TWICE": call.allow_neg_eigval,
    }
    recurrent_kernel[(programs,)](
        q,
        k,
        v,
        g,
        beta,
        o,
        beta if call.A_log is None else call.A_log.contiguous(),
        beta if call.dt_bias is None else call.dt_bias.contiguous(),
        o if initial is None else initial,
        o if final is None else final,
        o if kept is None else kept,
        o if slots is None else slots,
        o if offsets is None else offsets,
        q.shape[1],
        0 if initial is None else len(initial),
        0 if initial is None else initial.stride(0),
        0 if final is None else final.stride(0),
        call.scale,
        call.lower_bound or 0.0,
        **constants,
        num_warps=4,
        num_stages=2,
    )
    return o


def fused_recurrent_kda(call: KdaCall) -> KdaResult:
    """The ``triton`` backend of :func:`kdalab_kernels.fused_recurrent_kda`."""
    shape = (call.N, call.HV, call.K, call.V)
    if call.state_v_first:
        shape = (call.N, call.HV, call.V, call.K)
    final = None
    if call.output_final_state:
        final = torch.empty(shape, dtype=torch.float32, device=call.q.device)
    initial = None if call.initial_state is None else call.initial_state.contiguous()
    o = run_recurrent(call, initial, final, v_first=call.state_v_first)
    return KdaResult(o, final, None)


def SPECS() -> list[CompileSpec]:
    """K3's decode step in place, the same with raw gates kept for verify, and packed sequences."""
    types = dict.fromkeys(("q", "k", "v", "g", "beta", "o"), "*bf16")
    types |= dict.fromkeys(("A_log", "dt_bias", "initial", "final", "kept"), "*fp32")
    types |= {"slots": "*i64", "offsets": "*i64", "T": "i32", "n_slots": "i32"}
    types |= {"initial_row": "i64", "final_row": "i64", "scale": "fp32", "lower_bound": "fp32"}
    shape = {"H": 96, "HV": 96, "K": 128, "V": 128, "BK": 128, "BV": TILE // 128, "V_FIRST": True}
    flags = dict.fromkeys(
        ("SLOTS", "INITIAL", "FINAL", "L2NORM", "GATE", "BOUNDED", "RATE", "BIAS", "SIGMOID"), True
    )
    flags |= {"VARLEN": False, "KEPT": False, "TWICE": False}
    verify = {**flags, "FINAL": False, "KEPT": True, "BOUNDED": False}
    packed = {**flags, "SLOTS": False, "VARLEN": True, "GATE": False, "RATE": False, "BIAS": False}
    return [
        spec("recurrent_decode", recurrent_kernel, types, {**shape, **flags}),
        spec("recurrent_verify", recurrent_kernel, types, {**shape, **verify}),
        spec("recurrent_packed", recurrent_kernel, types, {**shape, **packed, "V_FIRST": False}),
    ]
