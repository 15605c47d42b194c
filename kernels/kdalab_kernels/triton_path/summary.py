"""Affine summaries ``S' = M S + b``: made by the chunk scan, joined and applied by one product.

Everything is float32 with exact ("ieee") products: M is a long chain of products, and the digits
that bfloat16 or tf32 operands lose would add up along it.
"""

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.call import summary_call
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.chunk import chunk_kda
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec

BLOCK = 64  # rows and columns of a program's part of the result
STEP = 32  # of the sum


@triton.jit
def affine_kernel(
    M,  # [heads, K, K]
    X,  # [heads, K, V]
    Y,  # [heads, K, V]
    out,  # [heads, K, V] float32
    K: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    ADD: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    r = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    m = (r < K)[:, None] & (x < V)[None, :]
    at = head * (K * V) + r[:, None] * V + x[None, :]
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    if ADD:
        acc = tl.load(Y + at, mask=m, other=0.0).to(tl.float32)
    for start in tl.range(0, K, STEP):
        c = start + tl.arange(0, STEP)
        left_m = (r < K)[:, None] & (c < K)[None, :]
        right_m = (c < K)[:, None] & (x < V)[None, :]
        left = tl.load(M + head * (K * K) + r[:, None] * K + c[None, :], mask=left_m, other=0.0)
        right = tl.load(X + head * (K * V) + c[:, None] * V + x[None, :], mask=right_m, other=0.0)
        acc = tl.dot(left.to(tl.float32), right.to(tl.float32), acc, input_precision="ieee")
    tl.store(out + at, acc, mask=m)


def _affine(M: torch.Tensor, X: torch.Tensor, Y: torch.Tensor | None) -> torch.Tensor:
    """``M X + Y`` of every head, float32; M ``[.., K, K]``, X and Y ``[.., K, V]``."""
    K, V = X.shape[-2:]
    M, X = M.contiguous(), X.contiguous()
    out = torch.empty_like(X, dtype=torch.float32)
    grid = (out.numel() // max(1, K * V), triton.cdiv(K, BLOCK), triton.cdiv(V, BLOCK))
    if out.numel():
        affine_kernel[grid](
            M,
            X,
            X if Y is None else Y.contiguous(),
            out,
            K=K,
            V=V,
            BLOCK=BLOCK,
            STEP=STEP,
            ADD=Y is not None,
            num_warps=4,
        )
    return out


def chunk_summary(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.chunk_summary`, for checked arguments."""
    launch.refuse_float64("chunk_summary", k, v, g, beta)
    result = chunk_kda(summary_call(k, v, g, beta))
    assert result.final_state is not None
    b, M = result.final_state.split((v.shape[-1], k.shape[-1]), dim=-1)
    return M.contiguous(), b.contiguous()


def compose(
    M1: torch.Tensor, b1: torch.Tensor, M2: torch.Tensor, b2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """First (M1, b1), then (M2, b2)."""
    launch.refuse_float64("compose", M1, b1, M2, b2)
    checks.no_gradient("compose", M1, b1, M2, b2)
    return _affine(M2, M1, None), _affine(M2, b1, b2)


def apply(M: torch.Tensor, b: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
    """``M S + b``."""
    launch.refuse_float64("apply", M, b, S)
    checks.no_gradient("apply", M, b, S)
    return _affine(M, S, b)


def SPECS() -> list[CompileSpec]:
    types = dict.fromkeys(("M", "X", "Y", "out"), "*fp32")
    sizes = {"K": 128, "V": 128, "BLOCK": BLOCK, "STEP": STEP, "ADD": True}
    return [spec("affine", affine_kernel, types, sizes)]
