import torch

Summary = tuple[torch.Tensor, torch.Tensor]


def compose(first: Summary, second: Summary) -> Summary:
    """The summary of one piece of text followed by another.

    Args:
        first, second: ``(M [K, K], b [K, V])`` of two neighbouring pieces; each turns a state S
            into ``M S + b``.

    Returns:
        ``(M [K, K], b [K, V])`` of both together, the first one first.
    """
    raise NotImplementedError
