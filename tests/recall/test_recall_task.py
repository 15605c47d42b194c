"""Episodes: what is stored, what is asked, and how alike the keys are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kdalab.errors import KdalabError
from kdalab.recall import task

PAIRS = st.integers(1, task.KEYS)
SIMILARITY = st.sampled_from([*task.SIMILARITIES, None])
SEED = st.integers(0, 2**31)


def drawn(count: int, pairs: int, similarity: float | None, seed: int) -> task.Episodes:
    return task.episodes(count, pairs, similarity, torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 5), pairs=PAIRS, similarity=SIMILARITY, seed=SEED)
def test_every_answer_is_what_was_stored_with_its_key(
    count: int, pairs: int, similarity: float | None, seed: int
) -> None:
    batch = drawn(count, pairs, similarity, seed)
    questions = min(pairs, 64)
    assert batch.tokens.shape == (count, pairs + questions)
    assert batch.answers.shape == (count, questions)
    for row, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        assert all(0 <= t < task.ASK for t in row[:pairs])
        assert all(task.ASK <= t < task.ANSWER for t in row[pairs:])
        stored = dict(divmod(t, task.VALUES) for t in row[:pairs])
        assert len(stored) == pairs  # each key once
        asked = [t - task.ASK for t in row[pairs:]]
        assert len(set(asked)) == questions
        assert [stored[key] for key in asked] == answers


@settings(max_examples=40, deadline=None)
@given(pairs=PAIRS, similarity=st.sampled_from(task.SIMILARITIES), seed=SEED)
def test_keys_come_from_the_bank_in_whole_families(
    pairs: int, similarity: float, seed: int
) -> None:
    tokens = drawn(1, pairs, similarity, seed).tokens[0, :pairs]
    bank, key = (tokens // task.VALUES // task.KEYS), tokens // task.VALUES % task.KEYS
    assert set(bank.tolist()) == {task.SIMILARITIES.index(similarity)}
    members = torch.bincount(key // task.FAMILY)
    members = members[members > 0].sort(descending=True).values.tolist()
    whole, rest = divmod(pairs, task.FAMILY)
    assert members == [task.FAMILY] * whole + [rest] * (rest > 0)


@settings(max_examples=20, deadline=None)
@given(pairs=PAIRS, similarity=SIMILARITY, seed=SEED)
def test_the_same_seed_gives_the_same_episodes(
    pairs: int, similarity: float | None, seed: int
) -> None:
    first, second = (drawn(3, pairs, similarity, seed) for _ in range(2))
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.answers, second.answers)


def test_every_key_value_and_place_is_drawn_equally_often() -> None:
    batch = drawn(4000, 8, None, 0)
    n = 4000 * 8
    stored = batch.tokens[:, :8]
    for counts, classes in (
        (torch.bincount((stored // task.VALUES).flatten(), minlength=task.N_KEYS), task.N_KEYS),
        (torch.bincount((stored % task.VALUES).flatten()), task.VALUES),
    ):
        expected = n / classes
        assert counts.numel() == classes
        # Keys come four at a time, hence the factor 4 in the variance.
        assert float((counts - expected).abs().max()) < 5 * (4 * expected) ** 0.5
    # Where the key of the first question was stored.
    place = (stored // task.VALUES == batch.tokens[:, 8:9] - task.ASK).float().argmax(1)
    assert float((torch.bincount(place) - 500).abs().max()) < 5 * 500**0.5


def test_cosines_are_what_the_similarity_says() -> None:
    keys = task.key_directions(torch.Generator().manual_seed(3))
    assert torch.allclose(keys.norm(dim=1), torch.ones(task.N_KEYS).double())
    for bank, s in enumerate(task.SIMILARITIES):
        own = keys[bank * task.KEYS : (bank + 1) * task.KEYS]
        cosine = (own @ own.T).view(
            task.KEYS // task.FAMILY, task.FAMILY, task.KEYS // task.FAMILY, task.FAMILY
        )
        for family in range(task.KEYS // task.FAMILY):
            inside = cosine[family, :, family]
            apart = inside[~torch.eye(task.FAMILY, dtype=torch.bool)]
            assert torch.allclose(apart, torch.full_like(apart, s), atol=1e-12)
        # Between families: random directions, whatever the bank.
        between = cosine.permute(0, 2, 1, 3)[~torch.eye(task.KEYS // task.FAMILY).bool()]
        assert abs(float(between.mean())) < 0.05
        assert float(between.std()) == pytest.approx(task.KEY_DIM**-0.5, rel=0.2)


def test_what_a_family_shares_cannot_be_projected_away() -> None:
    """The centres of a bank's families span the whole space of keys."""
    keys = task.key_directions(torch.Generator().manual_seed(0))
    for bank in range(len(task.SIMILARITIES)):
        own = keys[bank * task.KEYS : (bank + 1) * task.KEYS].view(-1, task.FAMILY, task.KEY_DIM)
        assert torch.linalg.matrix_rank(own.mean(1)) == task.KEY_DIM


def test_the_embedding_says_key_value_and_role_and_survives_fp16() -> None:
    table = task.embedding(torch.Generator().manual_seed(0))
    assert table.shape == (task.VOCAB, task.HIDDEN)
    assert torch.equal(table.half().float(), table)
    store, ask = table[5 * task.VALUES + 3], table[task.ASK + 5]
    assert torch.equal(store[: task.KEY_DIM], ask[: task.KEY_DIM])
    assert (task.head() @ store).argmax() == task.ANSWER + 3
    assert float((task.head() @ ask).abs().max()) == 0


@pytest.mark.parametrize(
    ("count", "pairs", "similarity", "message"),
    [
        (0, 4, None, "at least 1, not 0"),
        (1, 0, None, "1 to 128 pairs"),
        (1, 129, 0.9, "1 to 128 pairs"),
        (1, 4, 0.7, "use one of 0, 0.9, 0.99"),
    ],
)
def test_impossible_episodes_are_refused(
    count: int, pairs: int, similarity: float | None, message: str
) -> None:
    with pytest.raises(KdalabError, match=message):
        drawn(count, pairs, similarity, 0)
