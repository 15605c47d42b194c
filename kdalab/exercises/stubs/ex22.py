import torch


def reslice(conv: torch.Tensor, rank: int, size: int, dims: tuple[int, int, int]) -> torch.Tensor:
    """The conv state of one tensor-parallel rank, cut from that of the whole model.

    Args:
        conv: ``[W - 1, D]``; a row is ``q | k | v``.
        rank: 0 to size - 1.
        size: ranks; divides the channels of q, of k and of v.
        dims: channels of q, of k and of v; they add up to D.

    Returns:
        ``[W - 1, D / size]``: the rank's share of q, of k and of v, in this order.
    """
    raise NotImplementedError
