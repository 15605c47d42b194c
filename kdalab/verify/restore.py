"""Restored and replayed equals computed straight through: the claim of the whole project.

Random prompts share prefixes with earlier ones in every way that prompts do, and run through the
engine with its cache, in batches, with random pools, pages, chunks and placements. Beside it each
prompt is computed from nothing by the model alone: no engine, no cache, no pools.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kdalab.cache import parse_placement
from kdalab.engine import Engine, EngineConfig, Request, fold
from kdalab.errors import InvariantError
from kdalab.model import CELL, HybridModel, tiny_model
from kdalab.verify.claim import Claim, Progress

BATCH = 24
"""Requests in one engine before it is built anew with other sizes."""

MAX_TOKENS = 320


@dataclass(slots=True)
class Worst:
    """Largest difference seen for each thing that is compared."""

    recurrent: float = 0.0
    conv: float = 0.0
    latent: float = 0.0
    logits: float = 0.0
    decoded: float = 0.0
    restored: int = 0
    replayed: int = 0
    cold: int = 0
    broken: str = ""
    events: Counter[str] = field(default_factory=Counter)


def restore_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """Rows for recurrent state, conv state, latent KV, logits, generated tokens and the log.

    Args:
        cases: restored prompts to try, each with its own random length, cut point and sharing
            pattern; prompts that found nothing to restore are compared too, and not counted.
        seed: of the random choices.
    """
    chance = random.Random(seed)
    model = tiny_model()
    worst = Worst()
    while worst.restored < cases and not worst.broken:
        run_batch(model, chance, BATCH, worst)
        if progress is not None:
            progress("restored = straight", min(worst.restored, cases), cases)
    seen = worst.restored
    note = f"{worst.replayed} of them replayed known text; {worst.cold} more prompts ran cold"
    return [
        Claim("restored = straight: recurrent state", seen, worst.recurrent, note=note),
        Claim("restored = straight: conv state", seen, worst.conv),
        Claim("restored = straight: latent KV", seen, worst.latent),
        Claim("restored = straight: logits", seen, worst.logits, note="every computed token"),
        Claim(
            "a batch never mixes its requests' states",
            seen + worst.cold,
            worst.decoded,
            unit="tokens that differ",
            note="greedy continuation, batched against alone",
        ),
        Claim(
            "invariants hold, the log folds to the live objects",
            seen + worst.cold,
            float(bool(worst.broken)),
            unit="violations",
            note=worst.broken or "checked after every step",
        ),
    ]


def run_batch(
    model: HybridModel,
    chance: random.Random,
    count: int,
    worst: Worst,
    between: Callable[[Engine], None] | None = None,
    **features: Any,
) -> None:
    """One engine with these features, ``count`` prompts, submitted two or three at a time;
    ``between`` is called after each of these waves."""
    engine = random_engine(model, chance, **features)
    earlier: list[list[int]] = [[chance.randrange(256) for _ in range(MAX_TOKENS)]]
    waiting = count
    while waiting:
        wave: list[Request] = []
        alone: dict[str, list[int]] = {}
        for _ in range(min(waiting, chance.randint(1, 3))):
            tokens = random_prompt(earlier, chance)
            earlier.append(tokens)
            wave.append(engine.submit(tokens, max_new_tokens=chance.randint(2, 3)))
        waiting -= len(wave)
        try:
            while not engine.is_idle:
                engine.step()
                engine.check()
                for request in wave:
                    if request.phase == "decode" and request.computed == request.n_tokens:
                        alone[request.name] = compare_states(engine, request, worst)
        except InvariantError as error:
            worst.broken = worst.broken or str(error)
            return
        for request in wave:
            pairs = zip(alone[request.name], request.generated, strict=True)
            worst.decoded = max(worst.decoded, float(sum(a != b for a, b in pairs)))
        if between is not None:
            between(engine)
    engine.say_moves()
    for event in engine.events:
        worst.events[event.name] += 1
    if fold(engine.events, engine.empty_view()) != engine.view():
        worst.broken = worst.broken or "the folded log differs from the live objects"


def random_engine(model: HybridModel, chance: random.Random, **features: Any) -> Engine:
    """An engine with these features, and sizes that make sharing, waiting and eviction likely."""
    page = chance.choice([8, 16, 32, 64])
    return Engine(
        model,
        EngineConfig(
            page_tokens=page,
            n_pages=chance.randint(700, 2400) // page,
            n_active=chance.randint(2, 4),
            n_checkpoints=chance.randint(6, 32),
            chunk_tokens=chance.choice([64, 128, 192, 320]),
            placement=parse_placement(
                chance.choice(["every:64", "every:128", "every:192", "leaf", "leaf+branch", "all"])
            ),
            keep_logits=True,
            **features,
        ),
    )


def random_prompt(earlier: Sequence[Sequence[int]], chance: random.Random) -> list[int]:
    """The same again, cut short, continued, or parting from an earlier prompt at any point."""
    base = list(chance.choice(earlier))
    cut = chance.randint(1, len(base))
    fresh = [chance.randrange(256) for _ in range(chance.randint(1, MAX_TOKENS))]
    kind = chance.random()
    if kind < 0.1:
        tokens = base
    elif kind < 0.2:
        tokens = base[:cut]
    elif kind < 0.5:
        tokens = base[: max(cut, 128)] + fresh
    elif kind < 0.95:
        tokens = base[:cut] + fresh
    else:
        tokens = fresh
    return tokens[:MAX_TOKENS]


def straight_through(
    model: HybridModel, tokens: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits of every token, recurrent, conv, latent), from nothing and by the model alone."""
    recurrent, conv, latent = model.zero_state()
    rows = []
    ids = torch.tensor(tokens)
    for at in range(0, len(tokens), CELL):
        out = model.prefill_cell(ids[at : at + CELL], at, recurrent, conv, latent, "all")
        recurrent, conv = out.recurrent, out.conv
        latent = torch.cat([latent, out.latent], 1)
        assert out.logits is not None
        rows.append(out.logits)
    return torch.cat(rows), recurrent, conv, latent


