"""Prefill and decode in two processes give what one process gives, token for token."""

from __future__ import annotations

import random

from kdalab.errors import KdalabError
from kdalab.verify.claim import Claim, Progress

NAME = "prefill and decode in two processes = one process"


def serve_claims(cases: int, seed: int, progress: Progress) -> list[Claim]:
    """One row: wrong tokens, leaked slots and pages over random prompts that share prefixes.

    Args:
        cases: prompts; each goes through a router, a decode and a prefill process.
    """
    import httpx

    from kdalab.serve.processes import start_cluster

    draw = random.Random(seed)
    base = [draw.randrange(256) for _ in range(256)]
    wrong = 0
    try:
        with (
            start_cluster(["--model", "tiny", "--port", "0"], router=["--port", "0"]) as cluster,
            httpx.Client(trust_env=False, timeout=60) as client,
        ):
            url = f"{cluster.url}/v1/completions"
            for done in range(cases):
                progress(NAME, done, cases)
                rest = [draw.randrange(256) for _ in range(draw.randrange(1, 90))]
                tokens = base[: draw.choice((0, 64, 128, 200, 256))] + rest
                new = draw.randint(1, 8)
                body = {"prompt": tokens, "max_tokens": new}
                answer = client.post(url, json=body).json()
                wrong += answer["choices"][0]["token_ids"] != _single(tokens, new)
            leaked = _leaked(client, cluster.url)
    except (KdalabError, OSError) as error:
        return [Claim(NAME, skipped=f"no processes can be started here: {error}"[:200])]
    note = f"{leaked} slots or pages leaked"
    return [Claim(NAME, cases, float(wrong + leaked), 0.0, "requests with other tokens", note)]


def _single(tokens: list[int], new: int) -> list[int]:
    from kdalab.engine import Engine, EngineConfig
    from kdalab.model import tiny_model

    engine = Engine(tiny_model(), EngineConfig(reuse=False))
    request = engine.submit(tokens, new)
    engine.run()
    return request.generated


def _leaked(client: object, url: str) -> int:
    """Slots and pages that are held although nobody is served, once it is quiet."""
    import time

    import httpx

    assert isinstance(client, httpx.Client)
    held = 0
    for _ in range(100):
        held = 0
        for found in client.get(f"{url}/v1/conservation").json().values():
            for kind in ("latent_pages", "active_states", "checkpoints"):
                held += found[kind]["active"] + found[kind]["in_flight"]
        if not held:
            break
        time.sleep(0.05)
    return held
