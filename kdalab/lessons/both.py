"""Running an example both ways: on both engines where they can run it, else on both caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kdalab.cache import (
    BlockConfig,
    Lookup,
    PrefixKey,
    RadixStateCache,
    parse_block_retention,
    parse_placement,
)
from kdalab.engine import Engine, EngineConfig
from kdalab.engine.block import BlockEngine, BlockEngineConfig
from kdalab.engine.config import CELL
from kdalab.errors import KdalabError
from kdalab.lab.block_replay import model_layout
from kdalab.lab.compare import Ask, BlockWay, RadixWay, compare
from kdalab.lab.figures import Comparison, FirstToken
from kdalab.lessons.pairs import PAIRS, Pair, Share
from kdalab.lessons.player import lesson_model
from kdalab.lessons.restore import RESTORE
from kdalab.lessons.scenario import Scenario
from kdalab.lessons.watch import Arrival, Watch, block_figures, bytes_of, radix_figures
from kdalab.spec import preset, state_sizes

MODEL = "tiny"
VOCABULARY = 256
REPEATS = 4
"""Runs of each engine: one whose rules are checked, and three whose times are taken."""

Told = Callable[[str, int, int], None]
"""Hears which engine begins its run, the run's number from 1, and how many there are."""

PAIR_CONFIG = EngineConfig(n_pages=192, n_active=4, n_checkpoints=12, chunk_tokens=256)


@dataclass(frozen=True, slots=True)
class Chapter:
    """What both engines did between one arrival and the next, as sentences."""

    requests: tuple[str, ...]
    radix: tuple[str, ...]
    block: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What one way found for a request: boundaries in tokens, and its reasons."""

    match: int
    restore: int
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as both ways looked it up."""

    request: str
    n_tokens: int
    radix: Found
    block: Found


@dataclass(frozen=True, slots=True)
class BothRun:
    """A comparison and its requests; ``chapters`` are empty where no engine ran."""

    comparison: Comparison
    chapters: tuple[Chapter, ...] = ()
    asked: tuple[Asked, ...] = ()


def _asked(request: str, radix: Lookup, block: Lookup) -> Asked:
    one, two = (Found(x.token_match, x.restore, x.why) for x in (radix, block))
    return Asked(request, radix.n_tokens, one, two)


def examples() -> dict[str, str]:
    """Every name that :func:`run_both` takes, with one sentence each."""
    pairs = {name: pair.lead for name, pair in PAIRS.items()}
    return {**pairs, **{name: lesson.lead for name, lesson in RESTORE.items()}}


def where(name: str) -> str:
    """Where the example of that name runs: "engines" or "caches"."""
    return "caches" if name in PAIRS and not PAIRS[name].on_engines else "engines"


def run_both(name: str, repeats: int = REPEATS, on_run: Told | None = None) -> BothRun:
    """Run the example of that name both ways.

    ``repeats`` and ``on_run`` are those of :func:`engines_side_by_side`.

    Raises:
        KdalabError: no such example; lists the known ones.
    """
    if name in PAIRS:
        pair = PAIRS[name]
        if pair.on_engines:
            return pair_on_engines(pair, repeats, on_run)
        asked: list[Asked] = []
        found = pair_on_caches(pair, on_lookup=lambda *a: asked.append(_asked(*a)))
        return BothRun(found, (), tuple(asked))
    if name in RESTORE:
        return scenario_on_engines(RESTORE[name], repeats, on_run)
    raise KdalabError(
        f"no scenario is named {name!r}; known: {', '.join(examples())}. "
        "A trace is given by its path"
    )


# -- without a model -------------------------------------------------------------------------


def tokens_of(prompt: Share, index: int, vocabulary: int = 1 << 30) -> np.ndarray:
    """int32 ids [token]: the shared beginning is the same for all, the rest is this prompt's own
    from its first token on."""
    base = np.arange(prompt.tokens, dtype=np.int64) * 7 % 251
    own = (base + 1 + 10 * index) % 251 if index else base
    ids = np.where(np.arange(prompt.tokens) < prompt.shared, base, own)
    return (ids % vocabulary).astype(np.int32)


