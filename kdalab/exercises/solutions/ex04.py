import torch

Summary = tuple[torch.Tensor, torch.Tensor]


def compose(first: Summary, second: Summary) -> Summary:
    """M2 (M1 S + b1) + b2."""
    (M1, b1), (M2, b2) = first, second
    return M2 @ M1, M2 @ b1 + b2
