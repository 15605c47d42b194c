"""L2 norm over the head dimension: a program normalises a few rows."""

import torch
import triton
import triton.language as tl

from kdalab_kernels import checks
from kdalab_kernels.triton_path import launch
from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec

NUMBERS = 4096  # of a program


@triton.jit
def l2norm_kernel(x, out, rows, eps, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, BD)
    m = (row < rows)[:, None] & (column < D)[None, :]
    at = row[:, None] * D + column[None, :]
    wide = tl.load(x + at, mask=m, other=0.0).to(tl.float32)
    size = tl.sqrt(tl.sum(wide * wide, axis=1) + eps)
    tl.store(out + at, wide / size[:, None], mask=m)


def l2norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """As :func:`kdalab_kernels.l2norm`: eps inside the root, float32 arithmetic."""
    launch.refuse_float64("l2norm", x)
    checks.no_gradient("l2norm", x)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        D = x.shape[-1]
        BD = launch.next_power_of_2(D)
        BR = max(1, NUMBERS // BD)
        rows = x.numel() // D
        grid = (triton.cdiv(rows, BR),)
        l2norm_kernel[grid](x, out, rows, float(eps), D=D, BR=BR, BD=BD, num_warps=4)
    return out


def SPECS() -> list[CompileSpec]:
    types = {"x": "*bf16", "out": "*bf16", "rows": "i64", "eps": "fp32"}
    return [spec("l2norm", l2norm_kernel, types, {"D": 128, "BR": 32, "BD": 128})]
