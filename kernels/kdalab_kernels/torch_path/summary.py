"""Affine summaries through the chunk scan itself."""

import torch

from kdalab_kernels.call import summary_call
from kdalab_kernels.torch_path.chunk import chunk_kda


def chunk_summary(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.chunk_summary`, for checked arguments.

    One scan gives both parts: see :func:`kdalab_kernels.call.summary_call`.
    """
    result = chunk_kda(summary_call(k, v, g, beta))
    assert result.final_state is not None
    b, M = result.final_state.split((v.shape[-1], k.shape[-1]), dim=-1)
    return M.contiguous(), b.contiguous()


def compose(
    M1: torch.Tensor, b1: torch.Tensor, M2: torch.Tensor, b2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """First (M1, b1), then (M2, b2)."""
    both = M2 @ torch.cat([M1, b1], dim=-1)
    M, b = both.split((M1.shape[-1], b1.shape[-1]), dim=-1)
    return M.contiguous(), b + b2


def apply(M: torch.Tensor, b: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
    """``M S + b``."""
    return M @ S + b
