"""All of a tile that does not need the state: one program per (tile, value head), all in parallel.

With G the running log2-decay since the tile's start (the names of the Kimi Linear report)::

    T   = (I + tril(beta K K^T . decay, -1))^-1 Diag(beta)
    Aqk = scale tril(Q K^T . decay)
    Qg  = scale Q . 2^G       Kg = K . 2^G       Ke = K . 2^(G_last - G)       a = 2^G_last

W = T Kg and U = T V of the report are never formed: the scan needs ``U - W S = T (V - Kg S)``, one
small product, for two large tensors less to write and read.

Norm, gate and sigmoid happen on the way in: raw inputs are read once and nothing of them is stored.
Channels come BC at a time; only A, ``[C, C]``, lasts from one group to the next.
"""

from typing import Any

import triton
import triton.language as tl

from kdalab_kernels.triton_path.chunk_intra import products_between_blocks, products_in_blocks
from kdalab_kernels.triton_path.chunk_solve import unit_lower_inverse
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.gate import LOG2_E, log_decay


@triton.jit
def inverse_norm(x, rows, eps, K: tl.constexpr, BC: tl.constexpr, C: tl.constexpr):
    """``1 / sqrt(sum of squares + eps)`` of the rows at x ``[C, 1]`` (pointers)."""
    squares = tl.zeros([C], tl.float32)
    for start in tl.range(0, K, BC, num_stages=1):
        c = start + tl.arange(0, BC)
        wide = tl.load(x + c[None, :], mask=rows & (c < K)[None, :], other=0.0).to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
    return 1.0 / tl.sqrt(squares + eps)


