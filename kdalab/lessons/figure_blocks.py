"""Block layouts and match units for figures: bytes lost by block size, tokens gained by unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdalab.cache import (
    GroupKind,
    attention_block,
    group_layers,
    layer_specs,
    packed_layout,
    padded_layout,
)
from kdalab.errors import KdalabError
from kdalab.lab import Setup, replay_setup
from kdalab.lab.request import Trace
from kdalab.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Waste:
    """One block size in tokens: bytes of a request in use and lost (padding of pages, empty
    places, the open end of the last block), under both layouts; ``padded`` is None where an
    attention page cannot hold a state. ``needed`` is what the request's data weigh."""

    block: int
    needed: int
    padded: int | None
    packed: int

    def share(self, layout: str) -> float | None:
        """Bytes lost over bytes taken, 0 to 1."""
        lost = self.padded if layout == "padded" else self.packed
        return None if lost is None else lost / (lost + self.needed)


@dataclass(frozen=True, slots=True)
class WasteCurve:
    """A model's curve; ``smallest`` is the first block whose attention page holds a state."""

    model: str
    smallest: int
    points: tuple[Waste, ...]


def waste_by_block(
    spec: ModelSpec, blocks: Sequence[int], context: int, states: int, *, tp: int = 1
) -> WasteCurve:
    """Bytes lost by a request of ``context`` tokens that keeps ``states`` states, by block size.

    Raises:
        KdalabError: a block, context or number of states below 1; a model of one layer type.
    """
    if min([context, states, *blocks], default=0) < 1:
        raise KdalabError("blocks, context and states are 1 or more")
    align = 16
    layers = layer_specs(spec, tp_size=tp, align=align)
    state = next(s for s in layers if s.kind is GroupKind.STATE)
    token = next(s for s in layers if s.kind is GroupKind.FULL).token_bytes
    n_full = sum(s.kind is GroupKind.FULL for s in layers)
    n_state = len(layers) - n_full
    needed = n_full * token * context + n_state * state.page_bytes * states
    smallest = attention_block(state.page_bytes, token, align)
    points = []
    for block in blocks:
        groups = group_layers(layer_specs(spec, tp_size=tp, align=align, block=block))
        count = [-(-context // block) if g.kind is GroupKind.FULL else states for g in groups]
        taken = sum(count) * packed_layout(groups).stride
        padded = None
        if block >= smallest:
            padded = sum(count) * padded_layout(groups).stride - needed
        points.append(Waste(block, needed, padded, taken - needed))
    return WasteCurve(spec.name, smallest, tuple(points))


@dataclass(frozen=True, slots=True)
class UnitGain:
    """One match unit in tokens: shares of prompt tokens (0 to 1) restored and known."""

    unit: int
    restored: float
    known: float
    states: int


def gains_by_unit(
    trace: Trace, model: str, memory: int, block: int, units: Sequence[int]
) -> tuple[UnitGain, ...]:
    """The block cache on ``trace``, once for each ``prefix_match_unit``.

    Raises:
        KdalabError: a unit that the block or the trace does not allow; too little memory.
    """
    out = []
    for unit in units:
        text = f"model={model} memory={memory} cache=block block={block} unit={unit}"
        r = replay_setup(trace, Setup.parse(text))
        out.append(UnitGain(unit, r.hit_rate, r.kv_only_hit_rate, r.states_written))
    return tuple(out)


def hits_by_policy(
    trace: Trace, model: str, memory: int, settings: dict[str, str]
) -> dict[str, tuple[str, int, int, int]]:
    """Name of a policy -> (setup, tokens restored, tokens known, tokens in all) on ``trace``.

    Raises:
        KdalabError: a setting that does not exist, or too little memory for one request.
    """
    out = {}
    for name, text in settings.items():
        setup = Setup.parse(f"model={model} memory={memory} {text}")
        r = replay_setup(trace, setup)
        out[name] = (str(setup), r.hit_tokens, r.known_tokens, r.input_tokens)
    return out
