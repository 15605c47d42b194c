"""Kimi K3's network with every switch on: restore, fp64, and mlx-lm."""

from __future__ import annotations

import random

import torch

from kdalab.model import tiny_k3_config, tiny_k3_model
from kdalab.model.tiny import tiny_weights
from kdalab.verify.claim import Claim, Progress
from kdalab.verify.mlx_peer import MlxPeer, mlx_missing
from kdalab.verify.network import LENGTHS, cut
from kdalab.verify.restore import BATCH, Worst, run_batch


def k3_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """The rows of ``tiny-k3``; ``cases`` restored prompts."""
    return [_restore_claim(cases, seed, progress), _pieces_claim(seed), *_mlx_claims(seed)]


def _restore_claim(cases: int, seed: int, progress: Progress | None) -> Claim:
    """As ``restore_claims``, everything that is compared in one row."""
    model, chance, worst = tiny_k3_model(), random.Random(seed), Worst()
    while worst.restored < cases and not worst.broken:
        run_batch(model, chance, min(BATCH, 4 * cases), worst)
        if progress is not None:
            progress("tiny-k3: restored = straight", min(worst.restored, cases), cases)
    off = max(worst.recurrent, worst.conv, worst.latent, worst.logits, worst.decoded)
    return Claim(
        "tiny-k3: restored = straight",
        worst.restored,
        float("inf") if worst.broken else off,
        note=worst.broken or "states, latent KV, logits and generated tokens",
    )


def _pieces_claim(seed: int) -> Claim:
    model = tiny_k3_model(seed, torch.float64)
    worst = 0.0
    for n in LENGTHS:
        tokens = _tokens(n, seed)
        worst = max(worst, _off(model.logits(tokens, cut(n)), model.logits(tokens)))
    return Claim(
        "tiny-k3: in pieces = in one piece, fp64", len(LENGTHS), worst, 1e-10, note="logits"
    )


def _mlx_claims(seed: int) -> list[Claim]:
    logits_row, states_row = "tiny-k3 = mlx-lm: logits", "tiny-k3 = mlx-lm: states"
    missing = mlx_missing()
    if missing:
        return [Claim(logits_row, skipped=missing), Claim(states_row, skipped=missing)]
    config = tiny_k3_config()
    peer = MlxPeer(tiny_weights(seed, config), config)
    model = tiny_k3_model(seed)
    worst = states = 0.0
    for n in LENGTHS:
        tokens = _tokens(n, seed)
        for pieces in (None, cut(n)):
            theirs = peer.logits(tokens.tolist(), pieces)
            worst = max(worst, _off(model.logits(tokens, pieces), theirs))
        ours = model.states(tokens)
        pairs = zip(ours, peer.states(tokens.tolist()), strict=True)
        states = max(states, *(_off(a, b) for a, b in pairs))
    note = f"{', '.join(map(str, LENGTHS))} tokens"
    return [
        Claim(
            logits_row,
            2 * len(LENGTHS),
            worst,
            1e-3,
            note=f"{note}, whole and in pieces through both caches",
        ),
        Claim(states_row, len(LENGTHS), states, 1e-3, note="recurrent, conv and latent KV"),
    ]


def _tokens(n: int, seed: int) -> torch.Tensor:
    return torch.randint(256, (n,), generator=torch.Generator().manual_seed(seed + n))


def _off(a: torch.Tensor, b: torch.Tensor) -> float:
    value = float((a - b).abs().max())
    return value if value == value else float("inf")
