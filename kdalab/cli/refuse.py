"""How every command refuses: one line on standard error, and exit code 2."""

from __future__ import annotations

from typing import NoReturn

import typer


def refuse(problem: object, cause: BaseException | None = None) -> NoReturn:
    """Print ``kdalab: problem`` and leave; the problem is text or the error that tells it."""
    typer.echo(f"kdalab: {problem}", err=True)
    raise typer.Exit(2) from (problem if isinstance(problem, BaseException) else cause)