def pair_on_caches(
    pair: Pair,
    check: bool = True,
    on_lookup: Callable[[str, Lookup, Lookup], None] | None = None,
) -> Comparison:
    """Both caches alone, with unlimited bytes of the tiny model's sizes."""
    spec = preset(MODEL)
    sizes = state_sizes(spec)
    layout = model_layout(spec, pair.unit or pair.block, pair.block)
    blocks = sum(-(-p.tokens // pair.block) + 4 for p in pair.prompts) * len(layout.groups)
    config = BlockConfig(
        layout.groups,
        blocks + 1,
        unit=pair.unit,
        retention=parse_block_retention(pair.block_retention),
        block_bytes=layout.stride,
    )
    page = sizes.latent_bytes(pair.page)
    cache = RadixStateCache(pair.page, pair.grid, page, sizes.checkpoint_bytes)
    found = compare(
        _asks(pair),
        RadixWay(cache, parse_placement(pair.checkpoints)),
        BlockWay(config, layout),
        pair.name,
        spec.name,
        check_every=int(check),
        on_lookup=on_lookup,
    )
    found.assumptions = (
        "both caches without a model: no engine here can stop at these boundaries, or in so many "
        "tokens' time",
        f"bytes are those of the model {MODEL}",
    )
    return found


def _asks(pair: Pair) -> Iterator[Ask]:
    for index, prompt in enumerate(pair.prompts):
        yield Ask(f"prompt {prompt.name}", partial(_key, tokens_of(prompt, index)))


def _key(tokens: np.ndarray, page: int) -> PrefixKey:
    return PrefixKey.from_tokens(tokens, page)


# -- on the engines --------------------------------------------------------------------------


def pair_on_engines(pair: Pair, repeats: int = REPEATS, on_run: Told | None = None) -> BothRun:
    """The real engines on the tiny model, with equal bytes."""
    arrivals = [
        Arrival(p.name, tuple(map(int, tokens_of(p, i, VOCABULARY))))
        for i, p in enumerate(pair.prompts)
    ]
    radix = replace(PAIR_CONFIG, page_tokens=pair.page, placement=parse_placement(pair.checkpoints))
    block = BlockEngineConfig(
        attention_block=pair.block,
        unit=pair.unit,
        retention=parse_block_retention(pair.block_retention).interval,
    )
    return engines_side_by_side(pair.name, arrivals, radix, block, repeats, on_run)


def scenario_on_engines(
    scenario: Scenario, repeats: int = REPEATS, on_run: Told | None = None
) -> BothRun:
    """A lesson on the real engines: its own settings for the tree, hashes of a cell for blocks."""
    arrivals = [
        Arrival(p.name, tuple(p.text.encode()), p.max_new_tokens, p.together)
        for p in scenario.prompts
    ]
    return engines_side_by_side(
        scenario.name, arrivals, scenario.config, BlockEngineConfig(unit=CELL), repeats, on_run
    )


def engines_side_by_side(
    name: str,
    arrivals: Sequence[Arrival],
    radix: EngineConfig,
    block: BlockEngineConfig,
    repeats: int = REPEATS,
    on_run: Told | None = None,
) -> BothRun:
    """Send ``arrivals`` through ``Engine`` and ``BlockEngine``, which get the same bytes.

    Figures and sentences are those of the first of ``repeats`` runs, every rule checked after
    every step; the time to the first token is the median of the others, which are unchecked, or
    of the one run where ``repeats`` is 1. ``on_run`` hears of each run before it begins.

    Raises:
        KdalabError: a prompt that one of the engines cannot hold.
        InvariantError: a rule broke, and it says which.
    """
    nbytes = bytes_of(Engine(lesson_model(), radix))
    block = replace(block, total_bytes=nbytes, chunk_tokens=radix.chunk_tokens)
    runs, repeats = [], max(1, repeats)
    for turn in range(repeats):
        safe = turn == 0
        tree = replace(radix, check_every_step=safe, poison=safe, keep_logits=False)
        pool = replace(block, check_every_step=safe, poison=safe, keep_logits=False)
        one = Watch(Engine(lesson_model(), tree))
        two = Watch(BlockEngine(lesson_model(), pool))
        for way, watch in (("radix", one), ("block", two)):
            if on_run is not None:
                on_run(way, turn + 1, repeats)
            watch.play(arrivals)
        runs.append((one, two))
    first, second = runs[0]
    found = Comparison(name, MODEL, nbytes, radix_figures(first), block_figures(second))
    asked = []
    for a, b in zip(first.requests, second.requests, strict=True):
        assert a.lookup is not None  # it has run
        assert b.lookup is not None
        found.note(f"prompt {a.name}", a.lookup, b.lookup)
        asked.append(_asked(f"prompt {a.name}", a.lookup, b.lookup))
    for side, figures in ((0, found.radix), (1, found.block)):
        timed = [run[side].first_token for run in runs[1:] or runs]
        figures.first_token_runs = tuple(FirstToken.of(times) for times in timed)
        figures.first_token = FirstToken.middle(figures.first_token_runs)
    found.assumptions = (
        "both engines run, on the tiny model, with the same bytes for pages, states and blocks",
        f"the time to the first token is measured on this machine, the median of "
        f"{max(1, repeats - 1)} runs, and varies with what else the machine does; differences "
        "below the spread of the runs are noise",
    )
    found.first_token_is = (
        "over the requests of one run, measured on this machine; it varies from run to run"
    )
    chapters = [
        Chapter(names, tuple(e.sentence() for e in a), tuple(e.sentence() for e in b))
        for (names, a), (_, b) in zip(first.chapters, second.chapters, strict=True)
    ]
    return BothRun(found, tuple(chapters), tuple(asked))
