import torch


def kda_step(
    S: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decay, write the difference, read."""
    S = decay[:, None] * S
    delta = beta * (v - k @ S)
    S = S + torch.outer(k, delta)
    return q @ S, S
