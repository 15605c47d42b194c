"""``kdalab check``: is your answer to an exercise right?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError, shown

if TYPE_CHECKING:
    from kdalab.exercises import Exercise


def command(
    name: Annotated[
        str | None, typer.Argument(help="The exercise: ex07; see --list.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE[:FUNCTION]",
            help="Your Python file. It runs here as any program of yours, with your rights.",
            show_default=False,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the exercises and stop.")] = False,
    stub: Annotated[
        bool, typer.Option("--stub", help="Print what to start from, or write it into FILE.")
    ] = False,
    hint: Annotated[
        bool, typer.Option("--hint", help="The first hint; `--hint 2` for the next.")
    ] = False,
    solution: Annotated[
        bool, typer.Option("--solution", help="Print a solution; asks first.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Write the case that fails as SVG.")
    ] = None,
) -> None:
    """Check your answer to an exercise; show the smallest case that it gets wrong.

    The file runs in a process of its own, which is ended after a minute, and
    sooner when it wants too much memory. Exit code 0: it passed; 1: it did not; 2: it could not be
    tried (no such file or function, or the file itself does not run).
    """
    try:
        if list_:
            _print_list()
            return
        if name is None:
            raise KdalabError("name an exercise, as in `kdalab check ex07 FILE`, or use --list")
        from kdalab.exercises import find

        exercise = find(name)
        if stub:
            _give_stub(exercise, file)
        elif hint:
            typer.echo(exercise.hint(_number(file)))
        elif solution:
            typer.confirm(f"Show a solution of {exercise.name}?", abort=True)
            typer.echo(exercise.solution, nl=False)
        elif file is None:
            typer.echo(
                f"{exercise.intro}\n\nStart from `kdalab check {exercise.name} --stub FILE`."
            )
        else:
            raise typer.Exit(_check(exercise, file, picture))
    except KdalabError as error:
        refuse(error)


def _check(exercise: Exercise, file: str, picture: Path | None) -> int:
    from kdalab.exercises.child import check_file
    from kdalab.exercises.outcome import Status

    path, colon, function = file.rpartition(":")
    if not colon or not function.isidentifier():
        path, function = file, ""
    outcome = check_file(exercise.name, Path(path), function or None)
    typer.echo(outcome.terminal_text)
    if picture is not None and outcome.picture:
        from kdalab.viz.svg import standalone

        try:
            picture.write_text(standalone(outcome.picture), encoding="utf-8")
            typer.echo(f"  picture: {picture}")
        except OSError as error:  # the answer was checked: that is what the exit code says
            typer.echo(f"kdalab: no picture: {_unwritable(picture, error)}", err=True)
    return (
        0 if outcome.passed else 2 if outcome.status is Status.SKIPPED or not outcome.tried else 1
    )


def _number(word: str | None) -> int:
    if word is None:
        return 1
    if not word.isdecimal() or len(word) > 3:
        raise KdalabError(f"{shown(word)} is no number of a hint; use --hint, or --hint 2")
    return int(word)


def _give_stub(exercise: Exercise, file: str | None) -> None:
    if file is None:
        typer.echo(exercise.stub, nl=False)
        return
    try:
        with open(file, "x", encoding="utf-8") as out:
            out.write(exercise.stub)
    except FileExistsError:
        raise KdalabError(f"{file} is there already; give another name, or delete it") from None
    except OSError as error:
        raise KdalabError(_unwritable(file, error)) from None
    typer.echo(f"{file}: write the function, then `kdalab check {exercise.name} {file}`")


def _unwritable(file: object, error: OSError) -> str:
    why = (error.strerror or type(error).__name__).lower()
    return f"{file} cannot be written ({why}); give a file in a folder that is there"


def _print_list() -> None:
    from rich.console import Console
    from rich.table import Table

    from kdalab.exercises import EXERCISES

    table = Table(box=None, pad_edge=False)
    table.add_column("exercise", style="bold", no_wrap=True)
    table.add_column("level", justify="right")
    table.add_column("what to write")
    table.add_column("notebook", no_wrap=True)
    for exercise in EXERCISES.values():
        table.add_row(exercise.name, str(exercise.level), exercise.title, exercise.notebook)
    Console().print(table)
