"""A few tokens of each of several requests in one forward: what speculative decoding verifies.

Every product runs on the rows of a decode step, and the recurrence and the attention take one
token after the other, with the very shapes that decode uses. So a verified token has the bits
that decoding it alone would have given, and the step still reads the weights once, not once a
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch.nn.functional import embedding

from kdalab.errors import KdalabError
from kdalab.model.inputs import check_ids, check_state
from kdalab.model.kda import KDALayer
from kdalab.model.mla import MLALayer
from kdalab.model.network import HybridModel
from kdalab_kernels import causal_conv1d_update, fused_recurrent_kda


class VerifyOutput(NamedTuple):
    """One request's tokens, every intermediate state kept.

    ``logits`` [T, vocab]; ``recurrent`` [T, KDA layer, value head, V, K]; ``conv``
    [T, KDA layer, W-1, q|k|v]; ``latent`` [T, MLA layer, latent|rope]: after token t.
    """

    logits: torch.Tensor
    recurrent: torch.Tensor
    conv: torch.Tensor
    latent: torch.Tensor


def rows_of(model: HybridModel) -> int:
    """Tokens that one verifying forward holds, over all requests."""
    return model._rows


@torch.inference_mode()
def verify_tokens(
    model: HybridModel,
    tokens: Sequence[Sequence[int]],
    positions: Sequence[int],
    recurrent: torch.Tensor,
    conv: torch.Tensor,
    latents: Sequence[torch.Tensor],
) -> list[VerifyOutput]:
    """The tokens of each of B requests, in order, from the states before their first.

    Args:
        model: the network.
        tokens: B lists of ids, of any lengths of at least 1, at most ``rows_of(model)`` in all.
        positions: position of each list's first token; the states have seen that many tokens.
        recurrent: [B, KDA layer, value head, V, K].
        conv: [B, KDA layer, W-1, q|k|v].
        latents: B tensors [MLA layer, position, latent|rope].

    Raises:
        KdalabError: too many tokens, ids outside the vocabulary, or states whose shapes are not
            those of this model at ``positions``.
    """
    rows, b = rows_of(model), len(tokens)
    flat = [t for one in tokens for t in one]
    if b == 0 or not all(tokens) or len(flat) > rows or b > model.decode_rows:
        raise KdalabError(
            f"a verifying step holds 1 to {rows} tokens of at most {model.decode_rows} requests, "
            f"each with one or more; given {[len(one) for one in tokens]}"
        )
    ids = torch.tensor(flat)
    check_ids(ids, model.vocab_size)
    check_state("recurrent", recurrent, (b, *model.recurrent_shape), model.state_dtype)
    check_state("conv", conv, (b, *model.conv_shape), model.dtype)
    if len(positions) != b or len(latents) != b:
        raise KdalabError(f"{b} lists, {len(positions)} positions, {len(latents)} latents")
    for position, latent in zip(positions, latents, strict=True):
        shape = (model.n_mla_layers, position, model.latent_dim)
        check_state("latents", latent, shape, model.dtype)
    first = [sum(len(one) for one in tokens[:i]) for i in range(b)]
    spans = [range(at, at + len(one)) for at, one in zip(first, tokens, strict=True)]
    x = model.embed.new_zeros(rows, model.config.hidden_size)
    x[: len(flat)] = embedding(ids, model.embed)
    states = recurrent.new_zeros(len(flat), *model.recurrent_shape)
    windows = conv.new_zeros(len(flat), *model.conv_shape)
    new_latent = x.new_empty(rows, model.n_mla_layers, model.latent_dim)
    kda, mla = count(), count()

    def attend(layer: KDALayer | MLALayer, h: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, KDALayer):
            i = next(kda)
            y, states[:, i], windows[:, i] = _kda(layer, h, spans, recurrent[:, i], conv[:, i])
        else:
            i = next(mla)
            y, new_latent[:, i] = _mla(layer, h, spans, [c[i] for c in latents])
        return y

    logits = model._logits(model._layers(x, attend))
    out = []
    for span in spans:
        cut = slice(span.start, span.stop)
        out.append(VerifyOutput(logits[cut], states[cut], windows[cut], new_latent[cut]))
    return out


def _kda(
    layer: KDALayer,
    x: torch.Tensor,
    spans: Sequence[range],
    recurrent: torch.Tensor,
    conv: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y [row, hidden], and both states after every token [token, ...]."""
    rows, n = x.shape[0], sum(len(s) for s in spans)
    raw, g, gate, beta = layer._project(x)
    after = recurrent.new_zeros(rows, *recurrent.shape[1:])
    window = conv.new_zeros(rows, *conv.shape[1:])
    after[: len(spans)], window[: len(spans)] = recurrent, conv
    kept = recurrent.new_empty(n, *recurrent.shape[1:])
    kept_windows = conv.new_empty(n, *conv.shape[1:])
    o = x.new_zeros(rows, layer.heads, layer.dim)
    for step in range(max(len(s) for s in spans)):
        # Row b of every step is request b, as in a decode step; those that have ended idle on.
        live = [(b, s[step]) for b, s in enumerate(spans) if step < len(s)]
        where = torch.tensor([s[min(step, len(s) - 1)] for s in spans])
        raw_t, g_t, beta_t = (_padded(t, where, rows) for t in (raw, g, beta))
        mixed, window = causal_conv1d_update(raw_t, window, layer.w_conv)
        q, k, v = (t.reshape(rows, 1, layer.heads, layer.dim) for t in mixed.split(layer.width, -1))
        o_t, new = fused_recurrent_kda(
            q,
            k,
            v,
            g_t[:, None],
            beta_t[:, None],
            initial_state=after,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            state_v_first=True,
            backend=layer.backend,
        )
        assert new is not None
        after = new
        requests = torch.tensor([b for b, _ in live])
        tokens = torch.tensor([t for _, t in live])
        o[tokens] = o_t[requests, 0]
        kept[tokens], kept_windows[tokens] = after[requests], window[requests]
    return layer._output(o, gate), kept, kept_windows


def _padded(t: torch.Tensor, where: torch.Tensor, rows: int) -> torch.Tensor:
    out = t.new_zeros(rows, *t.shape[1:])
    out[: len(where)] = t[where]
    return out


def _mla(
    layer: MLALayer, x: torch.Tensor, spans: Sequence[range], contexts: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [row, hidden] and the tokens' latents [row, latent|rope]; each token sees those before."""
    latent = layer._latent(x)
    query = layer._query(x)
    mixed = query.new_zeros(layer.heads, x.shape[0], layer.rank)
    for span, context in zip(spans, contexts, strict=True):
        for row in span:
            keys = torch.cat([context, latent[span.start : row + 1]])
            own = query[:, row].contiguous()
            weights = torch.softmax(torch.matmul(own, keys.T) * layer.scale, -1)
            mixed[:, row] = torch.matmul(weights, keys[:, : layer.rank])
    return layer._output(mixed, x), latent
