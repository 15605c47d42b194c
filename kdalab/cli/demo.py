"""``kdalab demo``: open the pages in a browser."""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from types import ModuleType

PORTS = range(1, 65536)


def command(
    page: Annotated[
        str | None, typer.Argument(help="The page to point at; default: the front page.")
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 127.0.0.1 is this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="TCP port, 1 to 65535.")] = 7860,
) -> None:
    """Open the demos: pages that run the engine and show it step by step."""
    try:
        if port not in PORTS:
            raise KdalabError(f"port {port}; use 1 to 65535")
        check_free(host, port)  # before the seconds of loading, so that the answer comes at once
        app = load_demos()
        slug = find_page(page, [p.slug for p in app.pages()]) if page else ""
    except KdalabError as error:
        refuse(error)
    blocks = app.build_app()
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{port}/{slug}"
    try:
        blocks.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            **app.launch_options(),
        )
    except OSError as error:
        refuse(f"cannot listen on {shown}:{port}: {error}", error)
    app.draw_pages(blocks, slug)
    typer.echo(f"KDALab is open on {where}  (Ctrl+C ends it)")
    blocks.block_thread()


def check_free(host: str, port: int) -> None:
    """Make sure that ``port`` can be listened on.

    Raises:
        KdalabError: it is in use or not allowed, or ``host`` is no address of this machine; the
            message says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the server itself does: a port that only lingers from an ended run is free.
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port + 1 in PORTS else port - 1
            raise KdalabError(
                f"port {port} on {host} is in use. End the program that uses it, or choose "
                f"another: kdalab demo --port {other}"
            ) from error
        if error.errno == errno.EACCES:
            raise KdalabError(
                f"port {port} needs more rights; choose one above 1023, as in --port 7860"
            ) from error
        raise KdalabError(
            f"cannot listen on {host!r} ({error.strerror or error}); use an address of this "
            "machine, as in --host 127.0.0.1"
        ) from error


def find_page(name: str, known: list[str]) -> str:
    """The page's address from what was typed; hyphens, underscores and case do not matter.

    Raises:
        KdalabError: no such page; the message lists the known ones.
    """
    wanted = name.strip().strip("/").lower().replace("_", "-")
    if wanted not in known:
        raise KdalabError(f"unknown page {name!r}; pages: {', '.join(known)}")
    return wanted


def load_demos() -> ModuleType:
    """The module ``demos.app`` of this checkout or wheel.

    Raises:
        KdalabError: this installation has no demos.
    """
    from kdalab.resources import resource_dir

    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    parent = str(resource_dir("demos").parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    import demos.app

    return demos.app
