"""What the network accepts: ids of its vocabulary, and states of its shapes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kdalab.errors import KdalabError


def as_ids(tokens: Sequence[int] | torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[n] ids of a list or a tensor.

    Raises:
        KdalabError: as ``check_ids``, or entries that are not whole numbers.
    """
    if not isinstance(tokens, torch.Tensor):
        if not all(isinstance(t, int) for t in tokens):
            raise KdalabError("tokens must be whole numbers: the ids of a tokenizer")
        tokens = torch.tensor(tokens, dtype=torch.long)
    check_ids(tokens, vocab_size)
    return tokens


def check_ids(tokens: torch.Tensor, vocab_size: int) -> int:
    """The number of tokens, at least 1.

    Raises:
        KdalabError: no tokens, another shape or dtype, or an id outside 0..vocab_size-1.
    """
    if tokens.ndim != 1 or len(tokens) == 0 or tokens.dtype not in (torch.int32, torch.int64):
        raise KdalabError(
            "tokens must be at least one id in one int32 or int64 axis; given "
            f"{tokens.dtype} of shape {list(tokens.shape)}"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise KdalabError(
            f"token id {low if low < 0 else high} is outside the vocabulary 0..{vocab_size - 1}"
        )
    return len(tokens)


def check_state(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A state of exactly this shape and dtype: nothing is broadcast, and nothing rounded unseen.

    Raises:
        KdalabError: naming the state, what it is and what was expected.
    """
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise KdalabError(
            f"{name} is {tensor.dtype} of shape {list(tensor.shape)}; "
            f"expected {dtype} of shape {list(shape)}"
        )
