"""``kdalab mooncake``: a Mooncake Store on this machine."""

from __future__ import annotations

import json
import signal
import threading
from typing import Annotated

import typer

ENDS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))
"""Signals that ask it to stop; the last one comes when its terminal is closed."""

app = typer.Typer(help="Run a Mooncake Store on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Run a Mooncake Store on this machine."""


@app.command()
def up(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The master's; 0: a free one.")] = 0,
    metadata_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The metadata server's; 0: a free one.")
    ] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Start a master and its metadata server on 127.0.0.1; both end with Ctrl-C, or
    with this terminal."""
    from kdalab.errors import KdalabError
    from kdalab.transfer.mooncake_master import MooncakeMaster

    ended = threading.Event()
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda *_: ended.set())
    with MooncakeMaster(port, metadata_port) as master:
        where = {"master": master.address, "metadata_server": master.metadata_server}
        if json_:
            typer.echo(json.dumps({**where, "pid": master.pid}))
        else:
            typer.echo(f"Mooncake master at {master.address}")
            typer.echo(f"metadata at {master.metadata_server}")
            typer.echo("Ctrl-C stops both.")
        while not ended.wait(0.2):
            if not master.is_running:
                raise KdalabError("the Mooncake master has ended of itself")
    if not json_:
        typer.echo("Stopped.")
