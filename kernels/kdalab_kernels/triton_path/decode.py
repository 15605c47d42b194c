"""Decode, verify and commit against pools of states by slot."""

import torch

from kdalab_kernels.call import KdaCall
from kdalab_kernels.triton_path.recurrent import run_recurrent
from kdalab_kernels.triton_path.rows import copy_rows, row_strides


def fused_recurrent_kda_inplace(
    call: KdaCall, states: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """As :func:`kdalab_kernels.fused_recurrent_kda_inplace`, for checked arguments."""
    row_strides("states", states, 1)
    return run_recurrent(call, states, states, None, slots)


def fused_recurrent_kda_verify(
    call: KdaCall, states: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`kdalab_kernels.fused_recurrent_kda_verify`, for checked arguments."""
    row_strides("states", states, 1)
    N, T = call.q.shape[:2]
    kept = torch.empty((N, T, *states.shape[1:]), dtype=states.dtype, device=states.device)
    return run_recurrent(call, states, None, kept, slots), kept


def commit_verified_inplace(
    states: torch.Tensor,
    conv_states: torch.Tensor,
    slots: torch.Tensor,
    intermediate: torch.Tensor,
    conv_windows: torch.Tensor,
    accepted: torch.Tensor,
) -> None:
    """As :func:`kdalab_kernels.commit_verified_inplace`, for checked arguments: one launch."""
    N, T = intermediate.shape[:2]
    if N * T == 0:
        return
    taken = (accepted > 0) & (accepted <= T) & (slots >= 0)
    row = torch.arange(0, N * T, T, device=slots.device) + accepted - 1
    source = torch.where(taken, row, -1)
    if states.ndim == 4:
        states, conv_states = states[:, None], conv_states[:, None]
        intermediate, conv_windows = intermediate[:, :, None], conv_windows[:, :, None]
    copy_rows(
        (intermediate.contiguous().flatten(0, 1), states),
        (conv_windows.contiguous().flatten(0, 1), conv_states),
        source,
        slots,
        ("intermediate", "states"),
    )
