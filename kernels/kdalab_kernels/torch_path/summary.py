"""Affine summaries through the chunk scan itself."""

import torch

from kdalab_kernels.call import KdaCall
from kdalab_kernels.torch_path.chunk import chunk_kda


def chunk_summary(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.chunk_summary`, for checked arguments.

    One scan gives both parts: the state is widened by K columns that start as the identity and
    are written with v = 0. They come out as M; the V columns that start at 0 come out as b.
    """
    B, _, _, K = k.shape
    HV, V = v.shape[2:]
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    start = torch.zeros(B, HV, K, V + K, dtype=dtype, device=k.device)
    start[..., V:].diagonal(dim1=-2, dim2=-1).fill_(1.0)
    result = chunk_kda(
        KdaCall(
            q=k,
            k=k,
            v=torch.nn.functional.pad(v, (0, K)),
            g=g,
            beta=beta,
            scale=1.0,
            initial_state=start,
            output_final_state=True,
            use_qk_l2norm_in_kernel=False,
            use_gate_in_kernel=False,
            use_beta_sigmoid_in_kernel=False,
            allow_neg_eigval=False,
            lower_bound=None,
            A_log=None,
            dt_bias=None,
            state_v_first=False,
            cu_seqlens=None,
        )
    )
    assert result.final_state is not None
    b, M = result.final_state.split((V, K), dim=-1)
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
