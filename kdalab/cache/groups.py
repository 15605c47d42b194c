"""KV cache groups: layers whose state is kept alike share a block table, and blocks share bytes.

A layer's KV grows by the token; a KDA layer's state has one size. Their block tables differ, so
layers are grouped by equality of their spec, whatever the memory looks like. All groups draw from
one pool of block ids, and a block must fit either kind of page:

* **padded**: one page size for all layers. The attention block is rounded up until its page holds
  a state, then the state's page is padded up to that. Kernels see plain pages in a row.
* **packed**: every layer keeps its own page size; a block's layers lie side by side and the next
  block follows after one stride. Kernels must index by that stride.

Another loss, in either layout: groups have one number of *places* for layers, and a group with
fewer layers leaves places empty. That is a matter of layer counts, not of page sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import gcd, lcm

from kdalab.errors import KdalabError
from kdalab.spec import LayerType, ModelSpec, state_sizes


class GroupKind(StrEnum):
    """How a group's state relates to tokens."""

    FULL = "full"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What one layer keeps in a block. Layers of equal spec can share a block table.

    ``page_bytes`` is what the layer really needs of a block: ``block_tokens`` times
    ``token_bytes`` for attention, one recurrent and conv state for a KDA layer. ``padded_bytes``
    is what it is given; None for just that.
    """

    kind: GroupKind
    block_tokens: int
    token_bytes: int = 0
    recurrent_bytes: int = 0
    conv_bytes: int = 0
    padded_bytes: int | None = None

    @property
    def page_bytes(self) -> int:
        """Bytes of the layer's own data in one block."""
        if self.kind is GroupKind.FULL:
            return self.block_tokens * self.token_bytes
        return self.recurrent_bytes + self.conv_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that one block takes for this layer, padding included."""
        return self.page_bytes if self.padded_bytes is None else self.padded_bytes


@dataclass(frozen=True, slots=True)
class Group:
    """Layers with one block table: their spec, and their 0-based indices in the model."""

    name: str
    spec: CacheSpec
    layers: tuple[int, ...] = (0,)

    @property
    def kind(self) -> GroupKind:
        """Attention or state."""
        return self.spec.kind

    @property
    def block_tokens(self) -> int:
        """Tokens that one block of this group stands for."""
        return self.spec.block_tokens


def plain_groups(full_block: int, state_block: int, states: int = 1) -> tuple[Group, ...]:
    """One attention group and ``states`` state groups of one layer and one byte each: for a
    cache that only decides, where sizes do not matter."""
    full = Group("full", CacheSpec(GroupKind.FULL, full_block, token_bytes=1))
    spec = CacheSpec(GroupKind.STATE, state_block, recurrent_bytes=1)
    return (full, *(Group(f"state {i}", spec) for i in range(states)))


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The three block sizes, in tokens.

    ``group`` are the physical blocks; ``scheduler`` is their lcm, on which every group's blocks
    end together; ``unit`` is the fineness of hashes and hits: their gcd, or whatever finer
    ``prefix_match_unit`` divides them all.
    """

    group: tuple[int, ...]
    scheduler: int
    unit: int


def block_sizes(groups: tuple[Group, ...], prefix_match_unit: int | None = None) -> BlockSizes:
    """The three sizes for ``groups``.

    Raises:
        KdalabError: no group; a ``prefix_match_unit`` that does not divide every group's block.
    """
    if not groups:
        raise KdalabError("no cache groups; a model has at least one")
    each = tuple(g.block_tokens for g in groups)
    if min(each) < 1:
        raise KdalabError(f"blocks of {min(each)} tokens; a block holds at least 1")
    common = gcd(*each)
    unit = common if prefix_match_unit is None else prefix_match_unit
    if unit < 1 or common % unit:
        raise KdalabError(
            f"prefix_match_unit {unit:,} does not divide every group's block "
            f"({', '.join(f'{b:,}' for b in each)} tokens); use a divisor of {common:,}"
        )
    return BlockSizes(each, lcm(*each), unit)


