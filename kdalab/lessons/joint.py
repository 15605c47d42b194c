"""The joint boundary of all kinds, and what happens where kinds of different boundaries are mixed.

The cache and the restore are the real engine's. The mixtures are run by the model's own functions,
from states of a run from zero; the engine's faults ``skip_replay`` and ``drop_conv`` give the same
bits (``tests/lessons/test_joint.py``).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from kdalab.cache import PrefixKey
from kdalab.cache.placement import Every
from kdalab.engine import Engine
from kdalab.engine.config import CELL
from kdalab.errors import KdalabError
from kdalab.lessons.cold import max_difference
from kdalab.lessons.player import lesson_model, lesson_tokenizer
from kdalab.lessons.scenario import LESSON_CONFIG
from kdalab.spec import StateKind

if TYPE_CHECKING:
    from kdalab.model import HybridModel

NEW_TOKENS = 6
"""Tokens that are generated, greedily, after the prompt."""

MIXES = ("skip-replay", "drop-conv", "other-conv", "one-letter", "other-text")

_SYSTEM = (
    "You are the support agent of a train company. Name the train, the platform and the time. "
    "If a connection is missed, offer the next one and say how long the wait is. Never invent a "
    "platform. Answer in two sentences.\n"
)
_LETTER = (
    "Dear tenant, please fill a bucket in the morning and leave the washing machine off. The key "
    "of the cellar is with the neighbour. The water in your house will be off on {day} from nine "
    "to noon. {order}\n"
)
_OTHER = (
    "Task: find out why the nightly build fails. Read the log. The linker stops at 02:14 with an "
    "undefined symbol. List what changed since the last good build: 14 commits, 3 of them in the "
    "kernel. Bisect. The commit that renames a header is the first bad one. Plan the fix.\n"
)
_LONG_ORDER = "Rewrite this letter for a child of eight, in five short sentences."

JOINT: dict[str, tuple[str, ...]] = {
    "fan-out": (
        (_SYSTEM + "My train from Basel was late; when is the next one to Milan?")[:256],
        _SYSTEM + "Which platform is the Lyon train at?",
    ),
    "edit": (
        _LETTER.format(day="Tuesday", order=_LONG_ORDER)[:256],
        _LETTER.format(day="Thursday", order=_LONG_ORDER)[:256],
    ),
    "edit-late": (
        _LETTER.format(day="Tuesday", order="Rewrite this letter for a child of eight."),
        _LETTER.format(day="Tuesday", order="Rewrite this letter in French, and shorter."),
    ),
    "again": ((_SYSTEM + _OTHER)[:256], (_SYSTEM + _OTHER)[:256]),
    "pressure": (
        (_SYSTEM + "Is there a dining car on the night train to Vienna?")[:256],
        _OTHER[:256],
        (_SYSTEM + "Has the night train to Vienna left on time?")[:256],
    ),
}
"""Example -> the prompts in order of arrival; the page is about the last one."""

_CHECKPOINTS = {"pressure": 3}


@dataclass(frozen=True, slots=True)
class Mix:
    """States of different boundaries or prompts, combined and run on.

    ``resume`` is the first token computed; ``kv``, ``recurrent`` and ``conv`` are the boundaries of
    what was combined (tokens). ``differences`` are max |difference| of the logits against the run
    from zero, at token ``resume``, ``resume`` + 1, ...; they end with the first wrong choice, since
    the two runs read different tokens after it. ``flips`` counts prompt positions whose likeliest
    next token changed; ``first_wrong`` is the place of the first wrong token in the output.
    """

    name: str
    resume: int
    kv: int
    recurrent: int
    conv: int
    differences: tuple[float, ...]
    flips: int
    generated: tuple[int, ...]
    first_wrong: int | None

    @property
    def worst(self) -> float:
        """Largest difference of all."""
        return max(self.differences)

    @property
    def at_end(self) -> float:
        """Difference of the last logits that were compared."""
        return self.differences[-1]


@dataclass(frozen=True, slots=True)
class JointRun:
    """What the cache holds of one prompt, its exact restore, and the mixtures asked for.

    All lengths in tokens. ``checkpoints`` lie on the prompt's path; ``beyond`` hold the states of
    other texts that begin alike. ``exact`` is max |difference| of the engine's logits to the run
    from zero. ``margin`` is the median gap between the two largest logits of a token: a difference
    above it can change the choice. ``slots`` is how many checkpoints fit into the pool.
    """

    n_tokens: int
    page_tokens: int
    spacing: int
    slots: int
    token_match: int
    kv_reach: int
    checkpoints: tuple[int, ...]
    beyond: tuple[int, ...]
    restore: int
    why: tuple[str, ...]
    exact: float
    margin: float
    largest_logit: float
    generated: tuple[int, ...]
    text: str
    mixes: tuple[Mix, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True)
class _Base:
    """Everything that does not depend on what is mixed."""

    run: JointRun
    tokens: tuple[int, ...]
    logits: torch.Tensor  # [token, vocab], prompt and generated, from zero
    states: dict[int, tuple[torch.Tensor, torch.Tensor]]  # boundary -> (recurrent, conv)
    latent: torch.Tensor


_PLAYING = threading.Lock()


def play_joint(example: str, spacing: int, mixes: tuple[str, ...] = ()) -> JointRun:
    """Cache the earlier prompts of ``example``, restore the last one, and try ``mixes`` with it.

    Args:
        example: a key of ``JOINT``.
        spacing: tokens between checkpoints, a multiple of 64.
        mixes: of ``MIXES``. One that has no meaning here (nothing to skip, nothing restored) is
            listed in ``absent``.

    Raises:
        KdalabError: an unknown example or mixture, or a spacing off the grid.
    """
    if example not in JOINT:
        raise KdalabError(f"example {example!r}; use one of {', '.join(JOINT)}")
    for name in mixes:
        if name not in MIXES:
            raise KdalabError(f"mixture {name!r}; use some of {', '.join(MIXES)}")
    with _PLAYING:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            base = _base(example, spacing)
            made = _mixed(base, mixes)
        finally:
            torch.set_num_threads(threads)
    names = {m.name for m in made}
    return replace(base.run, mixes=made, absent=tuple(m for m in mixes if m not in names))


@lru_cache(maxsize=12)
def _base(example: str, spacing: int) -> _Base:
    model, tokenizer = lesson_model(), lesson_tokenizer()
    prompts = [tuple(tokenizer.encode(text)) for text in JOINT[example]]
    config = replace(
        LESSON_CONFIG,
        placement=Every(spacing),
        n_checkpoints=_CHECKPOINTS.get(example, LESSON_CONFIG.n_checkpoints),
    )
    engine = Engine(model, config)
    for i, tokens in enumerate(prompts[:-1]):
        engine.submit(tokens, 1, chr(ord("A") + i))
        engine.run()
    tokens, page = prompts[-1], config.page_tokens
    lookup = engine.cache.lookup(PrefixKey.from_tokens(tokens, page))
    kept = [n for n in engine.cache.nodes.values() if n.state is not None]
    on_path = [n.end for n in kept if n.id in lookup.path and n.end <= lookup.token_match]
    started = [
        n for n in kept
        if n.end > lookup.token_match > n.start and n.parent is not None
        and (n.parent.parent is None or n.parent.id in lookup.path)
    ]  # fmt: skip
    request = engine.submit(tokens, NEW_TOKENS, "last")
    engine.run()
    logits, states, latent, generated = _from_zero(model, tokens)
    own = torch.stack(request.logits)
    top = logits[: len(tokens)].topk(2, -1).values
    run = JointRun(
        len(tokens), page, spacing, config.n_checkpoints, lookup.token_match,
        lookup.reach[StateKind.MLA_KV],
        tuple(sorted(on_path)), tuple(sorted(n.end for n in started)), lookup.restore, lookup.why,
        max_difference(own, logits[lookup.restore :]), float((top[:, 0] - top[:, 1]).median()),
        float(logits.abs().max()), generated, JOINT[example][-1], (), (),
    )  # fmt: skip
    return _Base(run, tokens, logits, states, latent)


def _from_zero(
    model: HybridModel, tokens: tuple[int, ...]
) -> tuple[
    torch.Tensor, dict[int, tuple[torch.Tensor, torch.Tensor]], torch.Tensor, tuple[int, ...]
]:
    """(logits, states by boundary, latent KV of the prompt, generated) of a run from zero."""
    recurrent, conv, latent = model.zero_state()
    states = {0: (recurrent, conv)}
    rows: list[torch.Tensor] = []
    for first in range(0, len(tokens), CELL):
        ids = torch.tensor(tokens[first : first + CELL])
        out = model.prefill_cell(ids, first, recurrent, conv, latent, logits="all")
        recurrent, conv = out.recurrent, out.conv
        latent = torch.cat([latent, out.latent], 1)
        states[first + len(ids)] = (recurrent, conv)
        assert out.logits is not None
        rows.extend(out.logits)
    ((more, generated),) = _decode(model, [(recurrent, conv, latent, rows[-1])])
    return torch.stack([*rows, *more]), states, latent, generated


State = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""(recurrent, conv, latent, logits of the last token)."""


