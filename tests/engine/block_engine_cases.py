"""What tests of the block engine share: engines of small models, and a model that only counts."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from engine_cases import tinier_model

from kdalab.cache import HashChain, PrefixKey
from kdalab.engine import Request
from kdalab.engine import events as ev
from kdalab.engine.block import BlockEngine, BlockEngineConfig, fold
from kdalab.errors import InvariantError
from kdalab.model import HybridModel
from kdalab.model.network import CellOutput, DecodeOutput
from kdalab.model.verify import VerifyOutput

SMALL = tinier_model()


def text(n: int, seed: int = 0, vocab: int = 64) -> tuple[int, ...]:
    return tuple((7 * i + i * i * (seed + 3) + seed) % vocab for i in range(n))


def block_engine(model: Any = SMALL, **changes: Any) -> BlockEngine:
    """Few blocks, every rule checked after every step."""
    defaults: dict[str, Any] = {"n_blocks": 64, "keep_logits": True, "check_every_step": True}
    return BlockEngine(model, BlockEngineConfig(**{**defaults, **changes}))


def run(engine: BlockEngine, *prompts: tuple[int, ...], new: int = 2) -> list[Request]:
    """One after the other; the log folds to the live objects."""
    found = []
    for prompt in prompts:
        found.append(engine.submit(prompt, new))
        engine.run()
    assert_folds(engine)
    return found


def assert_folds(engine: BlockEngine) -> None:
    assert fold(engine.events, engine.empty_view()) == engine.view()


def assert_nothing_leaks(engine: BlockEngine) -> None:
    assert engine.is_idle
    engine.check()
    assert_folds(engine)
    assert engine.cache.pool.n_free == engine.plan.n_blocks - 1
    assert not engine.cache.requests


def of_type(engine: BlockEngine, kind: type[ev.Event]) -> list[Any]:
    return [x for x in engine.events if isinstance(x, kind)]


def named_states(engine: BlockEngine, group: int | None = None) -> dict[int, int]:
    """Boundary -> block of every cached state of one state group."""
    group = engine.cache.state_groups[0] if group is None else group
    return {b.keys[0].boundary: b.id for b in engine.cache.pool.tables[group].values()}


@lru_cache(maxsize=512)
def cold(tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits of every token, by the model alone."""
    return SMALL.logits(tokens)


@lru_cache(maxsize=512)
def greedy(tokens: tuple[int, ...], n: int) -> list[int]:
    return SMALL.greedy(tokens, n)


def worst(request: Request, model: HybridModel = SMALL) -> float:
    """max |difference| of the prompt's computed logits against a run from nothing."""
    full = cold(request.tokens) if model is SMALL else model.logits(request.tokens)
    mine = torch.stack(request.logits[: request.n_tokens - request.restore])
    return float((mine - full[request.restore :]).abs().max())


# -- a model that counts ---------------------------------------------------------------------

MOD = 1_048_573


def digest(tokens: tuple[int, ...] | torch.Tensor, start: int = 0, before: float = 0.0) -> float:
    """A sum that depends on every token and its place; exact in fp32."""
    ids = torch.as_tensor(tokens, dtype=torch.int64)
    at = torch.arange(start, start + len(ids)) + 1
    return float((int(before) + int(((ids + 1) * (at % 1021 + 1)).sum())) % MOD)


