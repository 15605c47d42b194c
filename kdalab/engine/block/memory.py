"""The bytes of all blocks, and each layer's view of them.

Latent KV and states lie in one buffer: a block holds the pages of one group's layers, and belongs
to one group at a time. Nothing here decides which; what to read and write comes as block numbers
and slots of a ``BatchMetadata``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from kdalab.cache import BlockLayout, Copy, GroupKind
from kdalab.memory.blocks import BlockBuffer

if TYPE_CHECKING:
    from kdalab.model import HybridModel

POISON = 0xFF
"""NaN in every float type, byte by byte."""


class KVLayer(NamedTuple):
    """One MLA layer: its number among those, and its pages [block, token, latent|rope]."""

    number: int
    pages: torch.Tensor


class StateLayer(NamedTuple):
    """One KDA layer: its number among those, and its pages, recurrent [block, value head, V, K]
    and conv [block, W-1, q|k|v]."""

    number: int
    recurrent: torch.Tensor
    conv: torch.Tensor


class BlockMemory:
    """``n_blocks`` blocks of ``layout`` for ``model``.

    ``kv`` and ``states`` map a group's number to its layers. Without ``poison`` freed bytes stay
    as they are.
    """

    def __init__(
        self, layout: BlockLayout, n_blocks: int, model: HybridModel, poison: bool = True
    ) -> None:
        self.layout, self.poisoned = layout, poison
        page = layout.places[0].spec.held_bytes if layout.name == "padded" else None
        self.buffer = BlockBuffer(n_blocks, layout.stride, page)
        self.n_kda, self.n_mla = model.n_kda_layers, model.n_mla_layers
        self.shapes = model.recurrent_shape[1:], model.conv_shape[1:]
        self.dtypes = model.state_dtype, model.dtype
        self.latent_dim = model.latent_dim
        self.block_tokens = [g.block_tokens for g in layout.groups]
        full = sorted(model.config.full_attn_layers)
        is_full = set(full)
        linear = [i for i in range(model.config.num_hidden_layers) if i not in is_full]
        self.kv: dict[int, list[KVLayer]] = {}
        self.states: dict[int, list[StateLayer]] = {}
        for place in layout.places:
            if place.spec.kind is GroupKind.FULL:
                shape = place.spec.block_tokens, model.latent_dim
                view = self.buffer.kv(place.offset, *shape, model.dtype)
                self.kv.setdefault(place.group, []).append(KVLayer(full.index(place.layer), view))
            else:
                pages = self.buffer.state(place.offset, *self.shapes, *self.dtypes)
                layer = StateLayer(linear.index(place.layer), *pages)
                self.states.setdefault(place.group, []).append(layer)

    # -- latent KV ---------------------------------------------------------------------------

    def gather(self, tables: Mapping[int, np.ndarray], n: int) -> torch.Tensor:
        """Latents of tokens [0, n): [MLA layer, n, latent|rope] (a copy), from each full group's
        block table [column]."""
        out = torch.empty(self.n_mla, n, self.latent_dim, dtype=self.dtypes[1])
        for group, layers in self.kv.items():
            used = torch.from_numpy(tables[group][: -(-n // self.block_tokens[group])]).long()
            for layer in layers:
                out[layer.number] = layer.pages[used].flatten(0, 1)[:n]
        return out

    def write_kv(self, slots: Mapping[int, np.ndarray], latent: torch.Tensor) -> None:
        """Write ``latent`` [MLA layer, token, latent|rope] to each full group's ``slots`` [token]:
        slot = block x block tokens + offset."""
        for group, layers in self.kv.items():
            at = torch.from_numpy(slots[group])
            size = self.block_tokens[group]
            block, offset = at // size, at % size
            for layer in layers:
                layer.pages[block, offset] = latent[layer.number]

    # -- states ------------------------------------------------------------------------------

    def read_states(
        self, blocks: np.ndarray, live: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent [row, KDA layer, ...], conv [row, KDA layer, ...]) as copies.

        ``blocks`` [state group, row] says from where; rows that are not ``live`` [row] begin
        from zeros, and nothing is read for them.
        """
        n = blocks.shape[1]
        recurrent = torch.zeros(n, self.n_kda, *self.shapes[0], dtype=self.dtypes[0])
        conv = torch.zeros(n, self.n_kda, *self.shapes[1], dtype=self.dtypes[1])
        rows = torch.from_numpy(np.flatnonzero(live))
        for g, layers in enumerate(self.states.values()):
            source = torch.from_numpy(blocks[g])[rows].long()
            for layer in layers:
                recurrent[rows, layer.number] = layer.recurrent[source]
                conv[rows, layer.number] = layer.conv[source]
        return recurrent, conv

    def write_states(self, blocks: np.ndarray, recurrent: torch.Tensor, conv: torch.Tensor) -> None:
        """Write states [row, KDA layer, ...] into ``blocks`` [state group, row]."""
        for g, layers in enumerate(self.states.values()):
            target = torch.from_numpy(blocks[g]).long()
            for layer in layers:
                layer.recurrent[target] = recurrent[:, layer.number]
                layer.conv[target] = conv[:, layer.number]

    def read_state(self, blocks: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """(recurrent [KDA layer, ...], conv [KDA layer, ...]) of one block of each state group."""
        found = self.read_states(np.array(blocks, dtype=np.int32)[:, None], np.ones(1, dtype=bool))
        return found[0][0], found[1][0]

    # -- blocks ------------------------------------------------------------------------------

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make queued copies in order: of each layer's page the real bytes, and of KV the tokens
        that were asked for."""
        for copy in copies:
            for place in self.layout.places:
                if place.group != copy.group:
                    continue
                spec = place.spec
                state = spec.kind is GroupKind.STATE
                nbytes = spec.page_bytes if state else copy.tokens * spec.token_bytes
                self.buffer.copy(copy.source, copy.target, place.offset, nbytes)

    def poison(self, blocks: Sequence[int]) -> None:
        """Overwrite blocks that hold nothing any more."""
        if blocks and self.poisoned:
            self._whole()[:, torch.tensor(list(blocks))] = POISON

    def is_poisoned(self, blocks: Sequence[int]) -> bool:
        """Nobody has written into these blocks since they were given back."""
        return bool(
            (self._whole()[:, torch.tensor(list(blocks), dtype=torch.long)] == POISON).all()
        )

    def padding_is_untouched(self, group: int, blocks: Sequence[int]) -> bool:
        """Bytes of this group's blocks in which no layer has data were never written."""
        used = torch.zeros(self._whole().shape[::2], dtype=torch.bool)
        for place in self.layout.places:
            if place.group == group:
                page = self.buffer.page_bytes or self.layout.stride
                row, first = divmod(place.offset, page)
                used[row, first : first + place.spec.page_bytes] = True
        pages = self._whole()[:, torch.tensor(list(blocks), dtype=torch.long)].transpose(1, 2)
        return bool((pages[~used] == POISON).all())

    def _whole(self) -> torch.Tensor:
        """All bytes as [place, block, byte]; packed blocks are one place each."""
        page = self.buffer.page_bytes or self.layout.stride
        return self.buffer.bytes.view(-1, self.buffer.n_blocks, page)
