"""One request whose prefill runs elsewhere: two real engines, the roles of ``kdalab serve``, and a
wire between them on which things can go wrong.

Nothing is drawn from this file: it runs the request, notes every piece on the wire and what the
decode side made of it, and compares the tokens with those of one engine.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch

from kdalab.errors import KdalabError
from kdalab.lessons.parcels import TransferRun
from kdalab.lessons.transfer_story import Story

TRANSFER_WAYS = ("pd", "epd")
TRANSFER_FAULTS = ("cut", "corrupt", "duplicate", "order", "image")

_PLAYING = threading.Lock()


@lru_cache(maxsize=16)
def play_transfer(
    way: str = "pd",
    chunk: int = 128,
    have: int = 64,
    faults: tuple[str, ...] = (),
    early: bool = False,
) -> TransferRun:
    """Prefill one prompt here, decode it there.

    Args:
        way: "pd", or "epd": an image in the prompt, and an encoder in front.
        chunk: tokens that prefill computes a step; a multiple of 64.
        have: tokens whose latent KV the decode side has already; a multiple of 64, 0 to 192.
        faults: of ``TRANSFER_FAULTS``; each happens once, on the first attempt.
        early: the fault ``start_early``, with the last latent KV held up behind the state.

    Raises:
        KdalabError: a way, a size or a fault that is not one of these.
    """
    if way not in TRANSFER_WAYS:
        raise KdalabError(f"way {way!r}; use one of {', '.join(TRANSFER_WAYS)}")
    if chunk % 64 or not 64 <= chunk <= 256 or have % 64 or not 0 <= have <= 192:
        raise KdalabError(
            f"chunk = {chunk}, have = {have}; both are multiples of 64: 64 to 256, and 0 to 192"
        )
    unknown = [f for f in faults if f not in TRANSFER_FAULTS]
    if unknown:
        raise KdalabError(f"fault {unknown[0]!r}; use some of {', '.join(TRANSFER_FAULTS)}")
    with _PLAYING, ThreadPoolExecutor(1) as thread:  # a notebook's own loop is running in this one
        threads = torch.get_num_threads()
        try:
            story = Story(way, chunk, have, faults, early)
            return thread.submit(lambda: asyncio.run(story.run())).result()
        finally:
            torch.set_num_threads(threads)
