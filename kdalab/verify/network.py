"""The network against transformers, and the chunk form against the recurrence."""

from __future__ import annotations

import torch

from kdalab.model import tiny_config, tiny_model
from kdalab.model.tiny import tiny_weights
from kdalab.verify.claim import Claim
from kdalab.verify.peers import TransformersPeer, transformers_missing

LENGTHS = (1, 3, 63, 64, 65, 200)
GREEDY = 32


def transformers_claims(seed: int) -> list[Claim]:
    """Logits and greedy tokens of the same weights in transformers' ``KimiLinearForCausalLM``."""
    logits_row, greedy_row = "model = transformers: logits", "model = transformers: greedy tokens"
    missing = transformers_missing()
    if missing:
        return [Claim(logits_row, skipped=missing), Claim(greedy_row, skipped=missing)]
    config = tiny_config()
    peer = TransformersPeer.of_weights(tiny_weights(seed, config), config)
    model = tiny_model(seed)
    random = torch.Generator().manual_seed(seed)
    worst, differing, cases = 0.0, 0, 0
    for n in LENGTHS:
        tokens = torch.randint(256, (n,), generator=random)
        expected = peer.logits(tokens.tolist())
        for pieces in ([n], cut(n)):
            got = model.logits(tokens, pieces)
            worst = max(worst, float((got - expected).abs().max() / expected.abs().max()))
            cases += 1
        theirs = peer.greedy(tokens.tolist(), GREEDY)
        ours = model.greedy(tokens.tolist(), GREEDY)
        differing += sum(a != b for a, b in zip(theirs, ours, strict=True))
    return [
        Claim(
            logits_row,
            cases,
            worst,
            1e-4,
            "relative",
            f"{', '.join(map(str, LENGTHS))} tokens, whole and in pieces",
        ),
        Claim(
            greedy_row,
            len(LENGTHS),
            float(differing),
            0.0,
            "tokens that differ",
            f"{GREEDY} tokens after each prompt",
        ),
    ]


def cut(n: int) -> list[int]:
    """A cut into a single token, a pair, and pieces that leave the grid."""
    pieces: list[int] = []
    left = n
    for piece in (1, 2, 60, 7, 64):
        if left > piece:
            pieces.append(piece)
            left -= piece
    return [*pieces, left]


def chunk_claim(cases: int, seed: int) -> Claim:
    """Chunk form against the token recurrence in fp64: random shapes, gates and states."""
    from kdalab_kernels import chunk_kda, naive_recurrent_kda

    random = torch.Generator().manual_seed(seed)
    worst = 0.0
    for case in range(cases):
        tokens = int(torch.randint(1, 200, (1,), generator=random))
        heads, key, value = 1 + case % 3, (16, 24, 32)[case % 3], (32, 16, 20)[case % 3]

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, dtype=torch.float64)

        q, k, v = (rand(1, tokens, heads, d) for d in (key, key, value))
        k = torch.nn.functional.normalize(k, dim=-1)
        # From gates that keep nearly everything to gates that forget all at once.
        strength = 10.0 ** float(torch.empty(1).uniform_(-4, 2, generator=random))
        g = -strength * torch.rand(1, tokens, heads, key, generator=random, dtype=torch.float64)
        beta = torch.rand(1, tokens, heads, generator=random, dtype=torch.float64)
        state = rand(1, heads, key, value)
        expected, last = naive_recurrent_kda(
            q, k, v, g, beta, initial_state=state, output_final_state=True
        )
        got, got_last = chunk_kda(q, k, v, g, beta, initial_state=state, output_final_state=True)
        assert last is not None
        assert got_last is not None
        for a, b in ((got, expected), (got_last, last)):
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)))
    return Claim("chunk form = token recurrence, fp64", cases, worst, 1e-11, "relative")
