"""How a model's layers share blocks: groups, pages, and the three layouts compared in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from kdalab.cache import (
    BlockLayout,
    Group,
    GroupKind,
    attention_block,
    group_layers,
    layer_specs,
    packed_layout,
    padded_layout,
)
from kdalab.errors import KdalabError
from kdalab.spec import PRESETS, ModelSpec


@dataclass(frozen=True, slots=True)
class LayoutBytes:
    """One layout. Per group and block, in bytes: real data, page padding, empty places.

    ``used_total``, ``page_total`` and ``place_total`` are those of one prompt's KV blocks and of
    its states.
    """

    name: str
    layout: BlockLayout
    block: int
    used: tuple[int, ...]
    pages: tuple[int, ...]
    places: tuple[int, ...]
    used_total: int
    page_total: int
    place_total: int

    @property
    def lost_total(self) -> int:
        """Bytes that hold nothing."""
        return self.page_total + self.place_total


@dataclass(frozen=True, slots=True)
class GroupingRun:
    """A model's groups. Bytes of one layer on one rank; ``exact`` are the tokens whose KV weighs
    as much as a state, ``block`` those rounded up to ``align``; ``refusal`` is what the padded
    layout says to a block one step smaller."""

    model: ModelSpec
    tp: int
    align: int
    state_bytes: int
    conv_bytes: int
    token_bytes: int
    exact: float
    block: int
    context: int
    states: int
    layouts: tuple[LayoutBytes, ...]
    refusal: str

    @property
    def page_bytes(self) -> int:
        """The padded layout's one page size."""
        return self.block * self.token_bytes


def play_groups(
    model: str,
    tp: int,
    kv_dtype: str,
    align: int,
    context: int,
    states: int,
    one_group: bool = False,
) -> GroupingRun:
    """Sizes of ``model``'s groups under the padded layout, the packed one at the same block, and
    the packed one at the block that fits it.

    Args:
        context: tokens of KV to account for.
        states: states to account for, each a block of every state group.
        one_group: put all layers of one spec into one group, whatever their number.

    Raises:
        KdalabError: a model, dtype or TP size that does not exist or does not fit.
    """
    if model not in PRESETS:
        raise KdalabError(f"model {model!r}; use one of {', '.join(PRESETS)}")
    spec = PRESETS[model].with_dtypes(kv=kv_dtype)
    layers = layer_specs(spec, tp_size=tp, align=align)
    state = next(s for s in layers if s.kind is GroupKind.STATE)
    token = next(s for s in layers if s.kind is GroupKind.FULL).token_bytes
    block = attention_block(state.page_bytes, token, align)
    groups = _whole(group_layers(layers)) if one_group else group_layers(layers)
    fit = _fitting(groups, align)
    smaller = layer_specs(spec, tp_size=tp, align=align, block=fit)
    fitted = _whole(group_layers(smaller)) if one_group else group_layers(smaller)
    layouts = (
        _bytes("padded", padded_layout(groups), context, states),
        _bytes("packed", packed_layout(groups), context, states),
        _bytes("fitted", packed_layout(fitted), context, states),
    )
    return GroupingRun(
        spec, tp, align, state.page_bytes, state.conv_bytes, token, state.page_bytes / token,
        block, context, states, layouts, _refused(spec, tp, align, block),
    )  # fmt: skip


def _whole(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """One group a kind, with all of its layers."""
    found = []
    for kind in GroupKind:
        same = [g for g in groups if g.kind is kind]
        layers = tuple(sorted(n for g in same for n in g.layers))
        found.append(Group(str(kind), same[0].spec, layers))
    return tuple(found)


def _fitting(groups: tuple[Group, ...], align: int) -> int:
    """The most tokens, a multiple of ``align``, whose KV fits the bytes of the largest state
    group; at least one step."""
    room = max(len(g.layers) * g.spec.page_bytes for g in groups if g.kind is GroupKind.STATE)
    full = next(g for g in groups if g.kind is GroupKind.FULL)
    return max(1, room // (len(full.layers) * full.spec.token_bytes * align)) * align


def _bytes(name: str, layout: BlockLayout, context: int, states: int) -> LayoutBytes:
    n = range(len(layout.groups))
    full = next(g for g in layout.groups if g.kind is GroupKind.FULL)
    count = [
        -(-context // full.block_tokens) if g.kind is GroupKind.FULL else states
        for g in layout.groups
    ]
    used = tuple(layout.used_bytes(i) for i in n)
    pages = tuple(layout.page_padding(i) for i in n)
    places = tuple(layout.place_padding(i) for i in n)

    def total(each: tuple[int, ...]) -> int:
        return sum(c * b for c, b in zip(count, each, strict=True))

    return LayoutBytes(
        name, layout, full.block_tokens, used, pages, places, total(used), total(pages),
        total(places),
    )  # fmt: skip


def _refused(spec: ModelSpec, tp: int, align: int, block: int) -> str:
    if block <= align:
        return ""
    try:
        padded_layout(group_layers(layer_specs(spec, tp_size=tp, align=align, block=block - align)))
    except KdalabError as error:
        return str(error)
    return ""
