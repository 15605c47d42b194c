"""From a model and a configuration to groups, a layout and a number of blocks; no byte is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kdalab.cache import (
    BlockConfig,
    BlockLayout,
    CacheMode,
    CacheSpec,
    GroupKind,
    attention_block,
    block_sizes,
    group_layers,
    packed_layout,
    padded_layout,
)
from kdalab.engine.block.config import BlockEngineConfig, off_the_grid
from kdalab.engine.config import CELL
from kdalab.engine.costs import block_costed
from kdalab.engine.pools import machine_bytes
from kdalab.errors import KdalabError
from kdalab.memory.blocks import ALIGNMENT
from kdalab.units import format_bytes

if TYPE_CHECKING:
    from kdalab.model import HybridModel

MOST_BLOCKS = 2**20
"""Blocks of one engine; a view lists every one of them."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """What the engine is built from: ``layout`` says where each layer's page lies in a block,
    ``cache`` how the cache is set up, ``n_blocks`` how many there are, the null block included."""

    layout: BlockLayout
    cache: BlockConfig
    n_blocks: int
    draft_tokens: int

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.n_blocks * self.layout.stride

    def blocks_of_request(self, n_tokens: int) -> int:
        """Blocks that one request of ``n_tokens`` in all can hold at once, at the worst moment.

        KV up to its last token and the drafts beyond, and a partly filled block that it hit and
        has yet to copy. Of each state group: the running state, its successor, one stored inside
        the chunk or copied for its entry, and one for every draft; in mode ``all`` also one for
        every block boundary behind it.
        """
        total, sizes = n_tokens + self.draft_tokens, self.cache.sizes
        need = 0
        for group, block in zip(self.cache.groups, sizes.group, strict=True):
            if group.kind is GroupKind.FULL:
                need += -(-total // block) + 1
                continue
            need += 3 + self.draft_tokens
            if self.cache.mode is CacheMode.ALL:
                need += total // block
        return need


def make_plan(model: HybridModel, config: BlockEngineConfig) -> BlockPlan:
    """Work out everything that a configuration leaves open, for this model.

    Raises:
        KdalabError: a padded attention page that holds no state; a unit off the cells, or one
            that does not divide the blocks; a retention off the scheduler's block; a budget below
            two blocks, above this machine's memory, or of over ``MOST_BLOCKS`` blocks. Each with
            its arithmetic.
    """
    full_block, state_block = _blocks(model, config)
    specs = _layer_specs(model, full_block, state_block)
    groups = group_layers(specs)
    unit = block_sizes(groups, config.unit).unit
    if config.mode is CacheMode.ALIGN and unit % CELL:
        raise KdalabError(off_the_grid("unit", unit, config.mode))
    if config.mode is CacheMode.ALL and state_block % CELL:
        raise KdalabError(off_the_grid("state_block", state_block, config.mode))
    layout = padded_layout(groups) if config.layout == "padded" else packed_layout(groups)
    stride = -(-layout.stride // ALIGNMENT) * ALIGNMENT
    layout = replace(layout, stride=stride)
    n_blocks = _count(config, stride)
    cache = BlockConfig(
        layout.groups,
        n_blocks,
        unit=config.unit,
        mode=CacheMode(config.mode),
        retention=block_costed(config.kept, model, stride),
        speculative=config.drops_unit,
        kernel_grid=config.kernel_grid,
        block_bytes=stride,
    )
    return BlockPlan(layout, cache, n_blocks, config.draft_tokens)


def _count(config: BlockEngineConfig, stride: int) -> int:
    """Blocks to make, of ``stride`` bytes each; nothing has been made yet."""
    n_blocks = config.n_blocks
    if n_blocks is None:
        n_blocks, of = config.total_bytes // stride, f"{config.total_bytes:,} / {stride:,} = "
        lower, more = "total_bytes", f"Raise total_bytes to {2 * stride:,} or more"
    else:
        of, lower, more = "n_blocks = ", "n_blocks", "Raise n_blocks to 2 or more"
    if n_blocks < 2:
        raise KdalabError(
            f"{of}{n_blocks} blocks of {stride:,} bytes; block 0 stands idle, so there must be 2 "
            f"or more. {more}"
        )
    wanted, machine = n_blocks * stride, machine_bytes()
    if machine is not None and wanted > machine:
        raise KdalabError(
            f"{n_blocks:,} blocks of {stride:,} bytes are {format_bytes(wanted)}; this machine has "
            f"{format_bytes(machine)} of memory. Lower {lower} or the block sizes"
        )
    if n_blocks > MOST_BLOCKS:
        raise KdalabError(
            f"{of}{n_blocks:,} blocks of {stride:,} bytes; at most {MOST_BLOCKS:,} are allowed, as "
            f"each is an object of its own. Lower {lower}, or take larger blocks"
        )
    return n_blocks


def state_bytes(model: HybridModel) -> tuple[int, int]:
    """(recurrent, conv) bytes of one KDA layer."""
    _, *recurrent = model.recurrent_shape
    _, *conv = model.conv_shape
    return (
        _product(recurrent) * model.state_dtype.itemsize,
        _product(conv) * model.dtype.itemsize,
    )


def _blocks(model: HybridModel, config: BlockEngineConfig) -> tuple[int, int]:
    """Tokens of an attention block and of a state block."""
    full = config.attention_block
    if full is None and config.layout == "padded" and model.n_kda_layers and model.n_mla_layers:
        full = attention_block(sum(state_bytes(model)), _token_bytes(model), CELL)
    full = full if full is not None else CELL
    return full, config.state_block if config.state_block is not None else full


def _layer_specs(model: HybridModel, full_block: int, state_block: int) -> tuple[CacheSpec, ...]:
    recurrent, conv = state_bytes(model)
    full = CacheSpec(GroupKind.FULL, full_block, token_bytes=_token_bytes(model))
    state = CacheSpec(GroupKind.STATE, state_block, recurrent_bytes=recurrent, conv_bytes=conv)
    is_full = set(model.config.full_attn_layers)
    layers = range(model.config.num_hidden_layers)
    return tuple(full if i in is_full else state for i in layers)


def _token_bytes(model: HybridModel) -> int:
    return model.latent_dim * model.dtype.itemsize


def _product(shape: list[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
