"""What the commands of ``kdalab lab`` have in common: the trace, the setup, the words around."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from rich.progress import Progress

    from kdalab.lab import Report, Requests, Setup


def _known_jobs(jobs: int) -> int:
    from kdalab.lab.sweep import check_jobs

    with known_errors():
        check_jobs(jobs)
    return jobs


TraceArg = Annotated[
    str | None,
    typer.Argument(help="A trace: a file, gzipped or not, or a folder.", show_default=False),
]
FormatOpt = Annotated[
    str | None, typer.Option("--format", help="Of the trace; by default told by its content.")
]
MadeUpOpt = Annotated[
    str | None,
    typer.Option(
        "--made-up",
        "--synthetic",
        help="No file: N made-up requests, or PRESET:N (chat-like:2000, agent-like:500).",
    ),
]
SeedOpt = Annotated[int, typer.Option(min=0, help="Of the made-up requests.")]
LimitOpt = Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")]
BadOpt = Annotated[int, typer.Option("--max-bad-lines", min=0, help="Unusable lines to skip.")]
BlockOpt = Annotated[
    int | None, typer.Option(min=1, help="Tokens a block, where the trace does not say.")
]
ShareOpt = Annotated[str, typer.Option(help="What sessions with local ids share: preamble, none.")]
GapOpt = Annotated[
    float, typer.Option(min=0, max=1e9, help="Seconds between sessions that have no clock.")
]
SortOpt = Annotated[bool, typer.Option("--sort", help="Sort by arrival first (in memory).")]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help='Settings, "KEY=VALUE ..."; see `kdalab lab settings`.'),
]
ModelOpt = Annotated[str | None, typer.Option(help="A preset or a config.json; kimi-k3.")]
MemoryOpt = Annotated[
    str | None,
    typer.Option(
        "--memory", "--budget", help="For latent KV and states together: 256GiB, unlimited."
    ),
]
#: With 256GiB where neither it nor ``--set`` says.
LimitedMemoryOpt = Annotated[
    str | None,
    typer.Option(
        "--memory",
        "--budget",
        help="For latent KV and states together: 256GiB, unlimited.",
        show_default="256GiB",
    ),
]
PolicyOpt = Annotated[
    str | None, typer.Option(help="A policy of your own, FILE.py:Class (its code will run).")
]
JobsOpt = Annotated[int, typer.Option(help="Processes; -1 for one a core.", callback=_known_jobs)]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")]

#: Bytes of memory by default in a command that needs a limit: see ``LimitedMemoryOpt``.
LIMIT = 256 << 30
#: Files up to this size are read into memory once; larger ones are streamed at each replay.
IN_MEMORY = 512 << 20


@contextmanager
def known_errors() -> Iterator[None]:
    """A known error becomes one line and exit code 2."""
    try:
        yield
    except KdalabError as error:
        refuse(error)


def read_trace(
    trace: str | None,
    made_up: str | None,
    seed: int,
    *,
    format: str | None = None,
    limit: int | None = None,
    bad: int = 100,
    block: int | None = None,
    share: str = "preamble",
    gap: float = 60.0,
    sort: bool = False,
) -> Requests:
    """The requests that a command is about; in memory where they are not too many.

    Raises:
        KdalabError: neither or both of file and made-up requests; a file that cannot be read.
    """
    from kdalab.cli.traces import made_up_requests
    from kdalab.lab import ReadOptions, open_trace

    if trace is None and made_up is None:
        raise KdalabError("give a trace, or --made-up N or PRESET:N")
    if trace is not None and made_up is not None:
        raise KdalabError("a trace and --made-up: give one of them, not both")
    if made_up is not None:
        return made_up_requests(made_up, seed, limit)
    assert trace is not None
    options = ReadOptions(limit, bad, None, block, share, gap * 1000.0, sort)
    reader = open_trace(trace, format, options)
    return reader.load() if _size(Path(trace)) <= IN_MEMORY or sort else reader


def build_setup(
    settings: list[str] | None,
    model: str | None = None,
    memory: str | None = None,
    policy: str | None = None,
    limit: int | None = None,
    **defaults: Any,
) -> Setup:
    """The setup of a command: its defaults, and on top ``--set`` and the options by name, together
    (one may need the other). ``limit`` is the default memory.

    Raises:
        KdalabError: as ``Setup.parse``: also for a setting that both give, differently.
    """
    from kdalab.lab import Setup
    from kdalab.lab.setup import split_words

    words = [word for text in settings or [] for word in split_words(text)]
    own = {"model": model, "memory": memory, "policy": policy}
    words += [f"{k}={v}" for k, v in own.items() if v is not None]
    return Setup.parse(words, Setup(memory=limit, **defaults))


def set_values(settings: list[str] | None) -> dict[str, Any]:
    """The settings that ``--set`` names, with their values.

    Raises:
        KdalabError: as ``Setup.parse``.
    """
    from kdalab.lab.setup import read_word, split_words

    return dict(read_word(w) for text in settings or [] for w in split_words(text))


def places(policy: str) -> bool:
    """Is a policy of one's own a placement (else an eviction order)?

    Raises:
        KdalabError: it cannot be loaded.
    """
    from kdalab.lab.policies import load_policy

    return load_policy(policy)[0] is not None


def check_policy(setup: Setup, asked: set[str]) -> None:
    """Refuse a setting that the setup's own policy stands in the place of.

    Raises:
        KdalabError: it is among those ``asked`` for; the policy cannot be loaded.
    """
    if setup.policy is None or not asked & {"checkpoints", "retention"}:
        return
    placed = places(setup.policy)
    if placed and "checkpoints" in asked:
        raise KdalabError(f"{setup.policy} is the placement; leave checkpoints out")
    if not placed and "retention" in asked and setup.retention.startswith("marconi"):
        raise KdalabError(f"{setup.policy} is the eviction order; use retention=lru, lru+cap:N")


def check_no_input(trace: str | None, *outputs: Path | None) -> None:
    """Refuse to write over the trace that is read.

    Raises:
        KdalabError: an output names its file.
    """
    for out in outputs:
        same = False
        with suppress(OSError, ValueError):  # one of them does not exist
            same = trace is not None and out is not None and out.samefile(trace)
        if same:
            raise KdalabError(f"{out} is the trace itself; write to another file")


def check_writable(path: Path | None, *endings: str) -> None:
    """Find out before long work whether its result can be written; no file is left behind.

    Raises:
        KdalabError: another ending than ``endings``; the file cannot be opened for writing.
    """
    if path is None:
        return
    if endings and path.suffix not in endings:
        raise KdalabError(f"{path.name}: written as {' or '.join(endings)}")
    try:
        file = path.resolve()
        new = not file.exists()
        if new or not file.is_fifo():  # opening a pipe would wait for its reader
            file.open("ab").close()
        if new:
            file.unlink()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = getattr(error, "strerror", None) or error
        raise KdalabError(f"cannot write {str(path)!r}: {why}") from error


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, on a terminal only; call it with (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    bar: Progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Left(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_report(report: Report | None) -> None:
    """What was read, what was skipped, what is assumed of the format."""
    from rich.console import Console

    console = Console(stderr=False)
    for line in report.lines if report is not None else ():
        wrong = "; the first: " in line  # something was skipped, or contradicts itself
        console.print(line, style="yellow" if wrong else "dim", markup=False)


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(f.stat().st_size for f in path.iterdir() if f.is_file())
        return path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        return 0
