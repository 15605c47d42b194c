"""Drafts are verified: every intermediate state is kept, and one of them is committed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from kdalab.cache.placement import Every
from kdalab.engine import Engine, EngineConfig, Event, Faults, Request
from kdalab.engine import events as ev
from kdalab.engine.config import CELL
from kdalab.errors import KdalabError
from kdalab.lessons.cold import max_difference
from kdalab.lessons.player import Recording, lesson_model, lesson_tokenizer, shown_token
from kdalab.lessons.scenario import LESSON_CONFIG, Prompt, Scenario
from kdalab.lessons.steps import Step
from kdalab.model.verify import rows_of

if TYPE_CHECKING:
    from kdalab.model.verify import VerifyOutput

MAX_DRAFTS = 7
VERIFY_NEW = 20
BOUNDARY = 128

_TEXT = (
    "The ferry leaves the island at six. It calls at two harbours and is back by nine. "
    "Tell the crew when they must be aboard."
)


@dataclass(frozen=True, slots=True)
class KnowingDrafter:
    """Knows the answer, and is wrong about ``percent`` of its positions, always the same ones.

    Whether position p is drafted wrong depends on ``seed`` and p alone, so a token that was
    rejected once would be rejected again, and two runs draft alike.
    """

    text: tuple[int, ...]
    percent: int
    seed: int = 0

    def propose(self, tokens: Sequence[int], n: int) -> tuple[int, ...]:
        """The next ``n`` tokens of ``text`` after as many as ``tokens`` has."""
        at = len(tokens)
        return tuple(
            token ^ 1 if self.is_wrong(at + i) else token
            for i, token in enumerate(self.text[at : at + n])
        )

    def is_wrong(self, position: int) -> bool:
        """Whether the draft for ``position`` is wrong."""
        return random.Random(f"{self.seed}/{position}").random() * 100 < self.percent


@dataclass(frozen=True, slots=True)
class KeptState:
    """The state after one token of a verify step.

    ``off`` is max |difference| from the state that plain decoding has after as many tokens;
    ``fate`` is "committed", "boundary" (kept as a checkpoint), "passed" (right, not needed) or
    "rejected".
    """

    token: int
    seen: int
    off: float
    fate: str


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """One verify step: the tokens that went in, the states that came out, what was committed.

    ``committed_off`` is of the state that the slot holds afterwards, read from it.
    """

    position: int
    drafted: tuple[int, ...]
    chosen: tuple[int, ...]
    accepted: int
    kept: tuple[KeptState, ...]
    committed_off: float


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The whole run. ``verifies`` maps a step to what it verified; ``truth`` and ``generated`` are
    plain decoding's tokens and this run's; ``caught_off`` is max |difference| of the checkpoint
    inside an accepted run from plain decoding's state there (None: there is none)."""

    run: Recording
    verifies: dict[int, VerifyStep]
    truth: tuple[int, ...]
    generated: tuple[int, ...]
    caught_off: float | None
    forwards: int

    @property
    def first_wrong(self) -> int | None:
        """The first generated token that plain decoding does not choose, from 1."""
        pairs = zip(self.generated, self.truth, strict=False)
        return next((i + 1 for i, (a, b) in enumerate(pairs) if a != b), None)


@dataclass(frozen=True, slots=True)
class _Truth:
    tokens: tuple[int, ...]
    states: dict[int, tuple[torch.Tensor, torch.Tensor]]


@lru_cache(maxsize=1)
def _truth() -> _Truth:
    """Plain decoding, one token a forward, with the state after each: no engine, no drafts."""
    model, prompt = lesson_model(), lesson_tokenizer().encode(_TEXT)
    recurrent = torch.zeros(tuple(model.recurrent_shape), dtype=torch.float32)
    conv = torch.zeros(tuple(model.conv_shape), dtype=model.dtype)
    latent = torch.empty((model.n_mla_layers, 0, model.latent_dim), dtype=model.dtype)
    states = {}
    with torch.inference_mode():
        for first in range(0, len(prompt), CELL):
            ids = torch.tensor(prompt[first : first + CELL])
            out = model.prefill_cell(ids, first, recurrent, conv, latent, logits="last")
            recurrent, conv = out.recurrent, out.conv
            latent = torch.cat([latent, out.latent], dim=1)
        assert out.logits is not None
        tokens = [int(out.logits[-1].argmax())]
        states[len(prompt)] = recurrent, conv
        while len(tokens) < VERIFY_NEW:
            step = model.decode(
                torch.tensor(tokens[-1:]), [latent.shape[1]], recurrent[None], conv[None], [latent]
            )
            recurrent, conv = step.recurrent[0], step.conv[0]
            latent = torch.cat([latent, step.latent[0].unsqueeze(1)], dim=1)
            tokens.append(int(step.logits[0].argmax()))
            states[latent.shape[1]] = recurrent, conv
    return _Truth(tuple(tokens), states)


def _off(truth: _Truth, seen: int, recurrent: torch.Tensor, conv: torch.Tensor) -> float:
    other = truth.states.get(seen)
    if other is None:
        return 0.0
    return max(max_difference(recurrent, other[0]), max_difference(conv, other[1]))


