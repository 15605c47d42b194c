"""All of a tile that does not need the state: one program per (tile, value head), all in parallel.

With G the running log2-decay since the tile's start (the names of the Kimi Linear report)::

    T   = (I + tril(beta K K^T . decay, -1))^-1 Diag(beta)
    W   = T (K . 2^G)                      U = T V
    Qg  = scale Q . 2^G                    Kg = K . 2^(G_last - G)
    Aqk = scale tril(Q K^T . decay)        a = 2^G_last

Norm, gate and sigmoid happen on the way in: raw inputs are read once and nothing of them is stored.
"""

import triton
import triton.language as tl

from kdalab_kernels.triton_path.chunk_intra import (
    products_between_blocks,
    products_in_blocks,
    sums_in_blocks,
)
from kdalab_kernels.triton_path.chunk_solve import unit_lower_inverse
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec
from kdalab_kernels.triton_path.gate import LOG2_E, log_decay


@triton.jit
def chunk_prepare_kernel(
    q,  # [tokens, H, K]
    k,  # [tokens, H, K]
    v,  # [tokens, HV, V]
    g,  # [tokens, HV, K]
    beta,  # [tokens, HV]
    A_log,  # [HV]
    dt_bias,  # [HV * K]
    table,  # [n_tiles, 2]: sequence, tile within it
    offsets,  # [N + 1]
    Qg,  # [tokens, HV, BK]; columns from K on become 0
    Kg,  # [tokens, HV, BK]
    W,  # [tokens, HV, BK]
    U,  # [tokens, HV, V]
    Aqk,  # [tokens, HV, C]
    a,  # [n_tiles, HV, BK] float32
    scale,
    eps,  # of the l2 norm
    lower_bound,
    beta_scale,  # 2 with negative eigenvalues
    H: tl.constexpr,
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,  # 16, 32 or 64
    BK: tl.constexpr,  # power of 2, at least K and 16
    BV: tl.constexpr,
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
    c = tl.arange(0, BK)
    live = i < rows
    known = c < K
    m = live[:, None] & known[None, :]
    key_at = (first * H + hv // (HV // H)) * K + i[:, None] * (H * K) + c[None, :]
    b_q = tl.load(q + key_at, mask=m, other=0.0).to(PRODUCT)
    b_k = tl.load(k + key_at, mask=m, other=0.0).to(PRODUCT)
    q_norm = tl.full([C], 1.0, tl.float32) * scale
    k_norm = tl.full([C], 1.0, tl.float32)
    if L2NORM:  # a row's factor: it is applied to products and sums, not to the row's K numbers
        wide_q, wide_k = b_q.to(tl.float32), b_k.to(tl.float32)
        q_norm = q_norm / tl.sqrt(tl.sum(wide_q * wide_q, axis=1) + eps)
        k_norm = k_norm / tl.sqrt(tl.sum(wide_k * wide_k, axis=1) + eps)

    f = tl.load(
        g + (first * HV + hv) * K + i[:, None] * (HV * K) + c[None, :], mask=m, other=0.0
    ).to(tl.float32)
    if HAS_BIAS:
        b_bias = tl.load(dt_bias + hv * K + c, mask=known, other=0.0)
        f += b_bias.to(tl.float32)[None, :]
    rate = 0.0
    if HAS_A:
        rate = tl.load(A_log + hv).to(tl.float32)
    decay = tl.where(m, log_decay(f, rate, lower_bound, KIND) * LOG2_E, 0.0)
    b_beta = tl.load(beta + (first + i) * HV + hv, mask=live, other=0.0).to(tl.float32)
    if SIGMOID:
        b_beta = tl.where(live, beta_scale / (1.0 + tl.exp(-b_beta)), 0.0)

    # Running sums are used up before the products inside blocks: a tile's registers are few.
    g3 = tl.reshape(decay, [NB, 16, BK])
    since, until = sums_in_blocks(g3, NB, BK)
    total = tl.sum(g3, axis=1)
    block = tl.arange(0, NB)
    earlier = (block[None, :] < block[:, None])[:, :, None]
    later = (block[None, :] > block[:, None])[:, :, None]
    before = tl.sum(tl.where(earlier, total[None, :, :], 0.0), axis=1)
    behind = tl.sum(tl.where(later, total[None, :, :], 0.0), axis=1)
    key_out = (first * HV + hv) * BK + i[:, None] * (HV * BK) + c[None, :]
    to_end = tl.reshape(tl.exp2(until + behind[:, None, :]), [C, BK])
    tl.store(Kg + key_out, b_k * (to_end * k_norm[:, None]), mask=live[:, None])
    gamma = tl.reshape(tl.exp2(since + before[:, None, :]), [C, BK])
    tl.store(Qg + key_out, b_q * (gamma * q_norm[:, None]), mask=live[:, None])
    b_kg = (b_k * (gamma * k_norm[:, None])).to(PRODUCT)
    tl.store(a + (tile * HV + hv) * BK + c, tl.exp2(tl.sum(total, axis=0)))

    Aq, Ak = products_between_blocks(b_q, b_k, since, until, total, C, NB, BK, PRODUCT, PRECISION)
    Aq, Ak = products_in_blocks(b_q, b_k, g3, Aq, Ak, C, NB, BK, PRODUCT, PRECISION)
    Aq = Aq * q_norm[:, None] * k_norm[None, :]
    aqk_out = (first * HV + hv) * C + i[:, None] * (HV * C) + i[None, :]
    tl.store(Aqk + aqk_out, Aq, mask=live[:, None])

    strict = i[:, None] > i[None, :]
    L = tl.where(strict, Ak * (b_beta * k_norm)[:, None] * k_norm[None, :], 0.0)
    T = (unit_lower_inverse(L, C, NB, PRECISION) * b_beta[None, :]).to(PRODUCT)
    b_w = tl.dot(T, b_kg, input_precision=PRECISION)
    tl.store(W + key_out, b_w, mask=live[:, None])
    for start in tl.range(0, V, BV):
        x = start + tl.arange(0, BV)
        v_m = live[:, None] & (x < V)[None, :]
        v_at = (first * HV + hv) * V + i[:, None] * (HV * V) + x[None, :]
        b_v = tl.load(v + v_at, mask=v_m, other=0.0).to(PRODUCT)
        tl.store(U + v_at, tl.dot(T, b_v, input_precision=PRECISION), mask=v_m)


def SPECS() -> list[CompileSpec]:
    """Kimi K3's heads: everything fused, and plain inputs."""
    types = dict.fromkeys(("q", "k", "v", "g", "beta", "Qg", "Kg", "W", "U", "Aqk"), "*bf16")
    types |= dict.fromkeys(("A_log", "dt_bias", "a"), "*fp32")
    types |= {"table": "*i32", "offsets": "*i64"}
    types |= dict.fromkeys(("scale", "eps", "lower_bound", "beta_scale"), "fp32")
    common = {"H": 96, "HV": 96, "K": 128, "V": 128, "C": 64, "BK": 128, "BV": 64}
    common |= {"PRODUCT": tl.bfloat16, "PRECISION": None, "LOG2_E": LOG2_E}
    flags = ("L2NORM", "HAS_A", "HAS_BIAS", "SIGMOID")
    full = {**common, **dict.fromkeys(flags, True), "KIND": "bounded"}
    plain = {**common, **dict.fromkeys(flags, False), "KIND": "decay"}
    return [
        spec("chunk_prepare", chunk_prepare_kernel, types, full, num_warps=8),
        spec("chunk_prepare_plain", chunk_prepare_kernel, types, plain, num_warps=8),
    ]
