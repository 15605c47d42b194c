"""The host side of chunk KDA: two kernels, what is parallel over tiles and what is sequential.

:mod:`.chunk_prepare` reads q, k and g once and leaves Qg, Kg, Ke, T and Aqk; :mod:`.chunk_scan`
carries the state through them and writes the outputs.
"""

from dataclasses import dataclass

import torch
import triton

from kdalab_kernels import checks
from kdalab_kernels.call import L2NORM_EPS, KdaCall, KdaResult
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.chunk_prepare import chunk_prepare_kernel
from kdalab_kernels.triton_path.chunk_scan import chunk_scan_kernel
from kdalab_kernels.triton_path.gate import LOG2_E, gate_kind

SCAN_BYTES = 163840  # shared memory of two stages of the scan at K = V = 128, BV = 64, bfloat16


@dataclass(frozen=True, slots=True)
class Prepared:
    """What :func:`prepare` leaves; axes in :mod:`.chunk_prepare`."""

    Qg: torch.Tensor
    Kg: torch.Tensor
    Ke: torch.Tensor
    T: torch.Tensor
    Aqk: torch.Tensor
    a: torch.Tensor
    tiles: launch.Tiles
    C: int
    BK: int


def tile_size(chunk_size: int, K: int, dtype: torch.dtype) -> int:
    """Tokens of a tile: the chunk, or less where a tile of it would not fit the registers."""
    return min(chunk_size, 64 if K <= 128 and dtype != torch.float32 else 32)


def prepare(call: KdaCall) -> Prepared:
    """Everything that does not need the state, for all tiles at once."""
    q, k, g, beta = (x.contiguous() for x in (call.q, call.k, call.g, call.beta))
    B, T, H, K = q.shape
    HV, C = call.HV, tile_size(call.chunk_size, K, q.dtype)
    BK = launch.next_power_of_2(K, 16)
    tiles = launch.tiles(B, T, call.cu_seqlens, C, q.device)
    n_tiles, dtype = len(tiles.table), launch.storage_dtype(q.dtype)

    def rows(width: int) -> torch.Tensor:
        return torch.empty((B * T, HV, width), dtype=dtype, device=q.device)

    p = Prepared(
        Qg=rows(BK),
        Kg=rows(BK),
        Ke=rows(BK),
        T=rows(C),
        Aqk=rows(C),
        a=torch.empty((n_tiles, HV, BK), dtype=torch.float32, device=q.device),
        tiles=tiles,
        C=C,
        BK=BK,
    )
    A_log, dt_bias = call.A_log, call.dt_bias
    if n_tiles:
        chunk_prepare_kernel[(n_tiles * HV,)](
            q,
            k,
            g,
            beta,
            g if A_log is None else A_log.contiguous(),
            g if dt_bias is None else dt_bias.contiguous(),
            tiles.table,
            tiles.offsets,
            p.Qg,
            p.Kg,
            p.Ke,
            p.T,
            p.Aqk,
            p.a,
            float(call.scale),
            L2NORM_EPS,
            0.0 if call.lower_bound is None else float(call.lower_bound),
            2.0 if call.allow_neg_eigval else 1.0,
            H=H,
            HV=HV,
            K=K,
            C=C,
            BK=BK,
            BC=min(32, BK),
            L2NORM=call.use_qk_l2norm_in_kernel,
            KIND=gate_kind(A_log, call.lower_bound) if call.use_gate_in_kernel else "decay",
            HAS_A=A_log is not None,
            HAS_BIAS=dt_bias is not None,
            SIGMOID=call.use_beta_sigmoid_in_kernel,
            PRODUCT=launch.product_kind(q.dtype),
            PRECISION=launch.product_precision(q.dtype),
            LOG2_E=LOG2_E,
            num_warps=8 if C == 64 else 4,
            num_stages=2,
        )
    return p


def value_block(programs: int, V: int, BK: int, device: torch.device) -> int:
    """Value columns of a scan program: few columns make more programs, many waste less reading."""
    widest = min(64 if BK <= 128 else 32, launch.next_power_of_2(V, 16))
    if device.type == "cpu":
        return widest
    cores = torch.cuda.get_device_properties(device).multi_processor_count
    while widest > 16 and programs * triton.cdiv(V, widest) < cores:
        widest //= 2
    return widest


def scan_stages(device: torch.device) -> int:
    """2 (load the next tile while computing) where two tiles fit the fast memory of a core."""
    if device.type == "cpu" or launch.HIP:
        return 1
    properties = torch.cuda.get_device_properties(device)
    # Not every version of torch says what a kernel can get by asking; 48 KiB are always there.
    most = getattr(properties, "shared_memory_per_block_optin", 48 << 10)
    return 2 if most >= SCAN_BYTES else 1


def chunk_kda(call: KdaCall) -> KdaResult:
    """The ``triton`` backend of :func:`kdalab_kernels.chunk_kda`, forward only."""
    inputs = (call.q, call.k, call.v, call.g, call.beta, call.initial_state)
    launch.refuse_float64("chunk_kda", *inputs)
    checks.no_gradient("chunk_kda", *inputs, call.A_log, call.dt_bias)
    p = prepare(call)
    B, T, HV, V = call.v.shape
    K, N, device = call.K, call.N, call.q.device
    shape = (V, K) if call.state_v_first else (K, V)
    o = torch.empty((B, T, HV, V), dtype=call.v.dtype, device=device)
    S0 = call.initial_state
    S1 = h = None
    chunks = p.tiles
    if call.output_final_state:
        S1 = torch.empty((N, HV, *shape), dtype=torch.float32, device=device)
    if call.return_intermediate_states:
        chunks = launch.tiles(B, T, call.cu_seqlens, call.chunk_size, device)
        rows = 1 if call.cu_seqlens is not None else B
        per_row = len(chunks.table) // max(rows, 1)
        h = torch.empty((rows, per_row, HV, *shape), dtype=torch.float32, device=device)
    BV = value_block(N * HV, V, p.BK, device)
    if N:
        chunk_scan_kernel[(triton.cdiv(V, BV) * HV * N,)](
            p.Qg,
            p.Kg,
            p.Ke,
            call.v.contiguous(),
            p.T,
            p.Aqk,
            p.a,
            p.a if S0 is None else S0.contiguous(),
            o,
            p.a if S1 is None else S1,
            p.a if h is None else h,
            p.tiles.longest_first,
            p.tiles.offsets,
            p.tiles.before,
            chunks.before,
            HV=HV,
            K=K,
            V=V,
            C=p.C,
            BK=p.BK,
            BV=BV,
            V_FIRST=call.state_v_first,
            HAS_S0=S0 is not None,
            WRITE_S1=S1 is not None,
            EVERY=0 if h is None else call.chunk_size // p.C,
            PRODUCT=launch.product_kind(call.q.dtype),
            PRECISION=launch.product_precision(call.q.dtype),
            num_warps=4,
            num_stages=scan_stages(device),
        )
    return KdaResult(o, S1, h)
