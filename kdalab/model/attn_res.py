"""Residual streams: the plain sum, and Kimi K3's Block Attention Residuals.

In a plain network every sub-layer reads, and adds to, one running sum. With attention residuals
it reads a weighted mean of several sums instead, over the depth of the network: the finished
*blocks* of layers, the embedding first among them, and the part of the block under way. Each
token's weights are its own and no token sees another's, so nothing of this is ever cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Stream(Protocol):
    """What passes from sub-layer to sub-layer in one run; layers are counted from 0."""

    def attention_input(self, layer: int) -> torch.Tensor:
        """[row, hidden] that the layer's attention reads, before its norm."""

    def mlp_input(self, layer: int) -> torch.Tensor:
        """[row, hidden] that the layer's MLP or experts read, before their norm."""

    def add(self, y: torch.Tensor) -> None:
        """Take in what a sub-layer gave, [row, hidden]."""

    def output(self) -> torch.Tensor:
        """[row, hidden] for the final norm."""


class PlainStream:
    """``x + f(x)``: one running sum."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def attention_input(self, layer: int) -> torch.Tensor:
        """The sum so far."""
        return self.x

    def mlp_input(self, layer: int) -> torch.Tensor:
        """The sum so far."""
        return self.x

    def add(self, y: torch.Tensor) -> None:
        """Add to the sum."""
        self.x = self.x + y

    def output(self) -> torch.Tensor:
        """The sum of all."""
        return self.x


class AttnRes(NamedTuple):
    """The 2 L + 1 sites of a network, of L layers.

    Each site's ``query`` [hidden] is its norm's weight times its projection: scores need nothing
    but this product. ``attention`` and ``mlp`` have one query a layer (that of layer 0's attention
    is in every checkpoint and never used), ``output`` is the last site.
    """

    block_size: int
    attention: Sequence[torch.Tensor]
    mlp: Sequence[torch.Tensor]
    output: torch.Tensor
    eps: float


class BlockStream:
    """One run through a network with block attention residuals (Kimi K3 report, equation 10).

    ``bank`` holds the finished blocks, ``part`` the sum of what the sub-layers of the present
    block gave. A block ends where the layer's number is a multiple of the block size: after that
    layer's attention site has read it, still as ``part``, it enters the bank and a new, empty sum
    begins. So the embedding is the first block, and in no later sum.
    """

    def __init__(self, sites: AttnRes, x: torch.Tensor) -> None:
        self.sites = sites
        self.bank: list[torch.Tensor] = []
        self.part: torch.Tensor | None = x

    def attention_input(self, layer: int) -> torch.Tensor:
        """Mix the finished blocks and the present part; at a block's end, begin a new one."""
        mixed = self._mix(self.sites.attention[layer])
        if layer % self.sites.block_size == 0:
            assert self.part is not None
            self.bank.append(self.part)
            self.part = None
        return mixed

    def mlp_input(self, layer: int) -> torch.Tensor:
        """Mix the finished blocks and the present part."""
        return self._mix(self.sites.mlp[layer])

    def add(self, y: torch.Tensor) -> None:
        """Add to the present part."""
        self.part = y if self.part is None else self.part + y

    def output(self) -> torch.Tensor:
        """Mix once more, after the last layer."""
        return self._mix(self.sites.output)

    def _mix(self, query: torch.Tensor) -> torch.Tensor:
        assert self.part is not None
        # Only layer 0's attention finds an empty bank.
        return mix([*self.bank, self.part], query, self.sites.eps) if self.bank else self.part


def mix(sources: Sequence[torch.Tensor], query: torch.Tensor, eps: float) -> torch.Tensor:
    """Attention over sources: RMS-normalised keys, values as they are, one query for all rows.

    ``k_j = v_j / sqrt(mean(v_j^2) + eps)``, ``a = softmax_j(<k_j, query>)``, ``sum_j a_j v_j``
    (Attention Residuals, arXiv 2603.15031), with no scale and no bias.

    Args:
        sources: n tensors ``v_j`` [row, hidden], oldest first.
        query: [hidden].

    Returns:
        [row, hidden] in the sources' dtype, computed in fp32 (or fp64). A row's bits depend on
        that row alone: the softmax is spelt out, because a library's sum over sources may take
        other code for the last rows of a tensor.
    """
    wide = torch.promote_types(sources[0].dtype, torch.float32)
    values = torch.stack([v.to(wide) for v in sources])
    norm = torch.rsqrt((values * values).mean(-1, keepdim=True) + eps)
    scores = (values * query.to(wide)).sum(-1, keepdim=True) * norm
    top = scores[0]
    for score in scores[1:]:
        top = torch.maximum(top, score)
    weights = torch.exp(scores - top)
    total, mixed = weights[0], weights[0] * values[0]
    for weight, value in zip(weights[1:], values[1:], strict=True):
        total, mixed = total + weight, mixed + weight * value
    return (mixed / total).to(sources[0].dtype)
