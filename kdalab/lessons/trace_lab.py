"""A trace in the lab, small enough for a page: one account, a sweep, and advice.

What is pasted is read by ``open_trace`` like any file, with limits on bytes, requests and bad
lines; nothing in it is executed or unpickled.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from kdalab.errors import KdalabError
from kdalab.lab.account import Account
from kdalab.lab.advise import Advice, advise
from kdalab.lab.generate import generated_trace, shape
from kdalab.lab.readers import ReadOptions, open_trace
from kdalab.lab.request import Trace
from kdalab.lab.run import replay_setup
from kdalab.lab.setup import Setup
from kdalab.lab.sweep import Row, combine, pareto, sweep

LAB_TRACES = {"agent-like": 60, "chat-like": 100}
"""Requests of the built-in traces, by the name of their preset."""

MAX_PASTED_BYTES, MAX_PASTED_REQUESTS, MAX_PASTED_TOKENS = 1_000_000, 150, 20_000_000
MAX_PASTED_BAD = 10
"""Lines of a pasted trace that may be unusable."""
MAX_REPLAYS = 120
"""Replays after which a search for advice is given up."""

PASTED = "the pasted trace"
"""What messages call the text of the box."""

PLACEMENTS = ("every:4096", "every:16384", "leaf+branch")


@dataclass(frozen=True, slots=True)
class LabRun:
    """Everything that the page shows. ``rows`` are those of the sweep, ``best`` the ones that no
    other beats; ``account`` is the replay under ``setup``."""

    trace: str
    requests: int
    setup: Setup
    account: Account
    rows: tuple[Row, ...]
    best: tuple[Row, ...]
    advice: tuple[Advice, ...]


def play_lab(trace: str, pasted: str, model: str, memory: int, checkpoints: str) -> LabRun:
    """Replay, sweep and advise on a built-in trace, or on the JSONL ``pasted`` if there is any.

    Args:
        memory: bytes for latent KV and states.

    Raises:
        KdalabError: an unknown name; a pasted text that no reader takes or that is too large; a
            memory in which a request does not fit.
    """
    requests = read_pasted(pasted) if pasted.strip() else _built_in(trace)
    setup = Setup(model=model, memory=memory, checkpoints=checkpoints)
    account = replay_setup(requests, setup)
    grid = {
        "memory": tuple(str(memory * n // 2) for n in (1, 2, 4, 8)),
        "checkpoints": PLACEMENTS,
    }
    rows = sweep(requests, combine(setup, grid)[0])
    best = pareto(rows, cost="memory")
    found = advise(requests, replace(setup), "flops", on_replay=_limit)
    return LabRun(
        requests.name, account.requests, setup, account, tuple(rows), tuple(best), tuple(found)
    )


def read_uploaded(file: Path) -> str:
    """The text of a trace's file, read once with the limits of a pasted one.

    Raises:
        KdalabError: a file that is no text, and as ``read_pasted``.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KdalabError(
            "the file is no UTF-8 text; upload a trace as JSON lines or CSV, not compressed"
        ) from None
    read_pasted(text)
    return text


def read_pasted(text: str) -> Trace:
    """A trace from the text of its file.

    Raises:
        KdalabError: too many bytes, requests or tokens; a content that no reader takes.
    """
    if len(text.encode()) > MAX_PASTED_BYTES:
        raise KdalabError(f"the trace has more than {MAX_PASTED_BYTES:,} bytes; paste fewer lines")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pasted.jsonl"
        file.write_text(text)
        options = ReadOptions(limit=MAX_PASTED_REQUESTS, max_bad=MAX_PASTED_BAD)
        try:
            reader = open_trace(file, None, options)
            requests = list(reader)
        except KdalabError as error:
            raise KdalabError(_for_a_page(str(error), file)) from error
    total = sum(r.input_tokens for r in requests)
    if not requests or total > MAX_PASTED_TOKENS:
        raise KdalabError(
            f"{len(requests):,} requests with {total:,} prompt tokens; use 1 to "
            f"{MAX_PASTED_REQUESTS:,} requests with at most {MAX_PASTED_TOKENS:,} tokens"
        )
    return Trace(
        f"pasted, {len(requests):,} requests", requests, reader.n_skipped, list(reader.skipped),
        reader.block_tokens, reader.format, (),
    )  # fmt: skip


def _for_a_page(message: str, file: Path) -> str:
    """A reader's message without what only a command line has: the file's place, and options."""
    message = message.replace(f"{file} begins ", f"{PASTED}, line 1, begins ")
    message = message.replace(str(file), PASTED)
    message = message.replace(
        ", which is no format known here. Known are ",
        " and has no format that is known. Formats known here: ",
    )
    message = message.split("; `kdalab lab formats`")[0]
    message = message.replace("; give it with --block-tokens", "; add block_size to its lines")
    return message.replace("; raise --max-bad-lines to skip more", "")


def _built_in(name: str) -> Trace:
    if name not in LAB_TRACES:
        raise KdalabError(f"trace {name!r}; use one of {', '.join(LAB_TRACES)}")
    return generated_trace(LAB_TRACES[name], shape(name), 0, name)


def _limit(replays: int) -> None:
    if replays > MAX_REPLAYS:
        raise KdalabError(f"the search took more than {MAX_REPLAYS} replays; use fewer requests")
