"""Training: the same episodes, steps and optimiser for each of the three networks.

The number of pairs is drawn anew for every step, up to a limit that doubles until it reaches 128,
so that a network learns to look things up before it learns to look up many. Reproducible: the same
seed on the same machine and torch gives the same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from kdalab.errors import KdalabError
from kdalab.recall import task
from kdalab.recall.model import TrainableNetwork
from kdalab.recall.networks import config_of

OnStep = Callable[[int, float, float], None]
"""Called with (steps done, loss, share of right answers) after each step."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to train; the defaults made the weights that ship."""

    steps: int = 1200
    seed: int = 0
    tokens: int = 6000
    """Of one step, about: episodes of ``pairs + questions`` tokens each."""
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= 1_000_000:
            raise KdalabError(f"steps must be 1 to 1,000,000, not {self.steps:,}")
        if not 0 <= self.seed < 2**63:
            raise KdalabError(f"the seed must be 0 to 2^63 - 1, not {self.seed}")
        if self.tokens < 1 or not 0 < self.learning_rate < 1:
            raise KdalabError("tokens must be at least 1, and the learning rate between 0 and 1")

    def most_pairs(self, step: int) -> int:
        """Limit on the pairs of a step: 8 at the start, 128 from 4 steps in 10 on."""
        return min(task.KEYS, int(8 * 2 ** (10 * step / self.steps)))

    def rate(self, step: int) -> float:
        """Learning rate of a step: 50 steps of warm-up, and a cosine down to 3 % from 6 in 10."""
        done = step / self.steps
        warm = min(1.0, (step + 1) / 50)
        fall = 0.5 * (1 + math.cos(math.pi * max(0.0, done - 0.6) / 0.4))
        return self.learning_rate * warm * (0.03 + 0.97 * fall)


@dataclass(frozen=True, slots=True)
class Trained:
    """Weights under Hugging Face names, and what they took."""

    name: str
    plan: Plan
    weights: dict[str, torch.Tensor]
    parameters: int
    """Trained numbers: all but the embedding and the head, which are part of the task."""
    seconds: float
    """Of processor time: on an idle core, about the time on the clock."""


def fresh_network(name: str, seed: int) -> TrainableNetwork:
    """The network ``name`` before its first step.

    The embedding is drawn first, so that a seed gives the same one to all three networks.
    """
    random = torch.Generator().manual_seed(seed)
    table = task.embedding(random)
    return TrainableNetwork(config_of(name), table, task.head(), random)


def train(name: str, plan: Plan | None = None, on_step: OnStep | None = None) -> Trained:
    """Train one network on one thread.

    Args:
        name: ``kda``, ``hybrid`` or ``mla``.
        plan: steps, seed and the rest.
        on_step: told about progress.

    Raises:
        KdalabError: an unknown name, or a loss that is no longer a number.
    """
    plan = plan or Plan()
    net = fresh_network(name, plan.seed)
    learned = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        learned, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    random = torch.Generator().manual_seed(plan.seed + 1)
    threads, start = torch.get_num_threads(), time.process_time()
    torch.set_num_threads(1)  # products this small are not worth sharing, and sums stay in order
    try:
        for step in range(plan.steps):
            for group in optimiser.param_groups:
                group["lr"] = plan.rate(step)
            loss, right = _step(net, optimiser, learned, _batch(plan, step, random))
            if not math.isfinite(loss):
                raise KdalabError(
                    f"the loss of {name} is {loss} at step {step + 1}; "
                    "use another seed or a lower learning rate"
                )
            if on_step is not None:
                on_step(step + 1, loss, right)
    finally:
        torch.set_num_threads(threads)
    weights = {k: v.detach().clone() for k, v in net.state_dict().items()}
    count = sum(p.numel() for p in learned)
    return Trained(name, plan, weights, count, time.process_time() - start)


def _batch(plan: Plan, step: int, random: torch.Generator) -> task.Episodes:
    # Logarithmic in the number of pairs, with more weight on many than on few.
    u = 1 - float(torch.rand((), generator=random)) ** 2
    low, high = math.log(4), math.log(plan.most_pairs(step))
    pairs = round(math.exp(low + (high - low) * u))
    count = max(16, plan.tokens // (pairs + task.questions_of(pairs)))
    return task.episodes(count, pairs, None, random)


def _step(
    net: TrainableNetwork,
    optimiser: torch.optim.Optimizer,
    learned: list[torch.nn.Parameter],
    batch: task.Episodes,
) -> tuple[float, float]:
    """(loss in nats a question, share of right answers) of the batch, before the step."""
    questions = batch.answers.shape[1]
    logits = net(batch.tokens, slice(task.ANSWER, None))[:, -questions:]
    loss = cross_entropy(logits.flatten(0, 1), batch.answers.flatten())
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(learned, 1.0)
    optimiser.step()
    right = (logits.argmax(-1) == batch.answers).float().mean()
    return loss.item(), right.item()
