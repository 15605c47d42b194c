"""How many questions each network answers, by the number of stored pairs and their similarity.

It is the inference network of ``kdalab.model`` that answers, cell by cell as in the engine, not
the module that was trained. An answer is the likeliest of the eight value tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kdalab.errors import KdalabError
from kdalab.recall import task
from kdalab.recall.files import load
from kdalab.recall.networks import MLA_LAYERS, memory_of

NETWORKS = tuple(MLA_LAYERS)

PAIRS = (4, 8, 16, 32, 64, 96, 128)
"""Stored pairs of an episode, one column each."""

CHANCE = 1 / task.VALUES

EVALUATION_SEED = 20_000
"""Far from the seeds that one trains with."""

OnRow = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One point of a curve."""

    network: str
    similarity: float
    pairs: int
    episodes: int
    questions: int
    correct: int
    memory_bytes: int
    """What the network holds of the pairs when the first question comes."""

    @property
    def accuracy(self) -> float:
        """Share of questions answered right, 0..1."""
        return self.correct / self.questions

    def as_dict(self) -> dict[str, Any]:
        """All fields and the accuracy."""
        return asdict(self) | {"accuracy": self.accuracy}


def curves(
    networks: Sequence[str] = NETWORKS,
    pairs: Sequence[int] = PAIRS,
    similarities: Sequence[float] = task.SIMILARITIES,
    episodes: int = 32,
    seed: int = EVALUATION_SEED,
    folder: Path | None = None,
    on_row: OnRow | None = None,
) -> list[Row]:
    """One row for each network, similarity and number of pairs, in this order.

    All networks answer the same episodes, drawn apart from those of training; even of 4 pairs a
    bank has 75 million.

    Args:
        networks: of ``kda``, ``hybrid`` and ``mla``.
        pairs: stored in an episode, 1..128 each.
        similarities: of ``task.SIMILARITIES``.
        episodes: for each row; an episode asks ``min(pairs, 64)`` questions.
        seed: of the episodes.
        folder: weights of ``kdalab train recall``; None for those that ship.
        on_row: told about progress.

    Raises:
        KdalabError: an empty list, or a network, number of pairs, similarity, number of episodes
            or seed that cannot be had, before anything is computed.
    """
    if not (networks and pairs and similarities):
        raise KdalabError("curves need at least one network, number of pairs and similarity")
    if not 0 <= seed < 2**63:
        raise KdalabError(f"the seed must be 0 to 2^63 - 1, not {seed}")
    for n in pairs:
        for s in similarities:
            task.check(episodes, n, s)
    models = {name: load(name, folder) for name in networks}
    rows, total = [], len(models) * len(similarities) * len(pairs)
    for name, model in models.items():
        for similarity in similarities:
            for n in pairs:
                random = torch.Generator().manual_seed(seed)
                batch = task.episodes(episodes, n, similarity, random)
                correct = sum(
                    int((model.logits(tokens)[n:, task.ANSWER :].argmax(-1) == answers).sum())
                    for tokens, answers in zip(batch.tokens, batch.answers, strict=True)
                )
                memory = memory_of(name).after(n)
                asked = batch.answers.numel()
                rows.append(Row(name, similarity, n, episodes, asked, correct, memory))
                if on_row is not None:
                    on_row(len(rows), total)
    return rows