class _Watched(Engine):
    """An engine whose verify steps are looked at while all their states are there."""

    def __init__(self, config: EngineConfig, truth: _Truth) -> None:
        super().__init__(lesson_model(), config)
        self.truth = truth
        self.seen: list[VerifyStep] = []
        self.caught: float | None = None

    def verified(self, request: Request, drafted: tuple[int, ...], out: VerifyOutput) -> None:
        at, chosen = request.computed, tuple(out.logits.argmax(-1).tolist())
        agree = [a == b for a, b in zip(drafted, chosen, strict=False)]
        accepted = agree.index(False) if False in agree else len(agree)
        spoiled = self.config.faults.keep_rejected and accepted < len(drafted)
        kept = []
        for t, token in enumerate((request.token_at(at), *drafted)):
            off = _off(self.truth, at + t + 1, out.recurrent[t], out.conv[t])
            fate = "rejected" if t > accepted else "passed"
            if t == (len(drafted) if spoiled else accepted):
                fate = "committed"
            elif t <= accepted and self.config.keeps_decoded(at + t + 1) and not spoiled:
                fate = "boundary"
            kept.append(KeptState(token, at + t + 1, off, fate))
        self.seen.append(VerifyStep(at, drafted, chosen, accepted, tuple(kept), 0.0))

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, ev.Snapshotted) and event.boundary == BOUNDARY:
            held = self.checkpoints.read(event.checkpoint_slot)
            self.caught = _off(self.truth, event.boundary, *held)
        if isinstance(event, ev.Decoded) and self.seen:
            request = self.requests[event.request]
            held = self.active.read(request.active_slot)
            off = _off(self.truth, request.computed, *held)
            self.seen[-1] = replace(self.seen[-1], committed_off=off)


def play_verify(drafts: int = 4, percent: int = 30, fault: bool = False) -> VerifyRun:
    """Decode ``VERIFY_NEW`` tokens with ``drafts`` drafted ones a step, ``percent`` of them wrong.

    ``fault`` commits the state of the last draft although it was rejected.

    Raises:
        KdalabError: drafts outside 1 .. ``MAX_DRAFTS``, or no percentage.
    """
    if not 1 <= drafts <= min(MAX_DRAFTS, rows_of(lesson_model()) - 1) or not 0 <= percent <= 100:
        raise KdalabError(f"{drafts} drafts, {percent} % wrong; use 1 to {MAX_DRAFTS} and 0 to 100")
    truth = _truth()
    prompt = tuple(lesson_tokenizer().encode(_TEXT))
    config = replace(
        LESSON_CONFIG,
        n_pages=24,
        n_active=2,
        n_checkpoints=4,
        placement=Every(CELL),
        decode_interval=CELL,
        draft_tokens=drafts,
        drafter=KnowingDrafter((*prompt, *truth.tokens), percent),
        keep_logits=False,
        faults=Faults(keep_rejected=fault),
    )
    engine = _Watched(config, truth)
    request = engine.submit(prompt, VERIFY_NEW, "A")
    engine.run()
    steps, verifies, forwards = _steps(engine)
    scenario = Scenario("verify", "Verify", "?", "", (Prompt("A", _TEXT, VERIFY_NEW),), config)
    run = Recording(
        scenario, tuple(engine.events), engine.empty_view(),
        {"A": tuple(shown_token(t) for t in prompt)}, steps, (), (), config.page_tokens,
        engine.latents.page_bytes, engine.active.recurrent[0].nbytes,
        engine.active.conv[0].nbytes, 0.0,
    )  # fmt: skip
    return VerifyRun(run, verifies, truth.tokens, tuple(request.generated), engine.caught, forwards)


def _steps(engine: _Watched) -> tuple[tuple[Step, ...], dict[int, VerifyStep], int]:
    """The opening, the prompt, one step for each forward that generates, the end."""
    steps = [Step(0, "Start", kind="Start")]
    verifies: dict[int, VerifyStep] = {}
    starts = [
        i for i, e in enumerate(engine.events)
        if isinstance(e, ev.Verified | ev.Finished)
        or (isinstance(e, ev.Decoded) and _is_plain(engine.events, i))
    ]  # fmt: skip
    count = 0
    for first, last in zip([0, *starts], [*starts, len(engine.events)], strict=True):
        if first == last:
            continue
        head = engine.events[first]
        group = engine.events[first:last]
        kind = {"Verified": "Verified", "Finished": "Finished", "Decoded": "Decoded"}.get(
            head.name, "Prompt"
        )
        tone = "finish" if kind == "Finished" else "compute"
        if any(isinstance(e, ev.Snapshotted) for e in group) and kind != "Prompt":
            tone = "snapshot"
        if kind == "Verified":
            verifies[len(steps)] = engine.seen[count]
            count += 1
        if any(isinstance(e, ev.FaultInjected) for e in group):
            tone = "evict"
        steps.append(Step(last, kind, ("active:0",), tone, "A", (), kind))
    plain = sum(s.kind == "Decoded" for s in steps)
    return tuple(steps), verifies, count + plain


def _is_plain(events: list[Event], index: int) -> bool:
    """A token of a forward without drafts: the last event that is no token is no verification,
    and the prompt has had its own first token."""
    before = [e for e in events[:index] if isinstance(e, ev.Verified | ev.Decoded)]
    if not before:
        return False
    for tokens, e in enumerate(reversed(before)):
        if isinstance(e, ev.Verified):
            return tokens > e.accepted
    return True