def attention_block(state_bytes: int, token_bytes: int, align: int) -> int:
    """Fewest tokens, a multiple of ``align``, whose KV page holds a state of ``state_bytes``.

    vLLM: ``align * ceil(mamba_page / (align * attention_bytes_per_token))``. Kimi K3 on 8 ranks
    with fp8 KV: 814,080 / 576 = 1,413.3 tokens, with align 128: 1,536.

    Raises:
        KdalabError: a size below one.
    """
    if min(state_bytes, token_bytes, align) < 1:
        raise KdalabError(
            f"state of {state_bytes} bytes, {token_bytes} bytes a token, align {align}; "
            "each is at least 1"
        )
    return align * -(-state_bytes // (align * token_bytes))


def layer_specs(
    model: ModelSpec, *, tp_size: int = 1, align: int = 16, block: int | None = None
) -> tuple[CacheSpec, ...]:
    """One spec a layer, unpadded. ``block`` tokens for all groups; None for the attention block
    that just holds a state.

    Raises:
        KdalabError: as :func:`kdalab.spec.state_sizes`; a model of one layer type needs ``block``.
    """
    sizes = state_sizes(model, tp_size=tp_size)
    state = sizes.recurrent_bytes_per_layer + sizes.conv_bytes_per_layer
    token = sizes.latent_bytes_per_token_per_layer
    if block is None:
        block = attention_block(state, token, align)
    full = CacheSpec(GroupKind.FULL, block, token_bytes=token)
    linear = CacheSpec(
        GroupKind.STATE,
        block,
        recurrent_bytes=sizes.recurrent_bytes_per_layer,
        conv_bytes=sizes.conv_bytes_per_layer,
    )
    return tuple(full if t is LayerType.FULL else linear for t in model.layer_types)


def group_layers(specs: tuple[CacheSpec, ...]) -> tuple[Group, ...]:
    """Layers of equal spec, cut into groups of about the same number of layers, attention first.

    A block id has the same bytes in every group, so a group of many layers would leave the blocks
    of a smaller one half empty. The smallest type's layer count is the size of all groups, unless
    the largest is within a quarter of it (vLLM's rule): 69 KDA and 24 MLA layers make three
    groups of 23 and one of 24. Layers are dealt out in turn.
    """
    by_spec: dict[CacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        by_spec.setdefault(spec, []).append(layer)
    least, most = (f(map(len, by_spec.values())) for f in (min, max))
    places = most if most < 1.25 * least else least
    groups: list[Group] = []
    for spec, layers in sorted(by_spec.items(), key=lambda item: item[0].kind):
        count = -(-len(layers) // places)
        for i in range(count):
            name = str(spec.kind) if count == 1 else f"{spec.kind} {i}"
            groups.append(Group(name, spec, tuple(layers[i::count])))
    return tuple(groups)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one layer's page lies in every block: bytes [offset, offset + spec.page_bytes)."""

    layer: int
    group: int
    offset: int
    spec: CacheSpec


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """One pool of blocks for all groups, and what of it is never used.

    ``stride`` is what one block takes, all places together. A block belongs to one group at a
    time, so places of different groups overlap on purpose. In the padded layout place ``i`` of
    all blocks lies in a row; in the packed one all places of a block do.
    """

    name: str
    groups: tuple[Group, ...]
    places: tuple[Place, ...]
    stride: int

    def page_padding(self, group: int) -> int:
        """Bytes that a block of this group loses because its pages are made larger."""
        return sum(p.spec.held_bytes - p.spec.page_bytes for p in self.places if p.group == group)

    def place_padding(self, group: int) -> int:
        """Bytes at the end of a block that no layer of this group lies in: places left empty by
        a group with fewer layers, or in the packed layout, whatever its pages do not fill."""
        return self.stride - sum(p.spec.held_bytes for p in self.places if p.group == group)

    def used_bytes(self, group: int) -> int:
        """Bytes of real data in a full block of this group."""
        return self.stride - self.page_padding(group) - self.place_padding(group)


def padded_layout(groups: tuple[Group, ...]) -> BlockLayout:
    """Pages of one size: the largest. Layer ``i`` of each group lies in place ``i``.

    An attention page grows by taking more tokens, never by padding: round its block up first
    (:func:`attention_block`).

    Raises:
        KdalabError: an attention page is smaller than the largest page.
    """
    page = max(g.spec.page_bytes for g in groups)
    places, padded = [], []
    for index, group in enumerate(groups):
        spec = group.spec
        if spec.kind is GroupKind.FULL and spec.page_bytes < page:
            raise KdalabError(
                f"an attention page of {spec.page_bytes:,} bytes ({spec.block_tokens:,} tokens) "
                f"holds no state of {page:,} bytes; use blocks of at least "
                f"{-(-page // spec.token_bytes):,} tokens, or the packed layout"
            )
        spec = replace(spec, padded_bytes=page)
        padded.append(replace(group, spec=spec))
        places += [Place(n, index, i * page, spec) for i, n in enumerate(group.layers)]
    return BlockLayout("padded", tuple(padded), tuple(places), page * _most_layers(groups))


def packed_layout(groups: tuple[Group, ...]) -> BlockLayout:
    """Pages of their own sizes side by side; the stride is the largest group's sum of pages."""
    places, stride = [], 0
    for index, group in enumerate(groups):
        offset = 0
        for layer in group.layers:
            places.append(Place(layer, index, offset, group.spec))
            offset += group.spec.page_bytes
        stride = max(stride, offset)
    return BlockLayout("packed", groups, tuple(places), stride)


def _most_layers(groups: tuple[Group, ...]) -> int:
    return max(len(g.layers) for g in groups)
