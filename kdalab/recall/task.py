"""Multi-query associative recall: store pairs of key and value, then ask for many of them.

After Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language Models" (2023).
One token stores a whole pair and one token asks for a key, so that no model needs its first layer
to join a key with the value that follows it: MLA without rotation has no convolution for that, and
would be measured at another skill. An episode is ``n`` store tokens, then ``min(n, 64)`` questions,
each for another of the stored keys; the answer to a question is the value stored with its key.

Keys are fixed directions in a small space, in three banks of equal size. A bank's keys come in
families of four, and the cosine between two keys of a family is the bank's *similarity*: 0, 0.9 or
0.99. Keys of different families point in random directions, whatever the bank. There are as many
families as the space has dimensions, so that what a family has in common cannot just be projected
away. An episode takes its keys from one bank, family by family, so that a key is stored together
with the other three of its family. What to do about that a network has to learn: the keys are
always the same 384, the episodes are not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kdalab.errors import KdalabError

SIMILARITIES = (0.0, 0.9, 0.99)
"""Cosine between two keys of one family, bank by bank."""

KEYS, FAMILY = 128, 4
"""Keys of a bank, and of a family."""

VALUES = 8
"""Values that a key can be stored with; guessing is right once in 8."""

MOST_QUESTIONS = 64

KEY_DIM = 32
HIDDEN = 64
"""Width of the embedding: key | value | store or ask | room that starts empty."""

N_KEYS = KEYS * len(SIMILARITIES)
ASK = N_KEYS * VALUES
"""First token that asks; below it, token ``key * VALUES + value`` stores a pair."""

ANSWER = ASK + N_KEYS
"""First of the tokens that answer."""

VOCAB = ANSWER + VALUES


class Episodes(NamedTuple):
    """``tokens`` [episode, n + questions] ids; ``answers`` [episode, questions], values 0..7."""

    tokens: torch.Tensor
    answers: torch.Tensor


def questions_of(pairs: int) -> int:
    """Questions of an episode with that many pairs."""
    return min(pairs, MOST_QUESTIONS)


def episodes(count: int, pairs: int, similarity: float | None, random: torch.Generator) -> Episodes:
    """``count`` episodes of ``pairs`` stored pairs.

    Args:
        similarity: one of ``SIMILARITIES``, or None for a random bank per episode.
        random: source of everything; the same state gives the same episodes.

    Raises:
        KdalabError: no episodes, a number of pairs outside 1..128, or another similarity.
    """
    check(count, pairs, similarity)
    if similarity is None:
        bank = torch.randint(len(SIMILARITIES), (count, 1), generator=random)
    else:
        bank = torch.full((count, 1), SIMILARITIES.index(similarity))
    keys = bank * KEYS + _chosen(count, pairs, random)
    values = torch.randint(VALUES, (count, pairs), generator=random)
    order = torch.rand(count, pairs, generator=random).argsort(1)
    keys, values = keys.gather(1, order), values.gather(1, order)
    asked = torch.rand(count, pairs, generator=random).argsort(1)[:, : questions_of(pairs)]
    tokens = torch.cat([keys * VALUES + values, ASK + keys.gather(1, asked)], 1)
    return Episodes(tokens, values.gather(1, asked))


def check(count: int, pairs: int, similarity: float | None) -> None:
    """Raises KdalabError as ``episodes`` says."""
    if count < 1:
        raise KdalabError(f"the number of episodes must be at least 1, not {count}")
    if not 1 <= pairs <= KEYS:
        raise KdalabError(
            f"an episode stores 1 to {KEYS} pairs (a bank has {KEYS} keys), not {pairs}"
        )
    if similarity is not None and similarity not in SIMILARITIES:
        allowed = ", ".join(f"{s:g}" for s in SIMILARITIES)
        raise KdalabError(f"similarity {similarity:g} has no keys; use one of {allowed}")


def key_directions(random: torch.Generator) -> torch.Tensor:
    """[bank x key, KEY_DIM], unit length; neighbours of four are a family.

    ``sqrt(s) centre + sqrt(1 - s) own``, the own parts of a family at right angles to its centre
    and to each other, so that the cosine within a family is s exactly.
    """
    banks = []
    for s in SIMILARITIES:
        frames = torch.randn(
            KEYS // FAMILY, KEY_DIM, FAMILY + 1, generator=random, dtype=torch.float64
        )
        frames = torch.linalg.qr(frames).Q.transpose(1, 2)
        centre, own = frames[:, :1], frames[:, 1:]
        banks.append((s**0.5 * centre + (1 - s) ** 0.5 * own).reshape(KEYS, KEY_DIM))
    return torch.cat(banks)


def embedding(random: torch.Generator) -> torch.Tensor:
    """[vocab, hidden]: what each token says, in coordinates that no model can change.

    Key part of length sqrt(KEY_DIM), value part of one coordinate out of 8, one coordinate for
    "store" or "ask". Rounded to fp16, in which it is saved.
    """
    table = torch.zeros(VOCAB, HIDDEN, dtype=torch.float64)
    keys = key_directions(random) * KEY_DIM**0.5
    table[:ASK, :KEY_DIM] = keys.repeat_interleave(VALUES, 0)
    table[:ASK, KEY_DIM : KEY_DIM + VALUES] = 3 * torch.eye(VALUES).double().repeat(N_KEYS, 1)
    table[:ASK, KEY_DIM + VALUES] = 2
    table[ASK:ANSWER, :KEY_DIM] = keys
    table[ASK:ANSWER, KEY_DIM + VALUES + 1] = 2
    return table.half().float()


def head() -> torch.Tensor:
    """[vocab, hidden]: an answer's logit is its value's coordinate; all other logits are 0."""
    table = torch.zeros(VOCAB, HIDDEN)
    table[ANSWER:, KEY_DIM : KEY_DIM + VALUES] = torch.eye(VALUES)
    return table


def _chosen(count: int, pairs: int, random: torch.Generator) -> torch.Tensor:
    """[count, pairs] keys of a bank, whole families as far as they go."""
    families = torch.rand(count, KEYS // FAMILY, generator=random).argsort(1)
    keys = (families[..., None] * FAMILY + torch.arange(FAMILY)).flatten(1)
    return keys[:, :pairs]
