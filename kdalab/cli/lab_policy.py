"""``kdalab lab policy-template`` and ``leaderboard``: policies of one's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source
from kdalab.cli.refuse import say

if TYPE_CHECKING:
    from kdalab.lab.board import Entry


#: Settings that the rows of the board differ in, or all have.
_OF_THE_ROWS = {
    "policy": "use --policy",
    "checkpoints": "each row of the board has its own",
    "retention": "each row of the board has its own",
    "cache": "the rows of the board are of cache=radix; leave it out",
}


def policy_template(
    out: Annotated[Path, typer.Argument(help="The file to write.")] = Path("my_policy.py"),
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
) -> None:
    """Write a file with a placement and an eviction order to start from."""
    from kdalab.errors import KdalabError
    from kdalab.lab.policies import TEMPLATE

    with o.known_errors():
        if out.suffix != ".py":
            raise KdalabError(f"{out}: a policy's file ends in .py")
        if out.exists() and not force:
            raise KdalabError(f"{out} exists; choose another name, or add --force")
        try:
            out.write_text(TEMPLATE.format(file=shlex.quote(str(out))))
        except OSError as error:
            raise KdalabError(f"cannot write {str(out)!r}: {error.strerror}") from error
    policy = shlex.quote(f"{out}:TailAndHalf")
    typer.echo(f"{out}: try kdalab lab replay TRACE --memory 256GiB --policy {policy}")


def leaderboard(
    source: Source,
    traces: Annotated[
        list[str] | None, typer.Argument(help="Traces, one or more.", show_default=False)
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="FILE.py:Class; can be repeated. Their code will run.")
    ] = None,
    settings: o.SetOpt = None,
    model: o.ModelOpt = None,
    memory: o.LimitedMemoryOpt = None,
    jobs: o.JobsOpt = 1,
    as_json: o.JsonOpt = False,
) -> None:
    """Policies of your own and the built-in ones, ranked by the prefill work they save."""
    from kdalab.errors import KdalabError
    from kdalab.lab import report_of
    from kdalab.lab.board import leaderboard as rank
    from kdalab.lab.setup import shown

    with o.known_errors():
        for name in sorted(set(o.set_values(settings)) & _OF_THE_ROWS.keys()):
            why = _OF_THE_ROWS[name]
            raise KdalabError(f"-s {name}: {why}")
        base = o.build_setup(settings, model, memory, limit=o.LIMIT)
        named: list[str | None] = list(traces) if traces else [None]
        read = [replace(source, trace=t).read() for t in named]
        with o.progress("replays", quiet=as_json) as show:
            entries = rank(read, base, policy or [], jobs, on_done=show)
    if as_json:
        typer.echo(json.dumps([e.as_dict() for e in entries], indent=2))
        _exit_if_failed(entries, policy)
        return
    from rich.console import Console
    from rich.table import Table

    over = f"the mean over {len(read)} traces ranks" if len(read) > 1 else "the most comes first"
    within = shown("memory", base.memory)
    table = Table(title=f"Share of prefill work saved, {within}; {over}")
    for place, name in enumerate(("", "policy", "mean", *(t.name for t in read))):
        table.add_column(name, overflow="fold", justify="left" if place == 1 else "right")
    for place, e in enumerate(entries, 1):
        each = ["failed" if err else f"{s:.2%}" for s, err in zip(e.saved, e.errors, strict=True)]
        table.add_row(str(place), e.name, f"{e.mean:.2%}", *each)
    console = Console()
    console.print(table)
    for e in entries:
        for t, err in zip(read, e.errors, strict=True):
            if err:
                console.print(f"{e.name} failed on {t.name}: {err}", markup=False, highlight=False)
    for t in read:
        o.print_report(report_of(t))
    _exit_if_failed(entries, policy)


def _exit_if_failed(entries: Sequence[Entry], own: list[str] | None) -> None:
    """A policy of one's own that failed is no rank, and a script is told so; so it is if nothing
    could be replayed."""
    if all(all(e.errors) for e in entries):
        say(f"no policy could be replayed; {entries[0].name}: {entries[0].errors[0]}")
        raise typer.Exit(1)
    failed = [e.name for e in entries if own and e.name in own and any(e.errors)]
    if failed:
        say(f"{', '.join(failed)} failed; the table says on which trace, and why")
        raise typer.Exit(1)