def compare_states(engine: Engine, request: Request, worst: Worst) -> list[int]:
    """The request has just finished its prefill: compare what it holds, and return the tokens
    that it would generate alone."""
    logits, recurrent, conv, latent = straight_through(engine.model, request.tokens)
    mine = engine.state_of(request)
    held = engine.latents.gather(request.pages, request.n_tokens)
    worst.recurrent = max(worst.recurrent, largest(mine[0], recurrent))
    worst.conv = max(worst.conv, largest(mine[1], conv))
    worst.latent = max(worst.latent, largest(held, latent))
    computed = torch.stack(request.logits[: request.n_tokens - request.restore])
    worst.logits = max(worst.logits, largest(computed, logits[request.restore :]))
    worst.restored += request.restore > 0
    worst.cold += request.restore == 0
    worst.replayed += 0 < request.restore < request.token_match
    return continue_alone(engine.model, logits[-1], recurrent, conv, latent, request.max_new_tokens)


def continue_alone(
    model: HybridModel,
    logits: torch.Tensor,
    recurrent: torch.Tensor,
    conv: torch.Tensor,
    latent: torch.Tensor,
    n: int,
) -> list[int]:
    """``n`` greedy tokens from the states after a prompt, with no other request in the batch."""
    tokens = [int(logits.argmax())]
    while len(tokens) < n:
        step = model.decode(
            torch.tensor(tokens[-1:]), [latent.shape[1]], recurrent[None], conv[None], [latent]
        )
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        tokens.append(int(step.logits[0].argmax()))
    return tokens


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a - b|; infinite when either holds a NaN (poison that was read)."""
    value = float((a - b).abs().max()) if a.numel() else 0.0
    return value if value == value else float("inf")
