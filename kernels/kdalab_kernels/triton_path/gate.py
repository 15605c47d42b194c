"""The forget gates, beta's sigmoid, and the gate fused with the running sum inside a chunk."""

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec

LOG2_E = 1.4426950408889634
LARGEST = 3.4028234e38  # float32: keeps exp(A_log) finite, inf * softplus(-inf) would be NaN
BLOCK = 1024  # numbers of an elementwise program
CHANNELS = 64  # of a running-sum program


@triton.jit
def finite_rate(A_log, LARGEST: tl.constexpr):
    """exp(A_log), kept finite. A minimum would turn a NaN into the bound; this lets it through."""
    rate = tl.exp(A_log)
    return tl.where(rate > LARGEST, LARGEST, rate)


@triton.jit
def log_decay(
    f,
    rate,
    lower_bound,
    KIND: tl.constexpr,  # "decay": f is the log-decay already, "classic", or "bounded"
    LARGEST: tl.constexpr = LARGEST,
):
    """Natural-log decay from the pre-activation f (bias added); rate is A_log of f's head."""
    if KIND == "classic":
        # log1p(e) without cancellation: log(1 + e) * e / ((1 + e) - 1), and e where 1 + e is 1.
        e = tl.exp(-tl.abs(f))
        u = 1.0 + e
        log1p = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
        f = -finite_rate(rate, LARGEST) * (tl.maximum(f, 0.0) + log1p)
    if KIND == "bounded":
        f = lower_bound / (1.0 + tl.exp(-finite_rate(rate, LARGEST) * f))
    return f