def _decode(
    model: HybridModel, runs: list[State]
) -> list[tuple[list[torch.Tensor], tuple[int, ...]]]:
    """Greedy decoding of several runs in one batch: (logits after each fed token, choices)."""
    recurrent, conv = torch.stack([r[0] for r in runs]), torch.stack([r[1] for r in runs])
    latents = [r[2] for r in runs]
    chosen = [[int(r[3].argmax())] for r in runs]
    rows: list[list[torch.Tensor]] = [[] for _ in runs]
    for _ in range(NEW_TOKENS - 1):
        at = [latent.shape[1] for latent in latents]
        out = model.decode(torch.tensor([c[-1] for c in chosen]), at, recurrent, conv, latents)
        recurrent, conv = out.recurrent, out.conv
        latents = [torch.cat([x, n[:, None]], 1) for x, n in zip(latents, out.latent, strict=True)]
        for i, row in enumerate(out.logits):
            rows[i].append(row)
            chosen[i].append(int(row.argmax()))
    return [(r, tuple(c)) for r, c in zip(rows, chosen, strict=True)]


def _mixed(base: _Base, names: tuple[str, ...]) -> tuple[Mix, ...]:
    """Every mixture that has a meaning here, run to the end."""
    model, run = lesson_model(), base.run
    starts = {name: _start(base, name) for name in names}
    starts = {name: start for name, start in starts.items() if start is not None}
    ends: list[State] = []
    prompts: list[torch.Tensor] = []
    for start in starts.values():
        assert start is not None
        resume, _, recurrent, conv = start
        latent, rows, at = base.latent[:, :resume], [], resume
        while at < run.n_tokens:
            stop = min(run.n_tokens, (at // CELL + 1) * CELL)
            ids = torch.tensor(base.tokens[at:stop])
            out = model.prefill_piece(ids, at, recurrent, conv, latent, logits="all")
            recurrent, conv, at = out.recurrent, out.conv, stop
            latent = torch.cat([latent, out.latent], 1)
            assert out.logits is not None
            rows.append(out.logits)
        prompts.append(torch.cat(rows))
        ends.append((recurrent, conv, latent, prompts[-1][-1]))
    made = []
    for (name, start), prompt, (more, generated) in zip(
        starts.items(), prompts, _decode(model, ends) if ends else [], strict=True
    ):
        assert start is not None
        resume, boundaries, _, _ = start
        pairs = zip(generated, run.generated, strict=True)
        wrong = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        own = torch.cat([prompt, *[m[None] for m in more]])
        count = run.n_tokens - resume + (NEW_TOKENS - 1 if wrong is None else wrong)
        true = base.logits[resume:]
        each = (own[:count].double() - true[:count].double()).abs().amax(-1)
        same = prompt.argmax(-1) == true[: len(prompt)].argmax(-1)
        made.append(
            Mix(
                name, resume, resume, *boundaries, tuple(map(float, each)), int((~same).sum()),
                generated, wrong,
            )
        )  # fmt: skip
    return tuple(made)


Start = tuple[int, tuple[int, int], torch.Tensor, torch.Tensor]
"""(first token computed, boundaries of recurrent and conv state, recurrent, conv)."""


def _start(base: _Base, name: str) -> Start | None:
    """What a mixture begins with; None where it has no meaning."""
    restore = base.run.restore
    recurrent, conv = base.states[restore]
    if name == "skip-replay":
        resume = min(base.run.token_match, base.run.n_tokens - 1)
        return (resume, (restore, restore), recurrent, conv) if resume > restore else None
    if restore == 0:
        return None
    if name == "drop-conv":
        return restore, (restore, 0), recurrent, torch.zeros_like(conv)
    if name == "other-conv":
        other = _states(base.tokens[: restore - 1])[1]
        return restore, (restore, restore - 1), recurrent, other
    if name == "one-letter":
        middle = restore // 2
        changed = base.tokens[middle] ^ 1  # the neighbouring letter of the alphabet
        other_tokens = (*base.tokens[:middle], changed, *base.tokens[middle + 1 : restore])
    else:
        text = (_LETTER if base.run.text.startswith(_SYSTEM[:9]) else _SYSTEM) * 2
        other_tokens = tuple(lesson_tokenizer().encode(text))[:restore]
    return restore, (restore, restore), *_states(other_tokens)


@lru_cache(maxsize=24)
def _states(tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """(recurrent, conv) after ``tokens``, from zero."""
    recurrent, conv, _ = lesson_model().states(tokens)
    return recurrent, conv
