"""A span of tokens as one affine map on the state: ``S' = M S + b``."""

import torch

from kdalab_kernels.reference.recurrent import accumulation_dtype


def chunk_summary(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The product of the per-token maps ``M_t = (I - beta k k^T) Diag(exp g)``, token by token.

    Returns:
        M ``[B, HV, K, K]`` and b ``[B, HV, K, V]``.
    """
    B, T, H, K = k.shape
    HV, V = v.shape[2:]
    dtype = accumulation_dtype(k, v, g, beta)
    Kt = k.to(dtype).repeat_interleave(HV // H, dim=2)
    Vt, a, bt = v.to(dtype), g.to(dtype).exp(), beta.to(dtype)
    unit = torch.eye(K, dtype=dtype, device=k.device)
    M = unit.expand(B, HV, K, K)
    b = Vt.new_zeros(B, HV, K, V)
    for t in range(T):
        k_t, write = Kt[:, t, :, :, None], bt[:, t, :, None, None] * Kt[:, t, :, :, None]
        M_t = (unit - write * k_t.transpose(-1, -2)) * a[:, t, :, None, :]
        M, b = M_t @ M, M_t @ b + write * Vt[:, t, :, None, :]
    return M.contiguous(), b


def compose(
    M1: torch.Tensor, b1: torch.Tensor, M2: torch.Tensor, b2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """First (M1, b1), then (M2, b2)."""
    return M2 @ M1, M2 @ b1 + b2


def apply(M: torch.Tensor, b: torch.Tensor, S: torch.Tensor) -> torch.Tensor:
    """``M S + b``."""
    return M @ S + b
