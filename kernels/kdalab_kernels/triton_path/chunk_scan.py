"""The sequential part: tiles of a sequence, one after another, and its outputs on the way.

One program per (sequence, value head, block of BV value columns) keeps its part of the state,
``[K, BV]`` float32, in registers from the first tile to the last::

    N = T (V - Kg S)
    O = Qg S + Aqk N
    S = Diag(a) S + Ke^T N

Every tile's S is used where it is: outputs need no second kernel and no stored states. States at
chunk starts are written only when asked for.
"""

from typing import Any

import triton
import triton.language as tl

from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec


@triton.jit
def chunk_scan_kernel(
    Qg,  # [tokens, HV, BK]
    Kg,  # [tokens, HV, BK]
    Ke,  # [tokens, HV, BK]
    v,  # [tokens, HV, V]
    T,  # [tokens, HV, C]
    Aqk,  # [tokens, HV, C]
    a,  # [n_tiles, HV, BK]
    S0,  # [N, HV, K, V], with V_FIRST [N, HV, V, K]
    o,  # [tokens, HV, V]
    S1,  # as S0
    h,  # [n_chunks, HV, K, V] or [.., V, K]
    order,  # [N] sequences, longest first
    offsets,  # [N + 1]
    tiles_before,  # [N + 1]
    chunks_before,  # [N + 1]
    HV: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    V_FIRST: tl.constexpr,
    HAS_S0: tl.constexpr,
    WRITE_S1: tl.constexpr,
    EVERY: tl.constexpr,  # tiles per exported state; 0: none
    PRODUCT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    columns: tl.constexpr = (V + BV - 1) // BV
    x = (tl.program_id(0) % columns) * BV + tl.arange(0, BV)
    head = tl.program_id(0) // columns
    hv = head % HV
    n = tl.load(order + head // HV).to(tl.int64)
    first = tl.load(offsets + n)
    length = (tl.load(offsets + n + 1) - first).to(tl.int32)
    tile = tl.load(tiles_before + n)
    chunk = tl.load(chunks_before + n)

    i = tl.arange(0, C)
    c = tl.arange(0, BK)
    in_v = x < V
    s_m = (c < K)[:, None] & in_v[None, :]
    if V_FIRST:
        s_at = x[None, :] * K + c[:, None]
    else:
        s_at = c[:, None] * V + x[None, :]
    S = tl.zeros([BK, BV], tl.float32)
    if HAS_S0:
        S = tl.load(S0 + (n * HV + hv) * (K * V) + s_at, mask=s_m, other=0.0).to(tl.float32)

    row_at = (first * HV + hv) * BK + i[:, None] * (HV * BK) + c[None, :]
    column_at = (first * HV + hv) * BK + c[:, None] + i[None, :] * (HV * BK)
    v_at = (first * HV + hv) * V + i[:, None] * (HV * V) + x[None, :]
    A_at = (first * HV + hv) * C + i[:, None] * (HV * C) + i[None, :]
    a_at = (tile * HV + hv) * BK + c
    for t in tl.range(0, tl.cdiv(length, C)):
        live = i < length - t * C
        if EVERY > 0:  # a compile-time question, apart from the one of the tile  # noqa: SIM102
            if t % EVERY == 0:
                h_p = h + ((chunk + t // EVERY) * HV + hv) * (K * V) + s_at
                tl.store(h_p, S, mask=s_m)
        v_m = live[:, None] & in_v[None, :]
        s = S.to(PRODUCT)
        b_k = tl.load(Kg + row_at, mask=live[:, None], other=0.0).to(PRODUCT)
        b_v = tl.load(v + v_at, mask=v_m, other=0.0).to(tl.float32)
        b_T = tl.load(T + A_at, mask=live[:, None], other=0.0).to(PRODUCT)
        error = (b_v - tl.dot(b_k, s, input_precision=PRECISION)).to(PRODUCT)
        N = tl.dot(b_T, error, input_precision=PRECISION).to(PRODUCT)
        b_q = tl.load(Qg + row_at, mask=live[:, None], other=0.0).to(PRODUCT)
        b_A = tl.load(Aqk + A_at, mask=live[:, None], other=0.0).to(PRODUCT)
        O = tl.dot(b_q, s, input_precision=PRECISION)
        O = tl.dot(b_A, N, O, input_precision=PRECISION)
        tl.store(o + v_at, O, mask=v_m)
        b_e = tl.load(Ke + column_at, mask=live[None, :], other=0.0).to(PRODUCT)
        b_a = tl.load(a + a_at).to(tl.float32)
        S = tl.dot(b_e, N, S * b_a[:, None], input_precision=PRECISION)
        row_at += C * HV * BK
        column_at += C * HV * BK
        v_at += C * HV * V
        A_at += C * HV * C
        a_at += HV * BK
    if WRITE_S1:
        tl.store(S1 + (n * HV + hv) * (K * V) + s_at, S, mask=s_m)


def SPECS() -> list[CompileSpec]:
    """A serving prefill (V-first states), and one that exports K-first states at chunk starts."""
    types = dict.fromkeys(("Qg", "Kg", "Ke", "v", "T", "Aqk", "o"), "*bf16")
    types |= dict.fromkeys(("a", "S0", "S1", "h"), "*fp32")
    types |= {"order": "*i32"}
    types |= dict.fromkeys(("offsets", "tiles_before", "chunks_before"), "*i64")
    common: dict[str, Any] = {"HV": 96, "K": 128, "V": 128, "C": 64, "BK": 128, "BV": 64}
    common |= {"HAS_S0": True, "WRITE_S1": True, "PRODUCT": tl.bfloat16, "PRECISION": None}
    serving = {**common, "V_FIRST": True, "EVERY": 0}
    exporting = {**common, "V_FIRST": False, "EVERY": 1}
    return [
        spec("chunk_scan", chunk_scan_kernel, types, serving, hip={"num_stages": 1}),
        spec("chunk_scan_exporting", chunk_scan_kernel, types, exporting, hip={"num_stages": 1}),
    ]
