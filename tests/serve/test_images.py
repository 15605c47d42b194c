"""Encode, prefill and decode: what comes out equals one engine, and images are told apart."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from serve.serving import in_thread

from kdalab.engine import Engine, EngineConfig
from kdalab.engine.media import Media, Span, media_ids
from kdalab.model import VisionEncoder, image_digest, tiny_model
from kdalab.serve.encoding import EncodeOptions, encode_app
from kdalab.serve.limits import Limits
from kdalab.serve.roles import ModelOptions, decode_app, prefill_app
from kdalab.serve.router import router_app
from kdalab.serve.run import Place, listen

LIMITS = Limits(retries=0, image_pixels=64 * 64)
MODEL = tiny_model()


@dataclass
class Chain:
    encode: str
    prefill: str
    decode: str
    router: str

    def ask(self, **body: Any) -> httpx.Response:
        url = f"{self.router}/v1/completions"
        return httpx.post(url, json=body, trust_env=False, timeout=60)

    def counts(self, url: str) -> dict[str, int]:
        found = httpx.get(f"{url}/v1/conservation", trust_env=False, timeout=60).json()
        assert found["checked"]
        embeddings: dict[str, int] = found["embeddings"]
        return embeddings


@pytest.fixture(scope="module")
def chain() -> Iterator[Chain]:
    with in_thread(lambda: encode_app(EncodeOptions(limits=LIMITS)), "encode", LIMITS) as encode:
        options = ModelOptions(limits=LIMITS, encoders=(encode,))
        with in_thread(lambda: prefill_app(options), "prefill", LIMITS) as prefill:
            build = lambda: decode_app(options, [prefill])  # noqa: E731
            with (
                in_thread(build, "decode", LIMITS) as decode,
                in_thread(lambda: router_app([decode], [], LIMITS), "router", LIMITS) as router,
            ):
                yield Chain(encode, prefill, decode, router)


def pixels(seed: int, height: int = 32, width: int = 48) -> bytes:
    return bytes((seed + 31 * i + i * i // 7) % 256 for i in range(height * width * 3))


def image(data: bytes, height: int = 32, width: int = 48, **more: Any) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"height": height, "width": width, "data": encoded, **more}


def single(before: list[int], data: bytes, after: list[int], n: int) -> list[int]:
    """One engine, with the encoder called directly."""
    encoder = VisionEncoder(MODEL.config.hidden_size)
    digest = image_digest(data, 32, 48, encoder.fingerprint)
    x = encoder.encode(data, 32, 48)
    tokens = [*before, *media_ids(digest, len(x), MODEL.vocab_size), *after]
    engine = Engine(MODEL, EngineConfig(reuse=False))
    media = Media((Span(len(before), len(x), digest, x),))
    request = engine.submit(tokens, n, media=media)
    engine.run()
    return request.generated


def test_tokens_are_those_of_one_engine_and_an_image_is_encoded_once(chain: Chain) -> None:
    text = "What is in <image>? " + "Say it in a few words. " * 5
    before, after = text.split("<image>")
    for seed in (1, 2, 1):
        answer = chain.ask(prompt=text, images=[image(pixels(seed))], max_tokens=5)
        assert answer.status_code == 200, answer.text
        ids = answer.json()["choices"][0]["token_ids"]
        assert ids == single(list(before.encode()), pixels(seed), list(after.encode()), 5)
        assert "fallback" not in answer.json()["kdalab"]
    found = chain.counts(chain.prefill)
    assert (found["misses"], found["hits"], found["readers"]) == (2, 1, 0)
    assert chain.counts(chain.encode)["readers"] == 0
    # Ids with 'at', and nested lists of pixels.
    rows = [
        [[pixels(1)[(y * 48 + x) * 3 + c] for c in range(3)] for x in range(48)] for y in range(32)
    ]
    nested = {"height": 32, "width": 48, "pixels": rows, "at": 2}
    answer = chain.ask(prompt=[5, 6, 7], images=[nested], max_tokens=3)
    assert answer.json()["choices"][0]["token_ids"] == single([5, 6], pixels(1), [7], 3)


def test_the_same_text_with_another_image_never_matches(chain: Chain) -> None:
    after = list(range(200, 250)) + list(range(72))  # 6 positions and 122 ids: 128
    held = []
    for seed, private in ((5, False), (6, False), (5, False), (5, True), (5, True)):
        given = image(pixels(seed), at=0, private=private)
        answer = chain.ask(prompt=after, images=[given], max_tokens=2)
        held.append(answer.json()["kdalab"]["held"])
        assert answer.json()["choices"][0]["token_ids"] == single([], pixels(seed), after, 2)
    assert held == [0, 0, 128, 0, 0]
    assert chain.counts(chain.prefill)["readers"] == 0


def test_decode_falls_back_with_the_image_and_fails_by_name_without_an_encoder(
    chain: Chain,
) -> None:
    for encoders, status in (((chain.encode,), 200), ((), 502)):
        options = ModelOptions(limits=LIMITS, encoders=encoders)
        with (
            in_thread(lambda o=options: decode_app(o, []), "decode", LIMITS) as decode,  # type: ignore[misc]
            in_thread(lambda d=decode: router_app([d], [], LIMITS), "router", LIMITS) as router,  # type: ignore[misc]
        ):
            body = {"prompt": [1, 2], "images": [image(pixels(9), at=1)], "max_tokens": 3}
            answer = httpx.post(f"{router}/v1/completions", json=body, trust_env=False, timeout=60)
            assert answer.status_code == status, answer.text
            if status == 200:
                ids = answer.json()["choices"][0]["token_ids"]
                assert ids == single([1], pixels(9), [2], 3)
            else:
                assert answer.json()["error"]["code"] == "transfer_failed"
                assert "no encode process" in answer.json()["error"]["message"]
            found = httpx.get(f"{decode}/v1/conservation", trust_env=False, timeout=60).json()
            assert found["embeddings"]["readers"] == 0
            assert found["active_states"]["free"] == found["active_states"]["total"]


def test_without_an_encoder_on_either_side_the_reason_is_said_once() -> None:
    with listen(Place()) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    options = ModelOptions(limits=LIMITS, encoders=(dead,))
    with (
        in_thread(lambda: prefill_app(options), "prefill", LIMITS) as p,
        in_thread(lambda: decode_app(options, [p]), "decode", LIMITS) as d,
    ):
        body = {"prompt": [1, 2], "images": [image(pixels(9), at=1)], "max_tokens": 3}
        error = httpx.post(f"{d}/v1/generate", json=body, trust_env=False, timeout=60).json()[
            "error"
        ]
        assert error["code"] == "transfer_failed"
        assert error["message"].count("could not be encoded") == 1
        assert dead in error["message"]


def test_an_encoder_with_no_room_is_waited_for(chain: Chain) -> None:
    asked: list[int] = []
    door = FastAPI()

    @door.post("/v1/encode")
    async def encode(request: Request) -> Response:
        asked.append(1)
        if len(asked) == 1:
            error = {"message": "full", "type": "x", "param": None, "code": "too_many_requests"}
            return JSONResponse({"error": error}, 429, {"Retry-After": "1"})
        async with httpx.AsyncClient(trust_env=False, timeout=60) as c:
            found = await c.post(f"{chain.encode}/v1/encode", json=await request.json())
        return Response(found.content, found.status_code)

    with in_thread(lambda: door, "encode", LIMITS) as url:
        options = ModelOptions(limits=LIMITS, encoders=(url,))
        with in_thread(lambda: decode_app(options, []), "decode", LIMITS) as d:
            body = {"prompt": [1, 2], "images": [image(pixels(9), at=1)], "max_tokens": 3}
            lines = httpx.post(
                f"{d}/v1/generate", json=body, trust_env=False, timeout=60
            ).text.splitlines()
    events = [json.loads(line) for line in lines]
    assert [e["token"] for e in events if "token" in e] == single([1], pixels(9), [2], 3)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("prompt", "images"),
    [
        ("no mark", [image(pixels(1))]),
        ("<image><image>", [image(pixels(1))]),
        ([1], [image(pixels(1))]),
        ([1], [image(pixels(1), at=2)]),
        ([1], [image(pixels(1)[:-3], at=0)]),
        ([1], [image(pixels(1, 24, 48), 24, 48, at=0)]),
        ([1], [image(pixels(1, 64, 80), 64, 80, at=0)]),
        ([1], [{"height": 16, "width": 16, "at": 0}]),
        ([1], [{"height": 16, "width": 16, "at": 0, "pixels": [[[1, 2, 300]]]}]),
        ([1], [{"height": 16, "width": 16, "at": 0, "data": "!!!!"}]),
        ([1], [image(pixels(1, 16, 16), 16, 16, at=0)] * 9),
    ],
)
def test_images_that_are_not_allowed_are_refused(
    chain: Chain, prompt: Any, images: list[dict[str, Any]]
) -> None:
    answer = chain.ask(prompt=prompt, images=images, max_tokens=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "images"