class CountingModel:
    """Its state is how many tokens it has seen, and which: ``recurrent[.., 0, :2]`` = (count,
    digest). Its latents are the tokens and their positions. It refuses a state and a context that
    are not of the same tokens, and every position that is not theirs."""

    vocab_size, decode_rows, _rows = 4096, 8, 8
    dtype = state_dtype = torch.float32

    def __init__(self, layers: int = 8, full: tuple[int, ...] = (3, 7)) -> None:
        self.config = SimpleNamespace(num_hidden_layers=layers, full_attn_layers=full)
        self.n_mla_layers, self.n_kda_layers = len(full), layers - len(full)
        self.latent_dim = 4
        self.recurrent_shape = (self.n_kda_layers, 1, 2, 2)
        self.conv_shape = (self.n_kda_layers, 3, 4)

    def use_backend(self, backend: str) -> None: ...

    def _next(
        self,
        tokens: torch.Tensor,
        start: int,
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        latent: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        seen = recurrent[:, 0, 0]
        assert bool((seen == seen[0]).all()), "layers of different boundaries"
        count, before = float(seen[0, 0]), float(seen[0, 1])
        assert count == start, f"a state of {count:g} tokens at position {start}"
        assert bool((latent[:, :, 1] == torch.arange(start)).all()), "latents of other positions"
        for layer in latent:
            assert digest(layer[:, 0].long()) == before, "state and latents of other tokens"
        last = torch.cat([latent[0, :, 0].long(), tokens])[-3:]
        new_conv = torch.zeros_like(conv)
        new_conv[:, 3 - len(last) :] = last[:, None].float()
        if start:
            old = latent[0, -3:, 0]
            assert bool((conv[:, 3 - len(old) :, 0] == old).all()), "a conv state of other tokens"
        after = recurrent.clone()
        n = len(tokens)
        after[:, 0, 0, 0], after[:, 0, 0, 1] = start + n, digest(tokens, start, before)
        new = torch.zeros(self.n_mla_layers, n, 4)
        new[:, :, 0], new[:, :, 1] = tokens.float(), torch.arange(start, start + n).float()
        logits = torch.zeros(1, self.vocab_size)
        logits[0, int(after[0, 0, 0, 1]) * 31 % self.vocab_size] = 1.0
        return logits, after, new_conv, new

    def prefill_cell(
        self,
        tokens: torch.Tensor,
        start: int,
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        latent: torch.Tensor,
        logits: str = "last",
    ) -> CellOutput:
        assert start % 64 == 0
        assert 1 <= len(tokens) <= 64
        return CellOutput(*self._next(tokens, start, recurrent, conv, latent))

    def decode(
        self,
        tokens: torch.Tensor,
        positions: list[int],
        recurrent: torch.Tensor,
        conv: torch.Tensor,
        latents: list[torch.Tensor],
    ) -> DecodeOutput:
        rows = [
            self._next(tokens[i : i + 1], positions[i], recurrent[i], conv[i], latents[i])
            for i in range(len(tokens))
        ]
        logits, states, windows, new = (torch.stack(x) for x in zip(*rows, strict=True))
        return DecodeOutput(logits[:, 0], states, windows, new[:, :, 0])


def count_verified(
    model: CountingModel,
    tokens: list[tuple[int, ...]],
    positions: list[int],
    recurrent: torch.Tensor,
    conv: torch.Tensor,
    latents: list[torch.Tensor],
) -> list[VerifyOutput]:
    """``verify_tokens`` for the model that counts: one token after the other."""
    found = []
    for i, drafted in enumerate(tokens):
        state, window, latent, steps = recurrent[i], conv[i], latents[i], []
        for j, token in enumerate(drafted):
            step = model._next(torch.tensor([token]), positions[i] + j, state, window, latent)
            _, state, window, new = step
            latent = torch.cat([latent, new], 1)
            steps.append(step)
        parts = [torch.stack(x) for x in zip(*steps, strict=True)]
        found.append(VerifyOutput(parts[0][:, 0], parts[1], parts[2], parts[3][:, :, 0]))
    return found


def check_counts(engine: BlockEngine, texts: list[tuple[int, ...]]) -> int:
    """The reference check: what every named state has really seen, read from its bytes, and the
    hash of just those tokens. Returns how many states were looked at."""
    unit, looked = engine.cache.sizes.unit, 0
    chains = [HashChain(PrefixKey.from_tokens(t, unit), unit) for t in texts]
    for group in engine.cache.state_groups:
        for name, block in engine.cache.pool.tables[group].items():
            (key,) = block.keys
            for layer in engine.memory.states[group]:
                count, found = layer.recurrent[block.id, 0, 0].tolist()
                if count != key.boundary:
                    raise InvariantError(
                        f"{block}: a state of {count:g} tokens under a key of {key.boundary:,}"
                    )
                owners = [
                    t
                    for t, c in zip(texts, chains, strict=True)
                    if c.hashed >= key.boundary and c.at(key.boundary) == name
                ]
                assert owners, "a name that no text has"
                assert digest(owners[0][: key.boundary]) == found
                looked += 1
    return looked
