import torch


def quantise(state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A recurrent state in INT8, with one scale for each head and k-channel.

    Args:
        state: ``[H, V, K]`` float32.

    Returns:
        ``(q [H, V, K] int8, scale [H, 1, K] float32, bound [H, 1, K] float32)``: ``q * scale`` is
        the state again, and no number of it is off by more than ``bound``.
    """
    raise NotImplementedError
