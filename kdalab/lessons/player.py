"""Playing a scenario: the real engine on the tiny model, and everything a page needs to show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from kdalab.cache.protocol import Added, Split
from kdalab.engine import Engine, EngineConfig, Event, Faults, View, fold
from kdalab.engine import events as ev
from kdalab.lessons.cold import Measured, RunState, cold_run, measure
from kdalab.lessons.scenario import Prompt, Scenario
from kdalab.lessons.steps import Step, steps_of

if TYPE_CHECKING:
    from kdalab.model import ByteTokenizer, HybridModel


@dataclass(frozen=True, slots=True)
class StateImage:
    """The recurrent state of a checkpoint, to be looked at: [KDA layer, value head, V, K], fp32.

    It is what slot ``slot`` held from event ``event_index`` on.
    """

    event_index: int
    slot: int
    boundary: int
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished run, as plain data: immutable, picklable, and enough for every picture.

    ``texts`` holds each token of each prompt as it may be printed; ``page_bytes``,
    ``recurrent_bytes`` and ``conv_bytes`` are the sizes of one latent page and of the two halves
    of one state slot; ``seconds`` is how long the engine ran, cold runs not counted.
    """

    scenario: Scenario
    events: tuple[Event, ...]
    start: View
    texts: dict[str, tuple[str, ...]]
    steps: tuple[Step, ...]
    measured: tuple[Measured, ...]
    states: tuple[StateImage, ...]
    page_tokens: int
    page_bytes: int
    recurrent_bytes: int
    conv_bytes: int
    seconds: float

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one state slot: recurrent and conv together."""
        return self.recurrent_bytes + self.conv_bytes

    def view(self, step: int) -> View:
        """Everything as it stands at step ``step`` (0 = before the first event)."""
        return fold(self.events[: self.steps[step].event_index], self.start)

    def match_at(self, step: int) -> ev.Matched | None:
        """The latest look-up of this step's request, if it has been made; of a step that is no
        request's, the latest of all."""
        here = self.steps[step]
        past = [e for e in self.events[: here.event_index] if isinstance(e, ev.Matched)]
        found = [e for e in past if here.request in ("", e.request)]
        return found[-1] if found else None

    def faulty_at(self, step: int) -> dict[str, str]:
        """Requests whose state is wrong on purpose by now, with the fault's name."""
        past = self.events[: self.steps[step].event_index]
        return {e.request: e.fault for e in past if isinstance(e, ev.FaultInjected)}

    def owners_at(self, step: int) -> dict[int, str]:
        """Node of the tree -> the request whose prompt put it there."""
        owners: dict[int, str] = {}
        for event in self.events[: self.steps[step].event_index]:
            for change in event.changes if isinstance(event, ev.Inserted) else ():
                match change:
                    case Added(node=node):
                        owners[node] = event.request
                    case Split(node=lower, upper=upper):
                        owners[upper] = owners.get(lower, event.request)
        return owners

    def image(self, slot: int, step: int) -> StateImage | None:
        """What checkpoint ``slot`` holds at ``step``."""
        here = self.steps[step].event_index
        found = [s for s in self.states if s.slot == slot and s.event_index <= here]
        return found[-1] if found else None


class _Watched(Engine):
    """An engine that copies out what a lesson shows or measures, as the events happen."""

    def __init__(self, model: HybridModel, config: EngineConfig) -> None:
        super().__init__(model, config)
        self.images: list[StateImage] = []
        self.at_prompt_end: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def emit(self, event: Event) -> None:
        super().emit(event)
        match event:
            case ev.Snapshotted(checkpoint_slot=slot, boundary=boundary):
                values = self.checkpoints.read(slot)[0].numpy()
                self.images.append(StateImage(len(self.events), slot, boundary, values))
            case ev.Donated(slot=slot, boundary=boundary):
                values = self.checkpoints.read(slot)[0].numpy()
                self.images.append(StateImage(len(self.events), slot, boundary, values))
            case ev.Decoded(request=name) if name not in self.at_prompt_end:
                request = self.requests[name]
                recurrent, conv = self.active.read(request.active_slot)
                latent = self.latents.gather(request.pages, request.n_tokens)
                self.at_prompt_end[name] = (recurrent.clone(), conv.clone(), latent.clone())


