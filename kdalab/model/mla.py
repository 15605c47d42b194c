"""Multi-head latent attention without rotation (NoPE), over the latent cache itself.

One token leaves ``latent | rope part`` behind: the normed compressed vector from which keys and
values of all heads are rebuilt, and the key part that all heads share. Scores are computed in the
latent space (the absorbed form: the key projection is folded into the query, the value projection
into the output), so that nothing per-head is ever cached.

Kimi K3 gates what attention gives, channel by channel and before the output projection, by the
layer's own input (``mla_use_output_gate``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import linear

from kdalab.model.config import KimiLinearConfig
from kdalab.model.norm import rms_norm
from kdalab_kernels import sigmoid


class MLALayer:
    """Weights of one layer under Hugging Face's names (without the ``self_attn.`` prefix)."""

    def __init__(self, config: KimiLinearConfig, w: Mapping[str, torch.Tensor]) -> None:
        self.heads, self.rank = config.num_attention_heads, config.kv_lora_rank
        self.nope, self.rope = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.v_dim, self.eps = config.v_head_dim, config.latent_eps
        self.scale = (self.nope + self.rope) ** -0.5
        self.w_q = w["q_proj.weight"] if config.q_lora_rank is None else None
        if self.w_q is None:
            self.w_q_a, self.w_q_norm = w["q_a_proj.weight"], w["q_a_layernorm.weight"]
            self.w_q_b = w["q_b_proj.weight"]
        self.w_kv_a = w["kv_a_proj_with_mqa.weight"]
        self.w_kv_norm = w["kv_a_layernorm.weight"]
        per_head = w["kv_b_proj.weight"].view(self.heads, self.nope + self.v_dim, self.rank)
        # Kept with the summed axis last: in the other layout a batched product whose width is
        # not a multiple of 4 gives a row other last bits at another place.
        w_k = per_head[:, : self.nope].transpose(1, 2).contiguous()
        self.w_k = w_k.transpose(1, 2)  # [head, nope, latent]
        self.w_v = per_head[:, self.nope :].contiguous().transpose(1, 2)  # [head, latent, v]
        self.w_g = w["g_proj.weight"] if config.mla_use_output_gate else None
        self.w_o = w["o_proj.weight"]

    def prefill(
        self, x: torch.Tensor, n: int, context: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One padded cell of one sequence.

        Args:
            x: [cell, hidden], of which the first ``n`` rows are tokens.
            context: [start, latent|rope] of all tokens before the cell.

        Returns:
            y [cell, hidden] and the tokens' own latents [n, latent|rope]. The number of keys is
            ``start + cell`` however many tokens there are; padded ones are 0 and masked.
        """
        cell, start = x.shape[0], context.shape[0]
        latent = self._latent(x)
        latent[n:] = 0
        keys = torch.cat([context, latent])
        query = self._query(x)  # [head, cell, latent|rope]
        scores = torch.matmul(query, keys.T) * self.scale
        later = torch.ones(cell, cell, dtype=torch.bool).triu(1)
        scores[..., start:].masked_fill_(later, float("-inf"))
        mixed = torch.matmul(torch.softmax(scores, -1), keys[:, : self.rank])
        return self._output(mixed, x), latent[:n]

    def decode(
        self, x: torch.Tensor, contexts: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One token of each row.

        Args:
            x: [row, hidden]; rows beyond ``len(contexts)`` are padding.
            contexts: [n_b, latent|rope] of each live row's past.

        Returns:
            y [row, hidden] and the tokens' latents [row, latent|rope].
        """
        latent = self._latent(x)
        query = self._query(x)
        mixed = query.new_zeros(self.heads, x.shape[0], self.rank)
        for row, context in enumerate(contexts):
            keys = torch.cat([context, latent[row : row + 1]])
            own = query[:, row].contiguous()  # at an aligned address whatever the row: same bits
            weights = torch.softmax(torch.matmul(own, keys.T) * self.scale, -1)
            mixed[:, row] = torch.matmul(weights, keys[:, : self.rank])
        return self._output(mixed, x), latent

    def _latent(self, x: torch.Tensor) -> torch.Tensor:
        compressed, shared_key = linear(x, self.w_kv_a).split([self.rank, self.rope], -1)
        return torch.cat([rms_norm(compressed, self.w_kv_norm, self.eps), shared_key], -1)

    def _query(self, x: torch.Tensor) -> torch.Tensor:
        if self.w_q is not None:
            q = linear(x, self.w_q)
        else:
            q = linear(rms_norm(linear(x, self.w_q_a), self.w_q_norm, self.eps), self.w_q_b)
        q = q.view(x.shape[0], self.heads, self.nope + self.rope).transpose(0, 1)
        nope, rope = q.split([self.nope, self.rope], -1)
        return torch.cat([torch.matmul(nope, self.w_k), rope], -1)

    def _output(self, mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """[head, row, latent], and the layer's input [row, hidden] -> [row, hidden]."""
        values = torch.matmul(mixed, self.w_v).transpose(0, 1)
        values = values.reshape(values.shape[0], -1)
        if self.w_g is not None:
            values = values * sigmoid(linear(x, self.w_g))
        return linear(values, self.w_o)