@triton.jit
def gate_kernel(
    g,  # [rows, HV, K]
    A_log,  # [HV]
    dt_bias,  # [HV * K]
    out,  # as g
    numbers,
    lower_bound,
    HV: tl.constexpr,
    K: tl.constexpr,
    KIND: tl.constexpr,
    HAS_A: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = i < numbers
    f = tl.load(g + i, mask=m, other=0.0).to(tl.float32)
    if HAS_BIAS:
        f += tl.load(dt_bias + i % (HV * K), mask=m, other=0.0).to(tl.float32)
    rate = tl.zeros([BLOCK], tl.float32)
    if HAS_A:
        rate = tl.load(A_log + (i // K) % HV, mask=m, other=0.0).to(tl.float32)
    tl.store(out + i, log_decay(f, rate, lower_bound, KIND), mask=m)


@triton.jit
def gate_chunk_cumsum_kernel(
    g,  # [tokens, HV, K]
    A_log,  # [HV]
    dt_bias,  # [HV * K]
    out,  # [tokens, HV, K] float32
    table,  # [n_tiles, 2]: sequence, chunk within it
    offsets,  # [N + 1]
    lower_bound,
    HV: tl.constexpr,
    K: tl.constexpr,
    KIND: tl.constexpr,
    HAS_A: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    LOG2_E: tl.constexpr,
):
    tile = tl.program_id(0) // HV
    hv = tl.program_id(0) % HV
    channel = tl.program_id(1) * BK + tl.arange(0, BK)
    n = tl.load(table + 2 * tile)
    first = tl.load(offsets + n) + tl.load(table + 2 * tile + 1) * C
    rows = tl.minimum(tl.load(offsets + n + 1) - first, C)

    row = tl.arange(0, C)
    m = (row < rows)[:, None] & (channel < K)[None, :]
    at = (first * HV + hv) * K + row[:, None] * (HV * K) + channel[None, :]
    f = tl.load(g + at, mask=m, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias = tl.load(dt_bias + hv * K + channel, mask=channel < K, other=0.0)
        f += bias.to(tl.float32)[None, :]
    rate = 0.0
    if HAS_A:
        rate = tl.load(A_log + hv).to(tl.float32)
    decay = log_decay(f, rate, lower_bound, KIND)
    tl.store(out + at, tl.cumsum(decay * LOG2_E, axis=0), mask=m)


@triton.jit
def sigmoid_kernel(x, out, numbers, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = i < numbers
    logit = tl.load(x + i, mask=m, other=0.0).to(tl.float32)
    tl.store(out + i, 1.0 / (1.0 + tl.exp(-logit)), mask=m)


def gate_kind(A_log: torch.Tensor | None, lower_bound: float | None) -> str:
    """Which formula the arguments ask for; neither of them: the input is a log-decay."""
    if lower_bound is not None:
        return "bounded"
    return "decay" if A_log is None else "classic"


def fused_kda_gate(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    output_dtype: torch.dtype | None,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.fused_kda_gate`, for checked arguments."""
    launch.refuse_float64("fused_kda_gate", g)
    checks.no_gradient("fused_kda_gate", g, A_log, dt_bias)
    g = g.contiguous()
    out = torch.empty_like(g, dtype=output_dtype or torch.float32)
    if g.numel():
        gate_kernel[(triton.cdiv(g.numel(), BLOCK),)](
            g,
            g if A_log is None else A_log.contiguous(),
            g if dt_bias is None else dt_bias.contiguous(),
            out,
            g.numel(),
            0.0 if lower_bound is None else float(lower_bound),
            HV=g.shape[-2],
            K=g.shape[-1],
            KIND=gate_kind(A_log, lower_bound),
            HAS_A=A_log is not None,
            HAS_BIAS=dt_bias is not None,
            BLOCK=BLOCK,
            num_warps=4,
        )
    return out


def kda_gate_chunk_cumsum(
    g: torch.Tensor,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    lower_bound: float | None,
    chunk_size: int,
    cu_seqlens: list[int] | None,
) -> torch.Tensor:
    """As :func:`kdalab_kernels.kda_gate_chunk_cumsum`, for checked arguments."""
    launch.refuse_float64("kda_gate_chunk_cumsum", g)
    checks.no_gradient("kda_gate_chunk_cumsum", g, A_log, dt_bias)
    g = g.contiguous()
    B, T, HV, K = g.shape
    out = torch.empty_like(g, dtype=torch.float32)
    tiles = launch.tiles(B, T, cu_seqlens, chunk_size, g.device)
    BK = min(CHANNELS, launch.next_power_of_2(K))
    if out.numel():
        gate_chunk_cumsum_kernel[(len(tiles.table) * HV, triton.cdiv(K, BK))](
            g,
            g if A_log is None else A_log.contiguous(),
            g if dt_bias is None else dt_bias.contiguous(),
            out,
            tiles.table,
            tiles.offsets,
            0.0 if lower_bound is None else float(lower_bound),
            HV=HV,
            K=K,
            KIND=gate_kind(A_log, lower_bound),
            HAS_A=A_log is not None,
            HAS_BIAS=dt_bias is not None,
            C=chunk_size,
            BK=BK,
            LOG2_E=LOG2_E,
            num_warps=4,
        )
    return out


def beta_sigmoid(logits: torch.Tensor) -> torch.Tensor:
    """Write strength in (0, 1) from logits."""
    launch.refuse_float64("beta_sigmoid", logits)
    logits = logits.contiguous()
    out = torch.empty_like(logits)
    if out.numel():
        grid = (triton.cdiv(out.numel(), BLOCK),)
        sigmoid_kernel[grid](logits, out, out.numel(), BLOCK=BLOCK, num_warps=4)
    return out


def SPECS() -> list[CompileSpec]:
    """Kimi K3's bounded gate and the classic one, 96 heads of 128 channels."""
    types = {"g": "*bf16", "A_log": "*fp32", "dt_bias": "*fp32", "out": "*fp32"}
    types |= {"lower_bound": "fp32"}
    common = {"HV": 96, "K": 128, "HAS_A": True, "HAS_BIAS": True}
    flat = {**types, "numbers": "i64"}
    tiled = {**types, "table": "*i32", "offsets": "*i64"}
    chunk = {**common, "C": 64, "BK": CHANNELS, "LOG2_E": LOG2_E}
    sigmoid = {"x": "*bf16", "out": "*fp32", "numbers": "i64"}
    found = [spec("beta_sigmoid", sigmoid_kernel, sigmoid, {"BLOCK": BLOCK})]
    for kind in ("classic", "bounded"):
        found += [
            spec(f"gate_{kind}", gate_kernel, flat, {**common, "KIND": kind, "BLOCK": BLOCK}),
            spec(
                f"gate_chunk_cumsum_{kind}",
                gate_chunk_cumsum_kernel,
                tiled,
                {**chunk, "KIND": kind},
            ),
        ]
    return found
