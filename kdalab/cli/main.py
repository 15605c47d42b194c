"""Entry point of the ``kdalab`` command."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

from kdalab import __version__
from kdalab.cli.refuse import say
from kdalab.errors import KdalabError

COMMANDS = (
    "demo",
    "size",
    "replay",
    "compare",
    "lab",
    "explain",
    "verify",
    "bench",
    "recall",
    "train",
    "plot",
    "check",
    "bundle",
    "serve",
    "mooncake",
    "sources",
)
"""Sub-commands in the order of the help; each is a module of this package."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kdalab {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line. A module offers ``app`` (a group) or ``command`` (one command)."""
    app = typer.Typer(
        name="kdalab",
        help="How hybrid models with Kimi Delta Attention change prefix caching, by running it.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True)
        ] = False,
    ) -> None:
        pass

    for name in COMMANDS:
        module = importlib.import_module(f"kdalab.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            settings = getattr(module, "CONTEXT_SETTINGS", None)
            app.command(name, context_settings=settings)(module.command)
    return app


def run() -> None:
    """Run the command line; a known error becomes a sentence and exit code 2."""
    try:
        build_app()()
    except KdalabError as error:
        say(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)  # before a command began; from then on typer says so itself
    except BrokenPipeError:
        sys.exit(141)  # the reader of a pipe has gone, as after `| head`
    except OSError as error:
        say(error)
        sys.exit(2)


if __name__ == "__main__":
    run()
