"""State that moves: other ranks, other layouts, other instances; and what has to be refused."""

from __future__ import annotations

import random
from typing import Any

import torch

from kdalab.cache import parse_placement
from kdalab.engine import BlockEngine, BlockEngineConfig, Engine, EngineConfig
from kdalab.model import HybridModel, tiny_model
from kdalab.spec import StateIdentity
from kdalab.transfer import (
    Bundle,
    Directory,
    EngineSource,
    PrefixHash,
    connect,
    export_prefix,
    export_request,
    identity_of,
    merge,
    refusal_matrix,
    relayout,
    repage,
    reslice,
    resume_request,
    split,
)
from kdalab.verify.claim import Claim, Progress
from kdalab.verify.restore import largest, straight_through

LAYOUTS = [(s, c) for s in ("v_first", "k_first") for c in ("time_first", "channel_first")]
SIZES = (1, 2, 4)
PAGES = (16, 32, 64)
NEW_TOKENS = 5


def transfer_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """Rows for re-slicing, refusals, a request that moves, and a prefix that is fetched.

    Args:
        cases: of each; engines compare at most as many.
        seed: of the random choices.
    """
    model = tiny_model()
    return [
        reslice_claim(cases, seed),
        refusal_claim(),
        moved_claim(model, cases, seed, progress),
        moved_claim(model, cases, seed, progress, between=True),
        fetched_claim(model, cases, seed, progress),
    ]


