"""KDA's chunk form out of differentiable products, for many short sequences at once.

The ops of ``kdalab_kernels`` are for inference: their fast paths work in place and their
specification walks token by token. Here every step makes new tensors, so that autograd can go back
through it, and everything but one small scan over the chunks is batched.

Within a chunk, pairs of tokens are covered by recursive halving, as in the torch path of
``kdalab_kernels``: the decay between an earlier and a later block is split at the border between
them, so that no exponent is ever above 0, for any gate. The inverse of the unit lower triangular
``I + Akk`` is put together from the halves' inverses on the way, which is as stable as forward
substitution (a Neumann series is not: it fails for similar keys).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kdalab.errors import KdalabError


class Within(NamedTuple):
    """What the tokens of a chunk are to each other; leading axes [sequence x head, chunk].

    ``A_qk`` [C, C], scores of each query with the keys up to it; ``inverse`` [C, C], of
    ``I + Akk``; ``since`` [C, K], log-decay from the chunk's start to each token, itself included;
    ``until`` [C, K], log-decay after each token up to the chunk's end.
    """

    A_qk: torch.Tensor
    inverse: torch.Tensor
    since: torch.Tensor
    until: torch.Tensor


def chunk_scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk: int = 32,
) -> torch.Tensor:
    """The outputs of ``kdalab_kernels.naive_recurrent_kda`` from a zero state, with gradients.

    Per chunk, G being the log-decay since its start (Kimi Linear report, section 3)::

        W, U = (I + Akk)^-1 [beta k e^G | beta v]
        N    = U - W S
        O    = (scale q e^G) S + Aqk N
        S'   = Diag(e^G_last) S + (k e^(G_last - G))^T N

    Args:
        q, k: [B, T, head, K], normalised by the caller; q is scaled by ``K ** -0.5`` here.
        v: [B, T, head, V].
        g: [B, T, head, K], natural-log decay, at most 0.
        beta: [B, T, head], write strength.
        chunk: tokens of a chunk, a power of 2.

    Returns:
        [B, T, head, V] in the inputs' dtype.

    Raises:
        KdalabError: no tokens, or a chunk that is not a power of 2.
    """
    if chunk < 1 or chunk & (chunk - 1):
        raise KdalabError(f"a chunk is a power of 2 tokens, not {chunk}")
    B, T, H, K = q.shape
    if T == 0:
        raise KdalabError("chunk_scan needs at least one token")
    V = v.shape[-1]
    # A padded row has k = 0, beta = 0 and g = 0: it leaves the state as it is.
    q, k, v, g, write = (_tiles(x, chunk) for x in (q, k, v, g, beta[..., None]))
    q, bk, bv = q * K**-0.5, k * write, v * write
    inner = within_chunks(q, k, bk, g)
    from_start = inner.since.exp()
    WU = inner.inverse @ torch.cat([bk * from_start, bv], -1)
    W, U = WU.split([K, V], -1)
    carry = from_start[:, :, -1, :, None]
    keys = (k * inner.until.exp()).transpose(-1, -2)
    S = q.new_zeros(q.shape[0], K, V)
    starts, news = [], []
    for c in range(q.shape[1]):
        starts.append(S)
        new = U[:, c] - W[:, c] @ S
        news.append(new)
        S = carry[:, c] * S + keys[:, c] @ new
    o = (q * from_start) @ torch.stack(starts, 1) + inner.A_qk @ torch.stack(news, 1)
    return o.reshape(B, H, -1, V)[:, :, :T].transpose(1, 2)


def within_chunks(q: torch.Tensor, k: torch.Tensor, bk: torch.Tensor, g: torch.Tensor) -> Within:
    """Products inside each chunk by halves that double: blocks of 1, 2, 4, .. C tokens.

    Args:
        q: [.., C, K], scaled.
        k: [.., C, K].
        bk: [.., C, K], beta times k.
        g: [.., C, K], natural-log decay.
    """
    C, K = q.shape[-2:]
    lead = q.shape[:-2]
    A = (q * k).sum(-1)[..., None, None]  # [.., C blocks, 1, 1]
    inverse = torch.ones_like(A)
    since, until = g[..., None, :], torch.zeros_like(g)[..., None, :]
    h = 1
    while h < C:
        pairs = (*lead, C // (2 * h), 2, h)
        A_early, A_late = A.view(*pairs, h).unbind(-3)
        inv_early, inv_late = inverse.view(*pairs, h).unbind(-3)
        since_early, since_late = since.view(*pairs, K).unbind(-3)
        until_early, until_late = until.view(*pairs, K).unbind(-3)
        q_late, bk_late = (x.view(*pairs, K)[..., 1, :, :] for x in (q, bk))
        columns = k.view(*pairs, K)[..., 0, :, :] * until_early.exp()
        decay = since_late.exp()
        rows = torch.cat([q_late * decay, bk_late * decay], -2)
        P_q, P_k = (rows @ columns.transpose(-1, -2)).split(h, -2)
        A = _lower(A_early, P_q, A_late)
        inverse = _lower(inv_early, -(inv_late @ P_k @ inv_early), inv_late)
        since = torch.cat([since_early, since_late + since_early[..., -1:, :]], -2)
        until = torch.cat([until_early + since_late[..., -1:, :], until_late], -2)
        h *= 2
    return Within(A.squeeze(-3), inverse.squeeze(-3), since.squeeze(-3), until.squeeze(-3))


def _lower(early: torch.Tensor, below: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
    """[[early, 0], [below, late]], each [.., h, h]."""
    return torch.cat(
        [
            torch.nn.functional.pad(early, (0, early.shape[-1])),
            torch.cat([below, late], -1),
        ],
        -2,
    )


def _tiles(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """[B, T, head, D] -> [B x head, chunk, token in it, D], zeros after the last token."""
    B, T, H, D = x.shape
    n = -(-T // chunk)
    x = torch.nn.functional.pad(x.transpose(1, 2), (0, 0, 0, n * chunk - T))
    return x.reshape(B * H, n, chunk, D)
