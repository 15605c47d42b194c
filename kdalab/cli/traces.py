"""What the commands that read traces share: where requests come from, budgets, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from rich.console import Console

    from kdalab.lab import ReplayResult, Requests, Trace
    from kdalab.lab.block_replay import BlockReplayResult
    from kdalab.lab.figures import Comparison
    from kdalab.lab.readers import Reader


MOST_MADE_UP = 1_000_000  # requests: they are made in memory


def parse_budget(text: str) -> int | None:
    """Bytes, or None for "unlimited"."""
    from kdalab.units import parse_bytes

    return None if text.strip().lower() == "unlimited" else parse_bytes(text)


def open_requests(
    trace: str | None,
    made_up: str | None,
    seed: int,
    limit: int | None,
    max_bad: int,
    bar: Bar,
    passes: int = 1,
) -> Requests:
    """The requests of a trace file, or made-up ones (see ``made_up_requests``); ``passes`` is
    how often they will be read, for the bar.

    Raises:
        KdalabError: neither is given, or both.
    """
    if made_up is not None:
        if trace is not None:
            raise KdalabError("give a trace file or --made-up N, not both")
        requests = made_up_requests(made_up, seed, limit)
        bar.expect_requests(len(requests.requests))
        return requests
    if trace is None:
        raise KdalabError("give a trace file, or --made-up N for made-up requests")
    path = Path(trace)
    try:
        size = path.stat().st_size
        if not path.is_file() and not path.is_dir():
            return open_any(trace, limit, max_bad).load()  # a pipe: it cannot be read twice
    except (OSError, ValueError):
        size = 0  # reading it will say why
    bar.expect_bytes(size * passes)
    return open_any(trace, limit, max_bad, bar.on_bytes)


def made_up_requests(text: str, seed: int, limit: int | None = None) -> Trace:
    """The requests of ``--made-up``: "N" of the plain kind, or "PRESET:N" with the statistics of a
    preset; at most ``limit``.

    Raises:
        KdalabError: neither form, an unknown preset, or a number that there cannot be.
    """
    from kdalab.lab import synthetic_trace
    from kdalab.lab.generate import generated_trace, shape

    name, colon, count = text.strip().rpartition(":")
    if not (count.isascii() and count.isdecimal()) or not 1 <= int(count[:9]) <= MOST_MADE_UP:
        raise KdalabError(
            f"--made-up {text!r}; use N or PRESET:N, as 2000 or chat-like:2000, with N from 1 to "
            f"{MOST_MADE_UP:,}"
        )
    n = min(int(count), limit or int(count))
    return generated_trace(n, shape(name), seed, name) if colon else synthetic_trace(n, seed)


def open_any(
    trace: str, limit: int | None, max_bad: int, on_bytes: Callable[[int], None] | None = None
) -> Reader:
    """The reader of a trace of any format known to the lab, told by its content.

    What no reader claims is left to Mooncake's: these commands have no ``--format``, and it says
    what of a line it cannot use.
    """
    from kdalab.lab.readers import ReadOptions, open_trace, source
    from kdalab.lab.readers.mooncake import MooncakeReader

    options = ReadOptions(limit, max_bad, on_bytes)
    file = source.spooled(trace)
    try:
        found = open_trace(file, None, options)
    except KdalabError:
        found = MooncakeReader(file, options)
    found.name = "stdin" if trace == "-" else MooncakeReader(trace).name
    return found


class Bar:
    """A progress bar on standard error, on a terminal only."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        off = quiet or not sys.stderr.isatty()
        self.progress = Progress(console=Console(stderr=True), transient=True, disable=off)
        self.task = self.progress.add_task("replaying", total=None)
        self.in_bytes = False
        self.passed = self.position = 0  # bytes of the passes that are over, and of this one

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def expect_requests(self, total: int) -> None:
        self.progress.update(self.task, total=total)

    def expect_bytes(self, total: int) -> None:
        self.in_bytes = True
        self.progress.update(self.task, total=total)

    def on_request(self, done: int) -> None:
        if not self.in_bytes:
            self.progress.update(self.task, completed=done)

    def on_bytes(self, position: int) -> None:
        if position < self.position:
            self.passed += self.position
        if position != self.position:
            self.position = position
            self.progress.update(self.task, completed=self.passed + position)


def print_notes(
    console: Console, result: ReplayResult | BlockReplayResult | Comparison, made_up: bool
) -> None:
    """What the figures rest on, and the lines that were left out."""
    console.print(f"Assumed: {'; '.join(result.assumptions)}.", style="dim")
    if made_up:
        console.print("Made-up requests: see how it works, do not choose settings by them.")
    if result.skipped_lines:
        console.print(f"[yellow]{result.skipped_lines:,} lines skipped[/]; the first:")
        for line in result.skipped_examples:
            console.print(f"  {line}", markup=False)
