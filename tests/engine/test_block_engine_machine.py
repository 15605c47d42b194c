"""Random requests through the block engine, checked after every step.

Whatever happens: the invariants hold, the log folds to the live objects, and every request's
numbers are those of a run of its own prompt from nothing, bit for bit. Few blocks make
preemption, waiting and lost names common; free memory is poisoned.
"""

from __future__ import annotations

from typing import Any

from block_engine_cases import block_engine, greedy, worst
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kdalab.cache import BlockRetention, Bytes, Lru, Marconi
from kdalab.engine.block import BlockEngine
from kdalab.engine.block.view import apply
from kdalab.errors import KdalabError

# Prompts are made of these runs of tokens, so that they share prefixes and part in odd places.
PIECES = [tuple((7 * i + j * j) % 60 for j in range(n)) for i, n in enumerate((64, 40, 96, 5))]

prompts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map(
    lambda parts: tuple(t for part in parts for t in part)
)


class BlockEngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine: BlockEngine | None = None

    @initialize(
        layout=st.sampled_from(["padded", "packed"]),
        mode=st.sampled_from(["align"] * 4 + ["all", "none"]),
        units=st.integers(1, 4),
        attention=st.sampled_from([1, 1, 2]),
        interval=st.sampled_from([None, 0, 1]),
        alpha=st.sampled_from([None, None, 0.0, 1.5]),
        kernel=st.sampled_from([0, 64]),
        drafts=st.sampled_from([0, 0, 3]),
        eagle=st.sampled_from([None, True]),
        n_blocks=st.integers(12, 40),
        chunk=st.sampled_from([64, 128, 320]),
        running=st.integers(1, 4),
    )
    def start(
        self,
        layout: str,
        mode: str,
        units: int,
        attention: int,
        interval: int | None,
        alpha: float | None,
        kernel: int,
        drafts: int,
        eagle: bool | None,
        n_blocks: int,
        chunk: int,
        running: int,
    ) -> None:
        aligned = mode == "align"
        block = 64 * units
        self.engine = block_engine(
            layout=layout,
            mode=mode,
            state_block=block,
            attention_block=attention * block,
            unit=64 if aligned else None,
            retention=BlockRetention(
                interval and interval * attention * block,
                Lru() if alpha is None else Marconi(alpha),
            ),
            kernel_grid=kernel if aligned else 0,
            draft_tokens=drafts,
            eagle=eagle,
            n_blocks=n_blocks,
            chunk_tokens=chunk,
            max_running=running,
        )
        self.folded = self.engine.empty_view()
        self.read = 0
        self.done: set[str] = set()

    @rule(tokens=prompts, new=st.integers(0, 70))
    def submit(self, tokens: tuple[int, ...], new: int) -> None:
        assert self.engine is not None
        before = len(self.engine.events)
        try:
            self.engine.submit(tokens, new)
        except KdalabError:  # it can never fit
            assert len(self.engine.events) == before

    @rule(n=st.integers(1, 30))
    def steps(self, n: int) -> None:
        assert self.engine is not None
        for _ in range(n):
            self.engine.step()
            self.compare()

    @precondition(lambda self: self.engine is not None and self.engine.requests)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        assert self.engine is not None
        self.engine.abort(data.draw(st.sampled_from(sorted(self.engine.requests))))

    @rule(kv=st.booleans())
    def forget(self, kv: bool) -> None:
        """All cached blocks of one kind lose their names, at once."""
        assert self.engine is not None
        if self.engine.waiting or self.engine.running:
            return
        gone = self.engine.cache.evict(Bytes(kv=1 << 40) if kv else Bytes(state=1 << 40))
        self.engine._scrub()
        for block in (*gone.pages, *gone.states):
            self.folded.slots[block] = self.engine.empty_view().slots[block]

    def compare(self) -> None:
        """Every request that has ended since: its logits, and the tokens that it chose."""
        assert self.engine is not None
        for request in self.engine.requests.values():
            if request.name in self.done or request.finish_reason not in ("length", "prefilled"):
                continue
            self.done.add(request.name)
            if len(request.logits) >= request.n_tokens - request.restore > 0:
                assert worst(request) == 0
            assert request.generated == greedy(request.tokens, request.max_new_tokens)

    @invariant()
    def holds(self) -> None:
        if self.engine is None:
            return
        self.engine.check()
        for event in self.engine.events[self.read :]:
            apply(self.folded, event)
        self.read = len(self.engine.events)
        assert self.folded == self.engine.view()

    def teardown(self) -> None:
        if self.engine is None:
            return
        self.engine.run(5000)
        self.compare()
        self.holds()
        assert self.engine.cache.pool.n_free == self.engine.plan.n_blocks - 1


BlockEngineMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None
)
TestBlockEngineMachine = BlockEngineMachine.TestCase
