"""Random requests, with and without images, each with one thing that goes wrong."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from serve.faulty import ENCODE_FAULTS, FAULTS
from serve.serving import single

from kdalab.engine.media import Media, Span, media_ids
from kdalab.model import VisionEncoder, image_digest, n_positions, tiny_model

ENCODER = VisionEncoder(tiny_model().config.hidden_size)
VOCAB = tiny_model().vocab_size
CLIENT_FAULTS = ("client goes", "client goes early")
KILLS = ("prefill killed", "encode killed", "decode killed", "decode killed in its answer")
SIDES = ((16, 16), (32, 32), (32, 48))


@dataclass(frozen=True)
class Picture:
    """An image as a client sends it."""

    data: bytes
    height: int
    width: int

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    def body(self, at: int, private: bool) -> dict[str, Any]:
        given = {"height": self.height, "width": self.width, "data": self.base64, "at": at}
        return {**given, "private": True} if private else given

    def span(self, start: int) -> Span:
        digest = image_digest(self.data, self.height, self.width, ENCODER.fingerprint)
        x = ENCODER.encode(self.data, self.height, self.width)
        return Span(start, n_positions(self.height, self.width), digest, x)


@dataclass
class Ask:
    """A request, the ids that it comes to, what must come out, and what goes wrong."""

    body: dict[str, Any]
    tokens: tuple[int, ...]
    expected: list[int]
    fault: str = "none"
    pictures: list[Picture] = field(default_factory=list)


def drawn(draw: random.Random) -> Picture:
    height, width = draw.choice(SIDES)
    return Picture(draw.randbytes(height * width * 3), height, width)


def prompts(draw: random.Random, n: int) -> Iterator[list[int]]:
    """Prompts that share prefixes in the ways prompts do."""
    bases = [[draw.randrange(256) for _ in range(320)] for _ in range(4)]
    for _ in range(n):
        base = draw.choice(bases)
        cut = draw.choice((0, 64, 128, 192, 256, draw.randrange(300)))
        rest = [draw.randrange(256) for _ in range(draw.choice((0, 1, 30, 64, 100)))]
        yield base[:cut] + rest or base[:5]


def asks(n: int, seed: int, kills: int) -> list[Ask]:
    """``n`` requests, ``kills`` of each kind among them.

    Two in five have images: one of a few that come back, or the text of an earlier request with
    another image. A fault of the encoder comes with an image that nobody has asked for before.
    """
    draw = random.Random(seed)
    faults = [_fault(draw) for _ in range(n)]
    for i, where in enumerate(draw.sample(range(n // 10, n * 9 // 10), kills * len(KILLS))):
        faults[where] = KILLS[i % len(KILLS)]
    known = [drawn(draw) for _ in range(5)]
    before: list[tuple[list[int], int]] = []
    plan = []
    for text, fault in zip(prompts(draw, n), faults, strict=True):
        of_encoder = fault.startswith("encode")
        placed: list[tuple[int, Picture]] = []
        if of_encoder or draw.random() < 0.4:
            at = draw.choice((0, len(text) // 2, len(text)))
            if before and draw.random() < 0.4:
                text, at = draw.choice(before)
            before.append((text, at))
            placed = [(at, drawn(draw) if of_encoder else draw.choice(known))]
            if draw.random() < 0.2:
                placed.append((draw.randint(at, len(text)), draw.choice(known)))
        plan.append(_ask(text, placed, draw.randint(1, 6), draw.random() < 0.1, fault))
    return plan


def _fault(draw: random.Random) -> str:
    encode = [f"encode {f}" for f in ENCODE_FAULTS]
    fault = draw.choice([*FAULTS[:-1], *CLIENT_FAULTS, *encode, "stalled"])
    # Each that stalls costs a second and a half.
    return "cut" if fault == "stalled" and draw.random() < 0.8 else fault


def _ask(
    text: list[int], placed: list[tuple[int, Picture]], new: int, private: bool, fault: str
) -> Ask:
    tokens, spans, last = [], [], 0
    for at, picture in placed:
        tokens += text[last:at]
        span = picture.span(len(tokens))
        tokens += media_ids(span.digest, span.n, VOCAB)
        spans.append(span)
        last = at
    tokens += text[last:]
    expected = single(tokens, new, Media(tuple(spans)) if spans else None)
    body: dict[str, Any] = {"prompt": text, "max_tokens": new}
    if placed:
        body["images"] = [p.body(at, private) for at, p in placed]
    return Ask(body, tuple(tokens), expected, fault, [p for _, p in placed])
