"""What a restored prefix saves: the FLOPs of computing it, re-derived for KDA and MLA.

A product of a vector with an ``m x n`` matrix counts ``2 m n``. One forward over tokens [a, b)
costs ``linear * (b - a) + pair * (b^2 - a^2) / 2``: everything but attention's scores is the same
for every token, and token t attends to t + 1 keys.

* **KDA**, a token: projections to q, k, v and back (hidden x channels), beta, the decay's and the
  output gate's two small factors, the short convolutions (2 W a channel), and the recurrence in
  its recurrent form: decay (1), k^T S (2), the rank-one update (2) and q^T S (2), so 7 per element
  of S. The chunk form does more work in larger products; it saves time, not FLOPs.
* **MLA**, a token: down and up projections of q and kv, and the output. A pair of query and key:
  ``2 H (nope + rope)`` for the score and ``2 H v`` for the value.
* **Feed-forward**, a token: three products of hidden x width; for a mixture of experts those of
  the chosen and the shared experts and the router, with two more where experts work in a narrower
  space.

The formulas of the Marconi paper (arXiv 2411.19379) are for Mamba, plain attention and an MLP of
``16 L D^2``; none of them fits these layers. The head that gives logits is left out: it runs on one
token a request either way.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.errors import KdalabError
from kdalab.spec import LayerType, ModelSpec
from kdalab.spec.model_spec import FeedForward, GroupedAttention, LatentAttention, LinearAttention


@dataclass(frozen=True, slots=True)
class PrefillFlops:
    """``linear`` FLOPs a token, ``pair`` FLOPs for every query and key that meet; all layers."""

    linear: int
    pair: int

    @classmethod
    def of(cls, model: ModelSpec) -> PrefillFlops:
        """Those of ``model``; without its feed-forward sizes only mixers are counted."""
        linear = pair = 0
        for layer, kind in enumerate(model.layer_types):
            if kind is LayerType.LINEAR:
                linear += _linear_attention(model.hidden_size, model.linear)
            else:
                token, each = _full_attention(model.hidden_size, model.full)
                linear, pair = linear + token, pair + each
            if model.feed_forward is not None:
                linear += _feed_forward(model.hidden_size, model.feed_forward, layer)
        return cls(linear, pair)

    def between(self, start: int, end: int) -> int:
        """FLOPs of tokens [start, end), attention to everything before them included.

        Raises:
            KdalabError: not 0 <= start <= end.
        """
        if not 0 <= start <= end:
            raise KdalabError(f"tokens [{start}, {end}) are no span of a sequence")
        n = end - start
        return self.linear * n + self.pair * (end * (end + 1) - start * (start + 1)) // 2


def _linear_attention(hidden: int, a: LinearAttention) -> int:
    values, keys = a.num_v_heads * a.head_v_dim, a.num_k_heads * a.head_k_dim
    projections = 2 * hidden * (2 * keys + values) + 2 * values * hidden
    gates = 2 * hidden * a.num_v_heads  # beta
    gates += 2 * a.head_v_dim * (hidden + a.num_v_heads * a.head_k_dim)  # decay
    gates += 2 * a.head_v_dim * (hidden + values)  # output gate
    return projections + gates + 2 * a.conv_kernel * a.conv_channels + 7 * a.recurrent_elements


def _full_attention(hidden: int, a: LatentAttention | GroupedAttention) -> tuple[int, int]:
    if isinstance(a, GroupedAttention):
        q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        return 2 * hidden * (2 * q + 2 * kv), 4 * q
    width = a.qk_nope_head_dim + a.qk_rope_head_dim
    q = hidden * a.num_heads * width
    if a.q_lora_rank is not None:
        q = a.q_lora_rank * (hidden + a.num_heads * width)
    down = hidden * (a.kv_lora_rank + a.qk_rope_head_dim)
    up = a.kv_lora_rank * a.num_heads * (a.qk_nope_head_dim + a.v_head_dim)
    out = a.num_heads * a.v_head_dim * hidden
    return 2 * (q + down + up + out), 2 * a.num_heads * (width + a.v_head_dim)


def _feed_forward(hidden: int, f: FeedForward, layer: int) -> int:
    if not f.num_experts or layer < f.first_dense_layers:
        return 6 * hidden * f.intermediate_size
    inner = f.routed_hidden_size or hidden
    routed = 6 * inner * f.moe_intermediate_size * f.experts_per_token
    narrow = 4 * hidden * inner if f.routed_hidden_size else 0
    return routed + narrow + 6 * hidden * f.shared_intermediate_size + 2 * hidden * f.num_experts
