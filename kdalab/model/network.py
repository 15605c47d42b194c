"""The whole network, one cell or one decode step at a time.

Prefill runs on an absolute grid of cells of 64 tokens, each computed by tensors of one fixed
shape. A token's numbers are then a function of the tokens before it and of its position, bit for
bit: not of the prompt's length, of the tokens after it, or of where a restored run began.
Decode runs on a fixed number of rows for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Literal, NamedTuple

import torch
from torch.nn.functional import embedding, linear

from kdalab.errors import KdalabError
from kdalab.model.attn_res import AttnRes, BlockStream, PlainStream, Stream
from kdalab.model.config import KimiLinearConfig
from kdalab.model.inputs import as_ids, check_ids, check_state
from kdalab.model.kda import KDALayer
from kdalab.model.mla import MLALayer
from kdalab.model.norm import rms_norm

CELL = 64
"""Tokens of one prefill cell."""

ROW_TILE = 8
MAX_DECODE_ROWS = 4096


class CellOutput(NamedTuple):
    """After one cell: ``logits`` [n or 1, vocab] (None if not asked for), ``recurrent``
    [KDA layer, value head, V, K], ``conv`` [KDA layer, W-1, q|k|v], ``latent``
    [MLA layer, n, latent|rope]."""

    logits: torch.Tensor | None
    recurrent: torch.Tensor
    conv: torch.Tensor
    latent: torch.Tensor


class DecodeOutput(NamedTuple):
    """After one token of each of B requests: as ``CellOutput`` with B first, and ``latent``
    [B, MLA layer, latent|rope]."""

    logits: torch.Tensor
    recurrent: torch.Tensor
    conv: torch.Tensor
    latent: torch.Tensor


class Block(NamedTuple):
    """One decoder layer."""

    norm: torch.Tensor
    attention: KDALayer | MLALayer
    post_norm: torch.Tensor
    feed_forward: Callable[[torch.Tensor], torch.Tensor]


class HybridModel:
    """A Kimi-Linear or Kimi K3 network. Build it with ``tiny_model``, ``tiny_k3_model`` or
    ``load_pretrained``.

    Args:
        config: shapes.
        embed: [vocab, hidden].
        blocks: the decoder layers in order.
        norm: [hidden], the final norm.
        head: [vocab, hidden].
        decode_rows: requests of a decode step at most, 1 to 4,096. Every step runs on this number
            of rows, rounded up to a multiple of 8, whatever the number of requests.
        attn_res: the sites of block attention residuals; None for a plain residual stream.
    """

    def __init__(
        self,
        config: KimiLinearConfig,
        embed: torch.Tensor,
        blocks: Sequence[Block],
        norm: torch.Tensor,
        head: torch.Tensor,
        decode_rows: int = 8,
        attn_res: AttnRes | None = None,
    ) -> None:
        if type(decode_rows) is not int or not 1 <= decode_rows <= MAX_DECODE_ROWS:
            raise KdalabError(
                f"decode_rows must be at least 1 and at most {MAX_DECODE_ROWS:,}, "
                f"not {decode_rows!r}"
            )
        self.config = config
        self.embed, self.norm, self.head = embed, norm, head
        self.blocks = list(blocks)
        self.attn_res = attn_res
        self.decode_rows = decode_rows
        # Rows left over by a product's tiles would be computed by other code, with other last bits.
        self._rows = -(-decode_rows // ROW_TILE) * ROW_TILE
        self.dtype = embed.dtype
        self.vocab_size = config.vocab_size
        self.n_kda_layers = len(config.kda_layers)
        self.n_mla_layers = len(config.full_attn_layers)
        self.latent_dim = config.latent_dim

    @property
    def state_dtype(self) -> torch.dtype:
        """fp32, or fp64 in a model of that precision."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def recurrent_shape(self) -> tuple[int, int, int, int]:
        """[KDA layer, value head, V, K]."""
        c = self.config
        return self.n_kda_layers, c.linear_num_heads, c.linear_head_dim, c.linear_head_dim

    @property
    def conv_shape(self) -> tuple[int, int, int]:
        """[KDA layer, W-1 inputs, q|k|v]."""
        c = self.config
        return self.n_kda_layers, c.linear_conv_kernel_dim - 1, 3 * c.kda_width

    def zero_state(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(recurrent, conv, latent) before the first token."""
        return (
            torch.zeros(self.recurrent_shape, dtype=self.state_dtype),
            torch.zeros(self.conv_shape, dtype=self.dtype),
            torch.zeros(self.n_mla_layers, 0, self.latent_dim, dtype=self.dtype),
        )

    def use_backend(self, backend: str) -> None:
        """Run the recurrence of every KDA layer on that backend of ``kdalab_kernels``."""
        for block in self.blocks:
            if isinstance(block.attention, KDALayer):
                block.attention.backend = backend

    def prefill_cell(
        self,
        tokens: torch.Tensor,
        start: int,
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        latent: torch.Tensor,
        logits: Literal["all", "last", "none"] = "last",
        media: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> CellOutput:
        """Compute tokens [start, start + n) of one sequence, 1 <= n <= 64.

        Args:
            tokens: [n] ids.
            start: a multiple of 64.
            recurrent, conv: the states after ``start`` tokens (not modified).
            latent: [MLA layer, start, latent|rope], all tokens before.
            logits: for every token, for the last one, or for none.
            media: (row [k], input [k, hidden]): rows of the cell whose input is an encoder's
                output instead of their token's embedding (the id there is not looked at).

        Raises:
            KdalabError: a start off the grid, too many tokens, ids outside the vocabulary, or
                states whose shapes are not those of this model at ``start``.
        """
        if start % CELL:
            raise KdalabError(f"a cell starts at a multiple of {CELL} tokens, not at {start}")
        return self.prefill_piece(tokens, start, recurrent, conv, latent, logits, media)

    @torch.inference_mode()
    def prefill_piece(
        self,
        tokens: torch.Tensor,
        start: int,
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        latent: torch.Tensor,
        logits: Literal["all", "last", "none"] = "last",
        media: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> CellOutput:
        """As ``prefill_cell``, from any token on. Off the grid the result equals that of a run on
        the grid to rounding, not bit for bit: its sums are cut at other places."""
        if media is not None:
            tokens = tokens.index_fill(0, media[0], 0)
        n = check_ids(tokens, self.vocab_size)
        if n > CELL:
            raise KdalabError(f"a cell holds 1 to {CELL} tokens, not {n}")
        if start < 0:
            raise KdalabError(f"start counts the tokens before the cell; it cannot be {start}")
        if logits not in ("all", "last", "none"):
            raise KdalabError(f"logits must be 'all', 'last' or 'none', not {logits!r}")
        check_state("recurrent", recurrent, self.recurrent_shape, self.state_dtype)
        check_state("conv", conv, self.conv_shape, self.dtype)
        check_state("latent", latent, (self.n_mla_layers, start, self.latent_dim), self.dtype)
        x = self.embed.new_zeros(CELL, self.config.hidden_size)
        x[:n] = embedding(tokens, self.embed)
        if media is not None:
            x[media[0]] = media[1]
        new_recurrent, new_conv = torch.empty_like(recurrent), torch.empty_like(conv)
        new_latent = latent.new_empty(self.n_mla_layers, n, self.latent_dim)
        kda, mla = count(), count()

        def attend(layer: KDALayer | MLALayer, h: torch.Tensor) -> torch.Tensor:
            if isinstance(layer, KDALayer):
                i = next(kda)
                y, new_recurrent[i], new_conv[i] = layer.prefill(h, n, recurrent[i], conv[i])
            else:
                i = next(mla)
                y, new_latent[i] = layer.prefill(h, n, latent[i])
            return y

        x = self._layers(x, attend)
        out = None
        if logits != "none":
            # All rows, whatever is asked for: a product of one shape, the same bits.
            rows = self._logits(x)
            out = rows[:n] if logits == "all" else rows[n - 1 : n]
        return CellOutput(out, new_recurrent, new_conv, new_latent)

    @torch.inference_mode()
    def decode(
        self,
        tokens: torch.Tensor,
        positions: Sequence[int],
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        latents: Sequence[torch.Tensor],
    ) -> DecodeOutput:
        """One token of each of B requests, B <= ``decode_rows``.

        Args:
            tokens: [B] ids.
            positions: position of each token; the states have seen that many tokens.
            recurrent: [B, KDA layer, value head, V, K].
            conv: [B, KDA layer, W-1, q|k|v].
            latents: B tensors [MLA layer, position, latent|rope].

        Raises:
            KdalabError: too many requests, ids outside the vocabulary, or states whose shapes are
                not those of this model at ``positions``.
        """
        b, rows = check_ids(tokens, self.vocab_size), self._rows
        if b > self.decode_rows:
            raise KdalabError(f"a decode step holds 1 to {self.decode_rows} requests, not {b}")
        check_state("recurrent", recurrent, (b, *self.recurrent_shape), self.state_dtype)
        check_state("conv", conv, (b, *self.conv_shape), self.dtype)
        if len(positions) != b or len(latents) != b:
            raise KdalabError(f"{b} tokens, {len(positions)} positions, {len(latents)} latents")
        for position, latent in zip(positions, latents, strict=True):
            check_state(
                "latents", latent, (self.n_mla_layers, position, self.latent_dim), self.dtype
            )
        x = self.embed.new_zeros(rows, self.config.hidden_size)
        x[:b] = embedding(tokens, self.embed)
        states = recurrent.new_zeros(rows, *self.recurrent_shape)
        windows = conv.new_zeros(rows, *self.conv_shape)
        states[:b], windows[:b] = recurrent, conv
        new_latent = x.new_empty(rows, self.n_mla_layers, self.latent_dim)
        kda, mla = count(), count()

        def attend(layer: KDALayer | MLALayer, h: torch.Tensor) -> torch.Tensor:
            if isinstance(layer, KDALayer):
                i = next(kda)
                y, states[:, i], windows[:, i] = layer.decode(h, states[:, i], windows[:, i])
            else:
                i = next(mla)
                y, new_latent[:, i] = layer.decode(h, [c[i] for c in latents])
            return y

        x = self._layers(x, attend)
        return DecodeOutput(self._logits(x)[:b], states[:b], windows[:b], new_latent[:b])

    def logits(
        self, tokens: Sequence[int] | torch.Tensor, pieces: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Logits [n_tokens, vocab] of a whole sequence, from nothing.

        Args:
            tokens: ids, at least one.
            pieces: lengths to cut the sequence into, carrying the states across; they need not
                end on the grid (then the result is equal to rounding, not bit for bit).

        Raises:
            KdalabError: no tokens, ids outside the vocabulary, or pieces that do not add up.
        """
        ids = as_ids(tokens, self.vocab_size)
        pieces = [len(ids)] if pieces is None else list(pieces)
        if any(p <= 0 for p in pieces) or sum(pieces) != len(ids):
            raise KdalabError(f"pieces {pieces} must be positive and add up to {len(ids)} tokens")
        return self._run(ids, pieces)[0]

    def states(
        self, tokens: Sequence[int] | torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(recurrent, conv, latent) after a whole sequence, shaped as ``zero_state``.

        Raises:
            KdalabError: no tokens, or ids outside the vocabulary.
        """
        ids = as_ids(tokens, self.vocab_size)
        return self._run(ids, [len(ids)])[1]

    def greedy(self, tokens: Sequence[int] | torch.Tensor, n: int) -> list[int]:
        """``n`` most likely tokens after a prompt: prefill cell by cell, then decode.

        Raises:
            KdalabError: no tokens, ids outside the vocabulary, or a negative ``n``.
        """
        ids = as_ids(tokens, self.vocab_size)
        if n < 0:
            raise KdalabError(f"cannot generate {n} tokens")
        recurrent, conv, latent = self.zero_state()
        logits = None
        for at in range(0, len(ids), CELL):
            out = self.prefill_cell(ids[at : at + CELL], at, recurrent, conv, latent)
            recurrent, conv, logits = out.recurrent, out.conv, out.logits
            latent = torch.cat([latent, out.latent], 1)
        assert logits is not None
        generated: list[int] = []
        while len(generated) < n:
            generated.append(int(logits[-1].argmax()))
            if len(generated) == n:
                break
            step = self.decode(
                torch.tensor(generated[-1:]),
                [latent.shape[1]],
                recurrent[None],
                conv[None],
                [latent],
            )
            recurrent, conv, logits = step.recurrent[0], step.conv[0], step.logits
            latent = torch.cat([latent, step.latent[0][:, None]], 1)
        return generated

    def _run(
        self, ids: torch.Tensor, pieces: Sequence[int]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Logits of every token, and the states after the last."""
        recurrent, conv, latent = self.zero_state()
        rows, at = [], 0
        for piece in pieces:
            end = at + piece
            while at < end:
                stop = min(end, (at // CELL + 1) * CELL)
                out = self.prefill_piece(ids[at:stop], at, recurrent, conv, latent, "all")
                assert out.logits is not None
                recurrent, conv = out.recurrent, out.conv
                latent = torch.cat([latent, out.latent], 1)
                rows.append(out.logits)
                at = stop
        return torch.cat(rows), (recurrent, conv, latent)

    def _layers(
        self, x: torch.Tensor, attend: Callable[[KDALayer | MLALayer, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """All decoder layers, [row, hidden] -> [row, hidden]; ``attend`` runs one mixer."""
        stream: Stream = PlainStream(x) if self.attn_res is None else BlockStream(self.attn_res, x)
        eps = self.config.rms_norm_eps
        for i, block in enumerate(self.blocks):
            stream.add(
                attend(block.attention, rms_norm(stream.attention_input(i), block.norm, eps))
            )
            stream.add(block.feed_forward(rms_norm(stream.mlp_input(i), block.post_norm, eps)))
        return stream.output()

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return linear(rms_norm(x, self.norm, self.config.rms_norm_eps), self.head)
