"""``kdalab demo``: open the pages in a browser."""

from __future__ import annotations

import errno
import os
import socket
import sys
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError
from kdalab.words import LANGUAGES

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
    lang: Annotated[
        str | None,
        typer.Option("--lang", help="en, zh or ko; without, what each browser asks for."),
    ] = None,
    share: Annotated[
        bool, typer.Option("--share", help="A public address through Gradio's servers; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Answer --share's question with yes.")] = False,
) -> None:
    """Open the demos: pages that run the engine and show it step by step."""
    try:
        if port not in PORTS:
            raise KdalabError(f"port {port}; use 1 to 65535")
        if lang is not None and lang not in LANGUAGES:
            raise KdalabError(f"language {lang!r}; use one of {', '.join(LANGUAGES)}")
        if share:
            allow_sharing(yes)
        check_free(host, port)  # before the seconds of loading, so that the answer comes at once
        app = load_demos()
        slug = find_page(page, [p.slug for p in app.pages()]) if page else ""
    except KdalabError as error:
        refuse(error)
    if not is_loopback(host):
        typer.echo(
            f"kdalab: warning: {host} is more than this machine; who reaches it can open these "
            "pages, without a password",
            err=True,
        )
    if lang is not None:
        app.speak_first(lang)
    blocks = app.build_app()
    app.end_in_order()
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{port}/{slug}"
    try:
        blocks.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            **(app.launch_options() | {"share": share}),
        )
    except OSError as error:
        refuse(f"cannot listen on {shown}:{port}: {error}", error)
    if share and not blocks.share_url:
        blocks.close(verbose=False)
        refuse("Gradio gave no public address (it needs the internet); leave out --share")
    app.draw_pages(blocks, slug)
    typer.echo(f"KDALab is open on {where}  (Ctrl+C ends it)")
    if share:
        typer.echo(f"and, for everyone who has the address, on {blocks.share_url}/{slug}")
    blocks.block_thread()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``; names other than localhost count as others."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def allow_sharing(yes: bool) -> None:
    """Ask before anything is exposed; ``yes`` is an answer given beforehand.

    Raises:
        KdalabError: the answer was no, or there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise KdalabError(
            "--share gives these pages a public address, and there is no terminal to ask on; "
            "add --yes if that is meant"
        )
    question = "Everyone with the address can open these pages on this machine. Share them?"
    if not typer.confirm(question, err=True):
        raise KdalabError("nothing was shared; leave out --share to open the pages here only")


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
                f"another: kdalab demo --port {other} (make demo PORT={other})"
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
