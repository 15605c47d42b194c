"""The yardstick: one prompt straight through the model from zero, without engine or cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kdalab.engine.config import CELL

if TYPE_CHECKING:
    from kdalab.model import HybridModel


@dataclass(frozen=True)
class RunState:
    """What a run holds at the end of a prompt, and what it then generates.

    Shapes: ``recurrent`` [KDA layer, value head, V, K]; ``conv`` [KDA layer, W-1, channel];
    ``latent`` [MLA layer, token, channel]; ``logits`` [token, vocabulary]: of every computed
    token of the prompt and of every decoded one, in order, ending with the last that was used to
    choose a token.
    """

    recurrent: torch.Tensor
    conv: torch.Tensor
    latent: torch.Tensor
    logits: torch.Tensor
    generated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """One request against its cold run: max |difference| of each kind, 0.0 when equal.

    The states and the latent KV are those of the whole prompt. ``logits`` covers the prompt's
    computed tokens and the generated ones up to the first different choice, after which the two
    runs read different inputs. ``first_difference`` is the position in the output of that
    choice, or None.
    """

    request: str
    n_tokens: int
    restore: int
    logits: float
    recurrent: float
    conv: float
    latent: float
    compared_logits: int
    generated: tuple[int, ...]
    cold_generated: tuple[int, ...]
    first_difference: int | None

    @property
    def is_exact(self) -> bool:
        """Every difference is exactly 0 (a NaN is a difference)."""
        return self.logits == self.recurrent == self.conv == self.latent == 0.0

    def rows(self) -> list[tuple[str, float]]:
        """(what, max |difference|) for each thing that was compared."""
        return [
            ("logits", self.logits),
            ("recurrent state", self.recurrent),
            ("conv state", self.conv),
            ("latent KV", self.latent),
        ]


def cold_run(model: HybridModel, tokens: Sequence[int], max_new_tokens: int) -> RunState:
    """Prefill ``tokens`` cell by cell from the zero state, then decode greedily.

    Args:
        model: the network that the engine used.
        tokens: the prompt's ids, at least one.
        max_new_tokens: tokens to generate, at least one.
    """
    recurrent = torch.zeros(tuple(model.recurrent_shape), dtype=torch.float32)
    conv = torch.zeros(tuple(model.conv_shape), dtype=model.dtype)
    latent = torch.empty((model.n_mla_layers, 0, model.latent_dim), dtype=model.dtype)
    logits: list[torch.Tensor] = []
    with torch.inference_mode():
        for first in range(0, len(tokens), CELL):
            ids = torch.tensor(tokens[first : first + CELL])
            out = model.prefill_cell(ids, first, recurrent, conv, latent, logits="all")
            recurrent, conv = out.recurrent, out.conv
            latent = torch.cat([latent, out.latent], dim=1)
            assert out.logits is not None  # "all" was asked for
            logits.extend(out.logits)
        end = (recurrent.clone(), conv.clone(), latent.clone())
        generated = [int(torch.argmax(logits[-1]))]
        while len(generated) < max_new_tokens:
            step = model.decode(
                torch.tensor(generated[-1:]),
                [latent.shape[1]],
                recurrent.unsqueeze(0),
                conv.unsqueeze(0),
                [latent],
            )
            recurrent, conv = step.recurrent[0], step.conv[0]
            latent = torch.cat([latent, step.latent[0].unsqueeze(1)], dim=1)
            logits.append(step.logits[0])
            generated.append(int(torch.argmax(logits[-1])))
    return RunState(*end, torch.stack(logits), tuple(generated))


def measure(request: str, n_tokens: int, restore: int, run: RunState, cold: RunState) -> Measured:
    """Compare a request of the engine, restored at ``restore`` tokens, with its cold run."""
    pairs = list(zip(run.generated, cold.generated, strict=False))
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    # Logits that chose token i stand at n_tokens - 1 + i; the first differing choice is the last
    # that was made from equal inputs.
    chosen = len(pairs) if first is None else first + 1
    count = n_tokens - restore - 1 + chosen
    return Measured(
        request,
        n_tokens,
        restore,
        max_difference(run.logits[:count], cold.logits[restore : restore + count]),
        max_difference(run.recurrent, cold.recurrent),
        max_difference(run.conv, cold.conv),
        max_difference(run.latent, cold.latent),
        count,
        run.generated,
        cold.generated,
        first,
    )


def max_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a - b| in fp64; NaN when either holds one; shapes must agree."""
    if a.shape != b.shape:
        raise ValueError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be compared")
    if a.numel() == 0:
        return 0.0
    return float((a.double() - b.double()).abs().max())
