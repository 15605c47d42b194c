import torch


def kda_step(
    S: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of Kimi Delta Attention, one head, in float64.

    Args:
        S: the state before the token, ``[K, V]``. Do not change it.
        q, k: query and key, ``[K]``; q is scaled already.
        v: value, ``[V]``.
        decay: factor of each k-channel, ``[K]``, 0 to 1.
        beta: write strength.

    Returns:
        ``(o [V], S [K, V])``: what the token reads, and the state after it.
    """
    raise NotImplementedError
