"""Images in a prompt: an input of their own, and a prefix that no other image shares."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from kdalab.engine import Engine, EngineConfig
from kdalab.engine import events as ev
from kdalab.engine.drafters import PromptLookup, Scripted
from kdalab.engine.media import Media, Span, media_ids
from kdalab.errors import KdalabError
from kdalab.memory.embeddings import EmbeddingPool
from kdalab.model import VisionEncoder, image_digest, n_positions, tiny_model
from kdalab.spec import StateKind

MODEL = tiny_model()
VOCAB = MODEL.vocab_size


def engine() -> Engine:
    return Engine(MODEL, EngineConfig(check_every_step=True))


def with_image(
    before: list[int], x: torch.Tensor, digest: bytes, after: list[int]
) -> tuple[list[int], Media]:
    ids = media_ids(digest, len(x), VOCAB)
    return [*before, *ids, *after], Media((Span(len(before), len(x), digest, x),))


@pytest.mark.parametrize("at", [0, 50, 64, 120])
def test_an_input_that_equals_token_embeddings_gives_what_the_tokens_give(at: int) -> None:
    """Across cell boundaries, bit for bit: the position's id is never looked at."""
    tokens = [(7 * i) % 250 for i in range(200)]
    plain = engine()
    expected = plain.submit(tokens, 5)
    plain.run()
    x = MODEL.embed[torch.tensor(tokens[at : at + 40])]
    ids, media = with_image(tokens[:at], x, b"image", tokens[at + 40 :])
    e = engine()
    got = e.submit(ids, 5, media=media)
    e.run()
    assert got.generated == expected.generated
    again = e.submit(ids, 5, media=media)
    e.run()
    assert again.generated == expected.generated
    assert again.restore == 192


def test_the_same_text_with_another_image_is_another_prefix() -> None:
    encoder = VisionEncoder(MODEL.config.hidden_size)
    text = [(3 * i) % 250 for i in range(100)]
    e = engine()
    found = []
    for shade in (10, 11, 10):
        pixels = bytes([shade]) * (32 * 32 * 3)
        digest = image_digest(pixels, 32, 32, encoder.fingerprint)
        ids, media = with_image([], encoder.encode(pixels, 32, 32), digest, [*text, *text])
        r = e.submit(ids, 3, media=media)
        e.run()
        found.append((r.token_match, tuple(r.generated)))
    assert [match for match, _ in found] == [0, 0, 192]
    assert found[0][1] == found[2][1]


@pytest.mark.parametrize("at", [60, 64, 118])
def test_drafts_beside_an_image_change_no_token_and_no_bit(at: int) -> None:
    x = torch.randn(6, MODEL.config.hidden_size, generator=torch.Generator().manual_seed(3))
    text = [5, 9, 2, 5, 9] * 30
    ids, media = with_image(text[:at], x, b"image", text[at:])
    plain = Engine(MODEL, EngineConfig(keep_logits=True, check_every_step=True))
    expected = plain.submit(ids, 24, media=media)
    plain.run()
    whole = (*ids, *expected.generated)
    # One drafter quotes the prompt, and with it the image; one is right but for every third token;
    # one answers with nothing but the image.
    for drafter in (PromptLookup(), Scripted((whole,), miss=3), Quotes(ids[at : at + 3])):
        config = EngineConfig(
            keep_logits=True, check_every_step=True, draft_tokens=3, drafter=drafter
        )
        engine = Engine(MODEL, config)
        request = engine.submit(ids, 24, media=media)
        engine.run()
        assert request.generated == expected.generated
        assert all(torch.equal(a, b) for a, b in zip(request.logits, expected.logits, strict=True))
        verified = [e for e in engine.events if isinstance(e, ev.Verified)]
        if isinstance(drafter, Scripted):
            assert sum(e.accepted for e in verified) > 5
        if isinstance(drafter, Quotes):
            assert verified == []
        assert not any(isinstance(e, ev.DraftsDropped) for e in engine.events)


class Quotes:
    """Drafts these tokens, whatever came before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)

    def propose(self, tokens: Sequence[int], n: int) -> tuple[int, ...]:
        return self.tokens[:n]


def test_images_that_are_not_what_they_say_are_refused() -> None:
    e = engine()
    x = torch.zeros(4, MODEL.config.hidden_size)
    ids, media = with_image([1, 2], x, b"a", [3])
    other = with_image([1, 2], x, b"b", [3])[1]
    for tokens, m, text in (
        (ids, None, "outside the vocabulary"),
        (ids, other, "not those of the image"),
        (ids[:4], media, "within the prompt"),
        (ids, Media((Span(2, 4, b"a", x[:, :5]),)), r"expected \[4, 128\]"),
        (ids, Media((Span(2, 4, b"a", x * float("nan")),)), "not finite"),
        ([*ids, 10**6], media, "outside the vocabulary"),
    ):
        with pytest.raises(KdalabError, match=text):
            e.submit(tokens, 2, media=m)
    unknown = e.submit(ids, 2, media=Media((Span(2, 4, b"a"),)))
    e.run()
    assert "by its hash alone" in unknown.finish_reason
    e.check()


def test_the_encoder_sees_every_pixel_in_its_place() -> None:
    encoder = VisionEncoder(64)
    assert n_positions(32, 48) == 6
    base = bytes(range(256)) * 18
    x = encoder.encode(base, 32, 48)
    assert x.shape == (6, 64)
    assert torch.equal(x, VisionEncoder(64).encode(base, 32, 48))
    assert not torch.equal(x, VisionEncoder(64, seed=1).encode(base, 32, 48))
    changed = bytearray(base)
    changed[(20 * 48 + 40) * 3] ^= 128  # row 20, column 40: the last of the six
    y = encoder.encode(bytes(changed), 32, 48)
    assert [i for i in range(6) if not torch.equal(x[i], y[i])] == [5]
    flat = encoder.encode(bytes(32 * 48 * 3), 32, 48)
    assert not torch.equal(flat[0], flat[1])  # positions count
    with pytest.raises(KdalabError, match="multiples of 16"):
        encoder.encode(base, 30, 48)
    with pytest.raises(KdalabError, match="has 4,608"):
        encoder.encode(base[:-1], 32, 48)


def test_embeddings_live_by_their_own_rules() -> None:
    x = torch.zeros(2, 8)  # 64 bytes
    pool = EmbeddingPool(130)
    pool.put(b"a", x)
    pool.put(b"b", x, shared=False)
    assert pool.held[b"a"].kind is StateKind.EMBEDDING
    with pytest.raises(KdalabError, match="can be had"):
        pool.put(b"c", x)
    pool.give_back(b"b")  # private: goes with its reader
    assert list(pool.held) == [b"a"]
    pool.give_back(b"a")
    pool.check()
    assert pool.take(b"a") is x
    pool.give_back(b"a")
    pool.put(b"c", x)
    pool.put(b"d", x)  # takes the place of a, which nobody reads
    assert list(pool.held) == [b"c", b"d"]
    with pytest.raises(KdalabError, match="nobody reads"):
        pool.give_back(b"a")
    pool.check()