def reslice_claim(cases: int, seed: int) -> Claim:
    """Every change of ranks and layouts against plain indexing of the whole model's state."""
    chance, wrong = random.Random(seed), 0
    for case in range(cases):
        heads = chance.choice([4, 8, 12])
        v, k, width = chance.randint(1, 9), chance.randint(1, 9), chance.randint(1, 4)
        whole = _random_bundle(case, heads, v, k, width)
        source, target = chance.choice(SIZES), chance.choice(SIZES)
        layout = chance.choice(LAYOUTS)
        parts = [_sent(relayout(p, *layout)) for p in split(whole, source)]
        for rank in range(target):
            got = relayout(reslice(parts, target, rank), "v_first", "time_first")
            mine = [h for h in range(heads) if h * target // heads == rank]
            rows = _conv_rows(mine, heads, k, v)
            wrong += int((got.recurrent != whole.recurrent[:, mine]).sum())
            wrong += int((got.conv != whole.conv[:, :, rows]).sum())
            wrong += int((got.latent != whole.latent).sum())
        again = merge([reslice(parts, target, r) for r in range(target)])
        back = relayout(again, "v_first", "time_first")
        wrong += int((back.recurrent != whole.recurrent).sum() + (back.conv != whole.conv).sum())
    return Claim(
        "re-sliced for other ranks and layouts = cut from the whole",
        cases,
        float(wrong),
        unit="elements that differ",
        note="1, 2, 4 ranks; K or V first; conv inside q, k and v; through bytes",
    )


def refusal_claim() -> Claim:
    """Each row of the matrix runs the real check; the control must be taken."""
    rows = refusal_matrix()
    wrong = [r.case for r in rows if r.refused == (r.case == "the same state")]
    return Claim(
        "a state of anything else is refused, by name",
        len(rows),
        float(len(wrong)),
        unit="wrong answers",
        note=", ".join(wrong) or "and the right one is taken",
    )


def moved_claim(
    model: HybridModel,
    cases: int,
    seed: int,
    progress: Progress | None = None,
    between: bool = False,
) -> Claim:
    """A request that changes its engine, after prefill, in decoding, or at a cached boundary.

    Args:
        between: one of the two keeps its states in blocks.
    """
    chance, worst = random.Random(seed), 0.0
    for case in range(cases):
        prompt = [chance.randrange(256) for _ in range(chance.randint(1, 200))]
        page = chance.choice(PAGES)
        engines: list[Engine | BlockEngine] = [_engine(model, chance, page)]
        engines.append(_blocks(model, chance) if between else _engine(model, chance, page))
        first, second = chance.sample(engines, 2)
        alone = model.greedy(prompt, NEW_TOKENS)
        where = chance.random()
        if where < 0.3 and len(prompt) > 64:
            first.submit(prompt, 0)
            first.run()
            bundle, done = export_prefix(first, prompt[:-1]), []
        else:
            request = first.submit(prompt, NEW_TOKENS)
            while request.phase != "decode":
                first.step()
            for _ in range(chance.randint(0, NEW_TOKENS - 2)):
                first.step()
            bundle, done = export_request(first, request.name), list(request.generated)
        size, layout = chance.choice(SIZES), chance.choice(LAYOUTS)
        parts = [_sent(relayout(p, *layout)) for p in split(bundle, size)]
        whole = repage(relayout(merge(parts), "v_first", "time_first"), page)
        moved = resume_request(second, whole, prompt, done, NEW_TOKENS)
        second.run()
        second.check()
        full = straight_through(model, prompt)[0][-1] if not done else None
        worst = max(worst, float(moved.generated != alone))
        worst = max(worst, _logits_differ(model, prompt, moved.generated, moved.logits, full))
        if progress is not None:
            progress("moved between engines", case + 1, cases)
    whither = "between the tree and blocks" if between else "to another engine"
    return Claim(
        f"a request that moves {whither} = one that stays: logits and tokens",
        cases,
        worst,
        note="through the bundles of 1, 2 or 4 ranks, in any layout",
    )


def fetched_claim(
    model: HybridModel, cases: int, seed: int, progress: Progress | None = None
) -> Claim:
    """Prompts restored from another engine's cache, and one whose source has other weights."""
    chance, worst, n = random.Random(seed), 0.0, 0
    while n < cases:
        base = [chance.randrange(256) for _ in range(chance.randint(70, 250))]
        page = chance.choice(PAGES)
        there, here = _engine(model, chance, page), _engine(model, chance, page)
        there.submit(base, 1)
        there.run()
        if chance.random() < 0.5:
            here.submit(base[: chance.randint(1, len(base))], 1)
            here.run()
        connect(here, Directory([EngineSource("there", there)]))
        cut = chance.randint(65, len(base))
        prompt = base[:cut] + [chance.randrange(256) for _ in range(chance.randint(1, 60))]
        request = here.submit(prompt, 2)
        here.run()
        here.check()
        if not any(e.name == "Fetched" for e in here.events):
            continue
        full = straight_through(model, prompt)[0][request.restore :]
        computed = torch.stack(request.logits[: len(full)])
        worst = max(worst, largest(computed, full))
        worst = max(worst, float(request.generated != model.greedy(prompt, 2)))
        n += 1
        if progress is not None:
            progress("fetched from another instance", n, cases)
    return Claim(
        "fetched from another instance = computed here: logits and tokens",
        n,
        worst,
        note="the local cache knew a part of half of them",
    )


def _logits_differ(
    model: HybridModel,
    prompt: list[int],
    generated: list[int],
    logits: list[torch.Tensor],
    last_of_prompt: torch.Tensor | None,
) -> float:
    """The logits that the second engine made, against a run of the model alone."""
    _, recurrent, conv, latent = straight_through(model, prompt)
    rows = [last_of_prompt] if last_of_prompt is not None else []
    for token in generated[:-1]:
        step = model.decode(
            torch.tensor([token]), [latent.shape[1]], recurrent[None], conv[None], [latent]
        )
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        rows.append(step.logits[0])
    kept = min(len(rows), len(logits))
    pairs = zip(logits[-kept:], rows[-kept:], strict=True)
    return max((largest(a, b) for a, b in pairs), default=0.0)


def _engine(model: HybridModel, chance: random.Random, page: int) -> Engine:
    features: dict[str, Any] = chance.choice(
        [{}, {"strategy": "extra_buffer"}, {"memory": "unified"}]
    )
    config = EngineConfig(
        page_tokens=page,
        n_pages=64,
        n_active=3,
        n_checkpoints=8,
        placement=parse_placement(chance.choice(["every:64", "all"])),
        keep_logits=True,
        **features,
    )
    return Engine(model, config, _identity(model))


def _blocks(model: HybridModel, chance: random.Random) -> BlockEngine:
    config = BlockEngineConfig(
        unit=64, layout=chance.choice(["padded", "packed"]), max_running=3, keep_logits=True
    )
    return BlockEngine(model, config, _identity(model))


def _identity(model: HybridModel) -> StateIdentity:
    return identity_of(model, name="tiny", model_version="seed-0", tokenizer="bytes")


def _sent(bundle: Bundle) -> Bundle:
    return Bundle.from_bytes(bundle.to_bytes())


def _random_bundle(seed: int, heads: int, v: int, k: int, width: int) -> Bundle:
    random_ = torch.Generator().manual_seed(seed)
    channels = (heads * k, heads * k, heads * v)
    return Bundle(
        StateIdentity("m", "v", "t", "fp32", "fp32", "fp32", "v_first", "time_first"),
        PrefixHash.of([seed] * 20),
        torch.randn(3, 2, 8, 5, generator=random_),
        torch.randn(2, heads, v, k, generator=random_),
        torch.randn(2, width, sum(channels), generator=random_),
        channels,
    )


def _conv_rows(mine: list[int], heads: int, k: int, v: int) -> list[int]:
    """Channels of these heads in the whole conv row ``q | k | v``."""
    rows, before = [], 0
    for size in (k, k, v):
        rows += [before + h * size + i for h in mine for i in range(size)]
        before += heads * size
    return rows
