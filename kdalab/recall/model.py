"""A trainable Kimi-Linear network with dense layers; its weights have Hugging Face's names.

The same architecture as ``kdalab.model.HybridModel``, batched over sequences and with gradients;
a test compares their logits. ``state_dict()`` is what ``kdalab.model.load_pretrained`` reads.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import conv1d, linear, pad, silu, softplus

from kdalab.errors import KdalabError
from kdalab.model import KimiLinearConfig
from kdalab.recall.chunk import chunk_scan

L2_EPS = 1e-6


class RMSNorm(nn.Module):
    """``weight x / sqrt(mean(x^2) + eps)`` over the last axis."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def _linear(n_in: int, n_out: int, random: torch.Generator) -> nn.Linear:
    layer = nn.Linear(n_in, n_out, bias=False)
    with torch.no_grad():
        layer.weight.normal_(0, n_in**-0.5, generator=random)
    return layer


class ShortConv(nn.Module):
    """Depthwise causal convolution over time, then SiLU; starts close to the identity."""

    def __init__(self, width: int, taps: int, random: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(width, 1, taps, generator=random))
        with torch.no_grad():
            self.weight[:, :, -1] += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, width] -> the same."""
        width, _, taps = self.weight.shape
        x = pad(x.transpose(1, 2), (taps - 1, 0))
        return silu(conv1d(x, self.weight, groups=width)).transpose(1, 2)


def _mixed(
    n_in: int, n_out: int, taps: int, random: torch.Generator
) -> tuple[nn.Linear, ShortConv]:
    return _linear(n_in, n_out, random), ShortConv(n_out, taps, random)


class KDA(nn.Module):
    """``kdalab.model.kda`` with gradients."""

    def __init__(self, c: KimiLinearConfig, random: torch.Generator) -> None:
        super().__init__()
        self.heads, self.dim = c.linear_num_heads, c.linear_head_dim
        hidden, width, dim = c.hidden_size, c.kda_width, c.linear_head_dim
        taps = c.linear_conv_kernel_dim
        self.q_proj, self.q_conv1d = _mixed(hidden, width, taps, random)
        self.k_proj, self.k_conv1d = _mixed(hidden, width, taps, random)
        self.v_proj, self.v_conv1d = _mixed(hidden, width, taps, random)
        self.f_a_proj, self.f_b_proj = _linear(hidden, dim, random), _linear(dim, width, random)
        self.g_a_proj, self.g_b_proj = _linear(hidden, dim, random), _linear(dim, width, random)
        self.b_proj = _linear(hidden, self.heads, random)
        # Rates as in Kimi K3 (A = 1), and dt log-uniform in 1e-3..1e-1 as in FLA.
        self.A_log = nn.Parameter(torch.zeros(1, 1, self.heads, 1))
        dt = torch.exp(math.log(1e-3) + math.log(1e2) * torch.rand(width, generator=random))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.o_norm = RMSNorm(dim, c.rms_norm_eps)
        self.o_proj = _linear(width, hidden, random)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, hidden] -> the same."""
        split = (self.heads, self.dim)
        q = self.q_conv1d(self.q_proj(x)).unflatten(-1, split)
        k = self.k_conv1d(self.k_proj(x)).unflatten(-1, split)
        v = self.v_conv1d(self.v_proj(x)).unflatten(-1, split)
        f = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).unflatten(-1, split)
        g = -self.A_log[0, 0].exp() * softplus(f)
        beta = torch.sigmoid(self.b_proj(x))
        chunk = min(32, 1 << (x.shape[1] - 1).bit_length())  # no more padding than needed
        o = chunk_scan(_unit(q), _unit(k), v, g, beta, chunk)
        gate = torch.sigmoid(self.g_b_proj(self.g_a_proj(x)).unflatten(-1, split))
        return self.o_proj((self.o_norm(o) * gate).flatten(-2))


class MLA(nn.Module):
    """``kdalab.model.mla`` with gradients: keys and values are rebuilt from the latent."""

    def __init__(self, c: KimiLinearConfig, random: torch.Generator) -> None:
        super().__init__()
        self.heads, self.rank = c.num_attention_heads, c.kv_lora_rank
        self.nope, self.rope, self.v_dim = c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
        hidden, heads = c.hidden_size, self.heads
        self.q_proj = _linear(hidden, heads * (self.nope + self.rope), random)
        self.kv_a_proj_with_mqa = _linear(hidden, c.latent_dim, random)
        self.kv_a_layernorm = RMSNorm(self.rank, c.latent_eps)
        self.kv_b_proj = _linear(self.rank, heads * (self.nope + self.v_dim), random)
        self.o_proj = _linear(heads * self.v_dim, hidden, random)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, hidden] -> the same."""
        B, T = x.shape[:2]
        q = self.q_proj(x).view(B, T, self.heads, -1).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(B, T, self.heads, -1).transpose(1, 2)
        k, v = kv.split([self.nope, self.v_dim], -1)
        k = torch.cat([k, shared[:, None].expand(-1, self.heads, -1, -1)], -1)
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, c: KimiLinearConfig, random: torch.Generator) -> None:
        super().__init__()
        self.gate_proj = _linear(c.hidden_size, c.intermediate_size, random)
        self.up_proj = _linear(c.hidden_size, c.intermediate_size, random)
        self.down_proj = _linear(c.intermediate_size, c.hidden_size, random)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each on a normed input and added to the stream."""

    def __init__(self, c: KimiLinearConfig, full: bool, random: torch.Generator) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn: nn.Module = MLA(c, random) if full else KDA(c, random)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c, random)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Stem(nn.Module):
    """Everything but the head, under the prefix ``model.``"""

    def __init__(self, c: KimiLinearConfig, random: torch.Generator) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        full = set(c.full_attn_layers)
        self.layers = nn.ModuleList(Layer(c, i in full, random) for i in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)


class TrainableNetwork(nn.Module):
    """The network of ``config``, fresh weights drawn from ``random``.

    Embedding and head are given and frozen: they are part of the task.

    Args:
        config: dense layers only, no low-rank query.
        embedding, head: [vocab, hidden] each.

    Raises:
        KdalabError: a config with experts or with a low-rank query.
    """

    def __init__(
        self,
        config: KimiLinearConfig,
        embedding: torch.Tensor,
        head: torch.Tensor,
        random: torch.Generator,
    ) -> None:
        super().__init__()
        if len(config.dense_layers) != config.num_hidden_layers or config.q_lora_rank is not None:
            raise KdalabError("the trainable network has dense layers and a full-rank query only")
        self.model = Stem(config, random)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(embedding)
            self.lm_head.weight.copy_(head)
        self.model.embed_tokens.weight.requires_grad_(False)
        self.lm_head.weight.requires_grad_(False)

    def forward(self, tokens: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
        """Logits of a part of the vocabulary.

        Args:
            tokens: [B, T] ids.
            rows: of the head; all of the vocabulary by default.

        Returns:
            [B, T, vocabulary or rows].
        """
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return linear(self.model.norm(x), self.lm_head.weight[rows])


def _unit(x: torch.Tensor) -> torch.Tensor:
    """FLA's l2 norm: epsilon inside the root."""
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + L2_EPS)
