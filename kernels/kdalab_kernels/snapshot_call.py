"""What one snapshot asks for, after the checks: where each state and each window comes from."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SnapshotCall:
    """M boundaries. Index tensors are int64 of shape ``[M]``, on the pools' device."""

    states_pool: torch.Tensor
    """``[slots, HV, V, K]``, written."""
    conv_pool: torch.Tensor
    """``[slots, W - 1, D]``, written."""
    h: torch.Tensor
    """``[chunks, HV, V, K]``: states at the starts of all chunks."""
    final_state: torch.Tensor
    """``[N, HV, V, K]``."""
    x: torch.Tensor
    """``[tokens, D]``: raw inputs of the convolution, all sequences in one row."""
    conv_initial: torch.Tensor
    """``[N, W - 1, D]``: the inputs before each sequence's first token."""
    slots: torch.Tensor
    """Target, or -1."""
    sequence: torch.Tensor
    """Which of the N sequences."""
    chunk: torch.Tensor
    """Row of h; -1 where the boundary is the sequence's end: its final state."""
    first: torch.Tensor
    """First token of the sequence in x."""
    boundary: torch.Tensor
    """Tokens of the sequence before the boundary."""