_PLAYING = threading.Lock()


def play(
    scenario: Scenario,
    *,
    clean: int | None = None,
    look: Callable[[Engine], None] | None = None,
) -> Recording:
    """Run the scenario in the engine, every rule checked after every step, and measure it.

    Every request but the first is compared with a cold run of its own prompt.

    Args:
        scenario: what to run.
        clean: arrivals before the scenario's faults are switched on; by default all but the last.
            Prompts that arrive together are one arrival.
        look: called with the engine when everything has ended, for what the log does not hold.

    Raises:
        KdalabError: the scenario does not fit its own engine.
        InvariantError: a rule broke, and it says which.
    """
    # One thread for matrices this small: more of them only wait for each other. The count is the
    # process's, so plays take turns; the engine and the cold run see the same one.
    with _PLAYING:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return _play(scenario, clean, look)
        finally:
            torch.set_num_threads(threads)


def _play(
    scenario: Scenario, clean: int | None, look: Callable[[Engine], None] | None
) -> Recording:
    model, tokenizer = lesson_model(), lesson_tokenizer()
    # What a fault spoils never enters the cache, so it is switched on when the prompts before have
    # filled the tree as usual.
    engine = _Watched(model, replace(scenario.config, faults=Faults()))
    tokens = {p.name: tuple(tokenizer.encode(p.text)) for p in scenario.prompts}
    arrivals = _arrivals(scenario)
    started = time.perf_counter()
    for number, group in enumerate(arrivals):
        if number == (len(arrivals) - 1 if clean is None else clean):
            engine.config = scenario.config
        for prompt in group:
            engine.submit(tokens[prompt.name], prompt.max_new_tokens, prompt.name)
        engine.run()
    seconds = time.perf_counter() - started
    measured = []
    for prompt in scenario.prompts[1:]:
        request = engine.requests[prompt.name]
        run = RunState(
            *engine.at_prompt_end[prompt.name],
            torch.stack(request.logits),
            tuple(request.generated),
        )
        cold = _cold(tokens[prompt.name], prompt.max_new_tokens)
        measured.append(measure(prompt.name, request.n_tokens, request.restore, run, cold))
    if look is not None:
        look(engine)
    names = [p.name for p in scenario.prompts]
    return Recording(
        scenario,
        tuple(engine.events),
        engine.empty_view(),
        {name: tuple(_shown(tokenizer, t) for t in ids) for name, ids in tokens.items()},
        steps_of(engine.events, names),
        tuple(measured),
        tuple(engine.images),
        scenario.config.page_tokens,
        engine.latents.page_bytes,
        engine.active.recurrent[0].nbytes,
        engine.active.conv[0].nbytes,
        seconds,
    )


@lru_cache(maxsize=24)
def _cold(tokens: tuple[int, ...], n: int) -> RunState:
    """The yardstick of a prompt: the same whatever a page's controls say."""
    return cold_run(lesson_model(), tokens, n)


def _arrivals(scenario: Scenario) -> list[list[Prompt]]:
    """The prompts by moment of arrival."""
    groups: list[list[Prompt]] = []
    for prompt in scenario.prompts:
        if prompt.together and groups:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    return groups


@lru_cache(maxsize=1)
def lesson_model() -> HybridModel:
    """The tiny hybrid model that every lesson runs, made once a process."""
    from kdalab.model import tiny_model

    return tiny_model()


@lru_cache(maxsize=1)
def lesson_tokenizer() -> ByteTokenizer:
    """One byte, one token: what a reader counts is what the engine counts."""
    from kdalab.model import ByteTokenizer

    return ByteTokenizer()


def shown_token(token: int) -> str:
    """One token as printable text; the id in brackets where it is no byte."""
    return _shown(lesson_tokenizer(), token) if token < 256 else f"[{token}]"


def _shown(tokenizer: ByteTokenizer, token: int) -> str:
    """One token as printable text; a byte inside a longer character shows as a middle dot."""
    text = tokenizer.decode([token])
    if text == "\n":
        return "↵"
    return text if text.isprintable() and "\ufffd" not in text else "·"
