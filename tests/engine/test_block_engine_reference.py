"""The reference check of align mode in the engine: read from the bytes of every cached state how
many tokens it has really seen, and which. The model only counts, so blocks have their real sizes.
"""

from __future__ import annotations

import random

import pytest
from block_engine_cases import CountingModel, assert_nothing_leaks, block_engine, check_counts
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.engine.block import decode
from kdalab.engine.drafters import Scripted

MODEL = CountingModel()
UNEVEN = CountingModel(7, (2, 5))  # state groups of 2, 2 and 1 layers
SHAPES = [(64, 64), (128, 64), (256, 64), (384, 128), (1536, 128), (1536, 512), (12_288, 128)]


@pytest.fixture(autouse=True)
def _count_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    from block_engine_cases import count_verified

    monkeypatch.setattr(decode, "verify_tokens", count_verified)


def stream(n: int, seed: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randrange(4096) for _ in range(n))


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    attention=st.sampled_from([1, 1, 2]),
    packed=st.booleans(),
    uneven=st.booleans(),
    kernel=st.sampled_from([0, 64, 128]),
    interval=st.sampled_from([None, 0, 1]),
    drafts=st.sampled_from([0, 3]),
    mode=st.sampled_from(["align"] * 4 + ["all"]),
    budget=st.integers(1, 60),
    turns=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([-64, -1, 0, 1, 7, 64, 200]), st.booleans()),
        min_size=2,
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_every_cached_state_has_seen_just_the_tokens_of_its_name(
    shape: tuple[int, int],
    attention: int,
    packed: bool,
    uneven: bool,
    kernel: int,
    interval: int | None,
    drafts: int,
    mode: str,
    budget: int,
    turns: list[tuple[int, int, bool]],
    seed: int,
) -> None:
    block, unit = shape
    chance = random.Random(seed)
    base = stream(3 * block + 300, 0)
    engine = block_engine(
        UNEVEN if uneven else MODEL,
        n_blocks=90,
        layout="packed" if packed else "padded",
        state_block=block,
        attention_block=attention * block,
        unit=unit if mode == "align" else None,
        mode=mode,
        kernel_grid=kernel if mode == "align" else 0,
        retention=interval and interval * attention * block,
        chunk_tokens=64 * max(budget, block // 640 + 1),
        draft_tokens=drafts,
        keep_logits=False,
        check_every_step=block < 1000,
    )
    texts = [base]
    for blocks, off, share in turns:
        n = max(2, blocks * block + off)
        start = chance.randrange(n) if share else n
        prompt = (*base[:start], *stream(max(0, n - start), seed))
        prompt = prompt[:n] if share else base[:n]
        request = engine.submit(prompt, chance.randint(0, 5))
        if drafts:  # some right, some wrong
            known = (*prompt, *_greedy(prompt, 8))
            object.__setattr__(engine.config, "drafter", Scripted((known,), miss=3))
        engine.run()
        assert request.finish_reason in ("length", "prefilled")
        assert request.generated == _greedy(prompt, len(request.generated))
        texts.append((*prompt, *request.generated))
        check_counts(engine, texts)
        if mode == "align":  # the same prompt again comes as far as its tail
            tail = (n - 1) // unit * unit - (unit if drafts else 0)
            found = engine.cache.lookup(engine.chain_of(request))
            assert found.restore >= max(0, tail) or request.generated
    engine.check()
    assert_nothing_leaks(engine)


def _greedy(prompt: tuple[int, ...], n: int) -> list[int]:
    from block_engine_cases import digest

    seen, out = digest(prompt), []
    while len(out) < n:
        out.append(int(seen) * 31 % 4096)
        seen = digest((out[-1],), len(prompt) + len(out) - 1, seen)
    return out
