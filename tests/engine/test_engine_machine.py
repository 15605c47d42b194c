"""Random requests through the real engine and the real tiny model, checked after every step.

What must hold whatever happens: the invariants (``Engine.check``), the log folds to the live
objects, and every request's numbers are those of a run of its own prompt from nothing, bit for
bit. Small pools make evictions, waiting and skipped checkpoints common; free memory is poisoned.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from engine_cases import TINY as MODEL
from engine_cases import assert_nothing_leaks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kdalab.cache import Bytes, parse_placement
from kdalab.cache.transfers import Flight
from kdalab.engine import Engine, EngineConfig, HostConfig, Phase, copies, fold, transfers
from kdalab.engine.drafters import PromptLookup
from kdalab.engine.view import View, apply

# Prompts are made of these runs of tokens, so that they share prefixes and part in odd places.
PIECES = [tuple((7 * i + j * j) % 250 for j in range(n)) for i, n in enumerate((64, 40, 96, 5))]

hits = st.integers(1, 2)
prompts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(
    lambda parts: tuple(t for part in parts for t in part)
)


@lru_cache(maxsize=512)
def straight(tokens: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """(logits of all tokens, recurrent, conv, latent) of a prompt computed from nothing, without
    engine, cache or pools."""
    recurrent, conv, latent = MODEL.zero_state()
    logits = []
    for at in range(0, len(tokens), 64):
        out = MODEL.prefill_cell(
            torch.tensor(tokens[at : at + 64]), at, recurrent, conv, latent, "all"
        )
        recurrent, conv = out.recurrent, out.conv
        latent = torch.cat([latent, out.latent], 1)
        logits.append(out.logits)
    return torch.cat(logits), recurrent, conv, latent


@lru_cache(maxsize=512)
def continued(tokens: tuple[int, ...], n: int) -> tuple[tuple[int, ...], torch.Tensor]:
    """(greedy tokens, the logits each came from) after a prompt, alone in its batch."""
    logits, recurrent, conv, latent = straight(tokens)
    rows = [logits[-1]]
    out = [int(rows[-1].argmax())]
    while len(out) < n:
        step = MODEL.decode(
            torch.tensor(out[-1:]), [latent.shape[1]], recurrent[None], conv[None], [latent]
        )
        recurrent, conv = step.recurrent[0], step.conv[0]
        latent = torch.cat([latent, step.latent[0][:, None]], 1)
        rows.append(step.logits[0])
        out.append(int(rows[-1].argmax()))
    return tuple(out), torch.stack(rows)


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine | None = None

    @precondition(lambda self: self.engine is None)
    @rule(
        page=st.sampled_from([8, 16, 64]),
        memory=st.integers(320, 900),
        checkpoints=st.integers(1, 6),
        active=st.integers(1, 4),
        chunk=st.sampled_from([64, 128, 320]),
        placement=st.sampled_from(["every:64", "every:128", "leaf", "leaf+branch", "all"]),
        strategy=st.sampled_from(["copy", "extra_buffer", "extra_buffer_lazy"]),
        overlap=st.booleans(),
        unified=st.booleans(),
        lazy=st.booleans(),
        reserve=st.booleans(),
        drafts=st.sampled_from([0, 3]),
        host=st.none() | st.builds(HostConfig, st.integers(4, 60), st.integers(1, 6), hits),
        retention=st.sampled_from(["lru", "lru-path", "lru+cap:1", "lru-path+cap:2"]),
    )
    def start(
        self,
        page: int,
        memory: int,
        checkpoints: int,
        active: int,
        chunk: int,
        placement: str,
        strategy: str,
        overlap: bool,
        unified: bool,
        lazy: bool,
        reserve: bool,
        drafts: int,
        host: HostConfig | None,
        retention: str,
    ) -> None:
        if strategy != "copy" and active + checkpoints < 5:
            checkpoints = 5  # what one request needs when slots are donated
        self.engine = Engine(
            MODEL,
            EngineConfig(
                page_tokens=page,
                n_pages=-(-memory // page),
                n_active=active,
                n_checkpoints=checkpoints,
                chunk_tokens=chunk,
                placement=parse_placement(placement),
                keep_logits=True,
                strategy=strategy,
                overlap=overlap,
                memory="unified" if unified else "split",
                lazy_compaction=lazy,
                reserve_output=reserve,
                draft_tokens=drafts,
                drafter=PromptLookup(1),
                host=host,
                retention=retention,
            ),
        )
        self.folded: View = self.engine.empty_view()
        self.seen = 0

    @precondition(lambda self: self.engine is not None)
    @rule(tokens=prompts, new=st.integers(0, 4))
    def submit(self, tokens: tuple[int, ...], new: int) -> None:
        if len(tokens) + new <= self.engine.page_limit * self.engine.config.page_tokens:
            self.engine.submit(tokens, new)

    @precondition(lambda self: self.engine is not None)
    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()
            self.compare_states()
            self.holds()

    @precondition(lambda self: self.engine is not None and self.engine.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = [
            r.name for r in self.engine.requests.values() if r.is_running or r.phase == "waiting"
        ]
        if live:
            self.engine.abort(data.draw(st.sampled_from(live)))

    @precondition(lambda self: self.engine is not None and self.engine.running)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        self.engine.retract(data.draw(st.sampled_from(self.engine.running)), "on purpose")

    @precondition(lambda self: self.engine is not None and self.engine.running)
    @rule(data=st.data())
    def copy_now(self, data: st.DataObject) -> None:
        """A deferred copy is made at any moment before its forward, in any order."""
        self.engine.settle(data.draw(st.sampled_from(self.engine.running)).name)

    @precondition(lambda self: self.engine is not None and self.engine.buffer is not None)
    @rule(moves=st.integers(1, 3))
    def compact(self, moves: int) -> None:
        self.engine.buffer.compact(moves)

    @precondition(lambda self: self.engine is not None and self.engine.buffer is not None)
    @rule()
    def step_while_a_transfer_holds_the_gate(self) -> None:
        with self.engine.buffer.gate():
            self.engine.say_moves()
            first = len(self.engine.events)
            self.engine.step()
            assert "Moved" not in {x.name for x in self.engine.events[first:]}
            self.holds()

    @precondition(lambda self: self.engine is not None and self.engine.host is not None)
    @rule(need=st.sampled_from([Bytes(kv=10**9), Bytes(state=10**9), Bytes(kv=1, state=1)]))
    def forget_on_the_device(self, need: Bytes) -> None:
        """What the host holds has to come back from there."""
        self.engine.give_back(self.engine.cache.evict(need), "", "on purpose")

    @precondition(lambda self: self.engine is not None and self.flights())
    @rule(data=st.data())
    def a_transfer_fails(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.flights())).job
        transfers.fail(self.engine, job, "on purpose")

    def flights(self) -> list[Flight]:
        tier = self.engine.cache.host
        return list(tier.flights.values()) if tier is not None else []

    @precondition(lambda self: self.engine is not None)
    @rule()
    def drain(self) -> None:
        self.engine.run(max_steps=500)

    def compare_states(self) -> None:
        """The private state of each request that has just finished its prefill."""
        for r in self.engine.running:
            if r.phase is not Phase.DECODE or r.computed != r.n_tokens:
                continue
            _, recurrent, conv, latent = straight(r.tokens)
            mine = copies.read_state(self.engine, r)
            assert torch.equal(mine[0], recurrent)
            assert torch.equal(mine[1], conv)
            assert torch.equal(self.engine.latents.gather(r.pages, r.n_tokens), latent)

    @invariant()
    def holds(self) -> None:
        if self.engine is None:
            return
        self.engine.say_moves()
        self.engine.check()
        for event in self.engine.events[self.seen :]:
            apply(self.folded, event)
        self.seen = len(self.engine.events)
        assert self.folded == self.engine.view()

    def teardown(self) -> None:
        if self.engine is None:
            return
        engine = self.engine
        engine.run(max_steps=1000)
        self.holds()
        assert fold(engine.events, engine.empty_view()) == engine.view()
        assert_nothing_leaks(engine)
        for r in engine.requests.values():
            if len(r.logits) > r.n_tokens - r.restore > 0:
                logits = torch.stack(r.logits)[: r.n_tokens - r.restore]
                assert torch.equal(logits, straight(r.tokens)[0][r.restore :][: len(logits)])
            if r.generated:
                tokens, logits = continued(r.tokens, len(r.generated))
                assert tuple(r.generated) == tokens
                if r.logits:  # a retraction forgets them
                    mine = torch.stack(r.logits)[-len(tokens) :]
                    assert torch.equal(mine, logits[-len(r.logits) :])
            if r.phase is Phase.FINISHED and r.finish_reason == "length":
                assert len(r.generated) == r.max_new_tokens


EngineMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=14, deadline=None)
TestEngineMachine = pytest.mark.timeout(240)(EngineMachine.TestCase)
