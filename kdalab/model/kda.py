"""A KDA layer: short convolution, forget gate, delta-rule recurrence, gated output norm.

The layer keeps nothing. What a sequence needs from its past comes in and goes out: the recurrent
state [value head, V, K] in fp32, and the conv state [W-1, q|k|v], the last raw inputs of the
convolution. Neither makes sense without the other.

Kimi K3 bounds the forget gate from below (``gate_lower_bound``) and computes the output gate by one
full product instead of two narrow ones (``use_full_rank_gate``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import linear

from kdalab.model.config import KimiLinearConfig
from kdalab.model.norm import gated_rms_norm
from kdalab_kernels import (
    causal_conv1d,
    causal_conv1d_update,
    chunk_kda,
    fused_kda_gate,
    fused_recurrent_kda,
    sigmoid,
)


class KDALayer:
    """Weights of one layer under Hugging Face's names (without the ``self_attn.`` prefix)."""

    backend = "auto"
    """Of the recurrence; see ``HybridModel.use_backend``."""

    def __init__(self, config: KimiLinearConfig, w: Mapping[str, torch.Tensor]) -> None:
        self.heads, self.dim = config.linear_num_heads, config.linear_head_dim
        self.width = config.kda_width
        self.eps = config.rms_norm_eps
        self.lower_bound = config.gate_lower_bound
        # One product for everything that reads x: q | k | v | forget | output gate | beta.
        full_rank = config.use_full_rank_gate
        gate = "g_proj" if full_rank else "g_a_proj"
        names = ("q_proj", "k_proj", "v_proj", "f_a_proj", gate, "b_proj")
        self.w_in = torch.cat([w[f"{name}.weight"] for name in names])
        gate_width = self.width if full_rank else self.dim
        self.splits = [3 * self.width, self.dim, gate_width, self.heads]
        self.w_conv = torch.cat([w[f"{x}_conv1d.weight"].squeeze(1) for x in "qkv"])
        self.w_f, self.w_o = w["f_b_proj.weight"], w["o_proj.weight"]
        self.w_g = None if full_rank else w["g_b_proj.weight"]
        self.a_log = w["A_log"].flatten()
        self.dt_bias = w["dt_bias"]
        self.w_norm = w["o_norm.weight"]

    def prefill(
        self, x: torch.Tensor, n: int, recurrent: torch.Tensor, conv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One padded cell of one sequence.

        Args:
            x: [cell, hidden], of which the first ``n`` rows are tokens.
            recurrent: [value head, V, K] before the cell.
            conv: [W-1, q|k|v] before the cell.

        Returns:
            y [cell, hidden] and both states after token ``n``. Padding cannot reach them: a row
            with k = 0, beta = 0 and g = 0 leaves the recurrence as it is.
        """
        raw, g, gate, beta = self._project(x)
        mixed, _ = causal_conv1d(raw[None], self.w_conv, initial_state=conv[None])
        q, k, v = (t.reshape(1, -1, self.heads, self.dim) for t in mixed.split(self.width, -1))
        if n < x.shape[0]:
            k, g, beta = k.clone(), g.clone(), beta.clone()
            k[:, n:] = 0
            g[n:] = 0
            beta[n:] = 0
        o, after = chunk_kda(
            q,
            k,
            v,
            g[None],
            beta[None],
            initial_state=recurrent[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            state_v_first=True,
            backend=self.backend,
        )
        assert after is not None
        window = torch.cat([conv, raw])[n : n + conv.shape[0]]
        return self._output(o[0], gate), after[0], window

    def decode(
        self, x: torch.Tensor, recurrent: torch.Tensor, conv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One token of each row.

        Args:
            x: [row, hidden].
            recurrent: [row, value head, V, K].
            conv: [row, W-1, q|k|v].
        """
        rows = x.shape[0]
        raw, g, gate, beta = self._project(x)
        mixed, window = causal_conv1d_update(raw, conv, self.w_conv)
        q, k, v = (t.reshape(rows, 1, self.heads, self.dim) for t in mixed.split(self.width, -1))
        o, after = fused_recurrent_kda(
            q,
            k,
            v,
            g[:, None],
            beta[:, None],
            initial_state=recurrent,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            state_v_first=True,
            backend=self.backend,
        )
        assert after is not None
        return self._output(o[:, 0], gate), after, window

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """raw q|k|v [n, 3P], log-decay g and output gate [n, heads, K or V], beta [n, heads]."""
        raw, f, gate, beta = linear(x, self.w_in).split(self.splits, -1)
        shape = (-1, self.heads, self.dim)
        g = fused_kda_gate(
            linear(f, self.w_f).reshape(shape), self.a_log, self.dt_bias, self.lower_bound
        )
        gate = gate if self.w_g is None else linear(gate, self.w_g)
        return raw, g, gate.reshape(shape), sigmoid(beta)

    def _output(self, o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = gated_rms_norm(o, gate, self.w_norm, self.eps)
        return linear(normed.reshape(o.shape[0], self.width), self.w_o)