@triton.jit
def chunk_prepare_kernel(
    q,  # [tokens, H, K]
    k,  # [tokens, H, K]
    g,  # [tokens, HV, K]
    beta,  # [tokens, HV]
    A_log,  # [HV]
    dt_bias,  # [HV * K]
    table,  # [n_tiles, 2]: sequence, tile within it
    offsets,  # [N + 1]
    Qg,  # [tokens, HV, BK]; columns from K on become 0
    Kg,  # [tokens, HV, BK]
    Ke,  # [tokens, HV, BK]
    T,  # [tokens, HV, C]
    Aqk,  # [tokens, HV, C]
    a,  # [n_tiles, HV, BK] float32
    scale,
    eps,  # of the l2 norm
    lower_bound,
    beta_scale,  # 2 with negative eigenvalues
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,  # 16, 32 or 64
    BK: tl.constexpr,  # K padded to a multiple of BC
    BC: tl.constexpr,  # channels at a time, a power of 2 from 16
    L2NORM: tl.constexpr,
    KIND: tl.constexpr,  # of gate
    HAS_A: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    PRODUCT: tl.constexpr,  # operand type of matrix products
    PRECISION: tl.constexpr,  # of those with float32 operands
    LOG2_E: tl.constexpr,
):
    NB: tl.constexpr = C // 16
    tile = (tl.program_id(0) // HV).to(tl.int64)
    hv = tl.program_id(0) % HV
    n = tl.load(table + 2 * tile)
    first = tl.load(offsets + n) + tl.load(table + 2 * tile + 1) * C
    rows = tl.minimum(tl.load(offsets + n + 1) - first, C).to(tl.int32)

    i = tl.arange(0, C)
    live = i < rows
    followed = (i % 16 < 15) & (i + 1 < rows)
    q_rows = q + (first * H + hv // (HV // H)) * K + i[:, None] * (H * K)
    k_rows = k + (first * H + hv // (HV // H)) * K + i[:, None] * (H * K)
    g_rows = g + (first * HV + hv) * K + i[:, None] * (HV * K)
    q_size = tl.full([C], 1.0, tl.float32) * scale
    k_size = tl.full([C], 1.0, tl.float32)
    if L2NORM:  # a row's factor: it is applied to products and sums, not to every operand
        q_size *= inverse_norm(q_rows, live[:, None], eps, K, BC, C)
        k_size *= inverse_norm(k_rows, live[:, None], eps, K, BC, C)
    rate = 0.0
    if HAS_A:
        rate = tl.load(A_log + hv).to(tl.float32)
    block = tl.arange(0, NB)
    earlier = (block[None, :] < block[:, None])[:, :, None]
    later = (block[None, :] > block[:, None])[:, :, None]

    Aq = tl.zeros([C, C], tl.float32)
    Ak = tl.zeros([C, C], tl.float32)
    for start in tl.range(0, BK, BC, num_stages=1):
        c = start + tl.arange(0, BC)
        known = (c < K)[None, :]
        m = live[:, None] & known
        b_q = tl.load(q_rows + c[None, :], mask=m, other=0.0).to(PRODUCT)
        b_k = tl.load(k_rows + c[None, :], mask=m, other=0.0).to(PRODUCT)
        f = tl.load(g_rows + c[None, :], mask=m, other=0.0).to(tl.float32)
        # The next token's decay is read again: the sum from it on, made by subtracting a token's
        # own decay from a longer sum, would lose every digit when that decay is -1000.
        m_next = followed[:, None] & known
        f_next = tl.load(g_rows + (HV * K) + c[None, :], mask=m_next, other=0.0).to(tl.float32)
        if HAS_BIAS:
            b_bias = tl.load(dt_bias + hv * K + c, mask=c < K, other=0.0).to(tl.float32)[None, :]
            f += b_bias
            f_next += b_bias
        decay = tl.where(m, log_decay(f, rate, lower_bound, KIND) * LOG2_E, 0.0)
        decay_next = tl.where(m_next, log_decay(f_next, rate, lower_bound, KIND) * LOG2_E, 0.0)
        g3 = tl.reshape(decay, [NB, 16, BC])
        since = tl.cumsum(g3, axis=1)
        until = tl.cumsum(tl.reshape(decay_next, [NB, 16, BC]), axis=1, reverse=True)
        total = tl.sum(g3, axis=1)

        before = tl.sum(tl.where(earlier, total[None, :, :], 0.0), axis=1)
        behind = tl.sum(tl.where(later, total[None, :, :], 0.0), axis=1)
        out = (first * HV + hv) * BK + i[:, None] * (HV * BK) + c[None, :]
        to_end = tl.reshape(tl.exp2(until + behind[:, None, :]), [C, BC])
        tl.store(Ke + out, b_k * (to_end * k_size[:, None]), mask=live[:, None])
        gamma = tl.reshape(tl.exp2(since + before[:, None, :]), [C, BC])
        tl.store(Kg + out, b_k * (gamma * k_size[:, None]), mask=live[:, None])
        tl.store(Qg + out, b_q * (gamma * q_size[:, None]), mask=live[:, None])
        tl.store(a + (tile * HV + hv) * BK + c, tl.exp2(tl.sum(total, axis=0)))

        Aq, Ak = products_between_blocks(
            b_q, b_k, since, until, total, Aq, Ak, C, NB, BC, PRODUCT, PRECISION
        )
        Aq, Ak = products_in_blocks(b_q, b_k, g3, Aq, Ak, C, NB, BC, PRODUCT, PRECISION)

    out = (first * HV + hv) * C + i[:, None] * (HV * C) + i[None, :]
    tl.store(Aqk + out, Aq * q_size[:, None] * k_size[None, :], mask=live[:, None])
    b_beta = tl.load(beta + (first + i) * HV + hv, mask=live, other=0.0).to(tl.float32)
    if SIGMOID:
        b_beta = tl.where(live, beta_scale / (1.0 + tl.exp(-b_beta)), 0.0)
    strict = i[:, None] > i[None, :]
    L = tl.where(strict, Ak * (b_beta * k_size)[:, None] * k_size[None, :], 0.0)
    b_T = unit_lower_inverse(L, C, NB, PRECISION) * b_beta[None, :]
    tl.store(T + out, b_T, mask=live[:, None])


def SPECS() -> list[CompileSpec]:
    """Kimi K3's heads: everything fused, and plain inputs."""
    types = dict.fromkeys(("q", "k", "g", "beta", "Qg", "Kg", "Ke", "T", "Aqk"), "*bf16")
    types |= dict.fromkeys(("A_log", "dt_bias", "a"), "*fp32")
    types |= {"table": "*i32", "offsets": "*i64"}
    types |= dict.fromkeys(("scale", "eps", "lower_bound", "beta_scale"), "fp32")
    common: dict[str, Any] = {"H": 96, "HV": 96, "K": 128, "C": 64, "BK": 128, "BC": 32}
    common |= {"PRODUCT": tl.bfloat16, "PRECISION": None, "LOG2_E": LOG2_E}
    flags = ("L2NORM", "HAS_A", "HAS_BIAS", "SIGMOID")
    full = {**common, **dict.fromkeys(flags, True), "KIND": "bounded"}
    plain = {**common, **dict.fromkeys(flags, False), "KIND": "decay"}
    return [
        spec("chunk_prepare", chunk_prepare_kernel, types, full, num_warps=8),
        spec("chunk_prepare_plain", chunk_prepare_kernel, types, plain, num_warps=8),
    ]
