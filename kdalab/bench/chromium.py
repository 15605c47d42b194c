"""A headless Chromium of this machine, driven by playwright; nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSER_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    """Where Chromium is, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def needed_chromium() -> str:
    """Where Chromium is.

    Raises:
        KdalabError: it, or playwright, is not installed; the message says how to get it.
    """
    from importlib.util import find_spec

    if find_spec("playwright") is None:
        raise KdalabError("this drives a browser through playwright; install kdalab[test]")
    found = chromium_path()
    if found is None:
        raise KdalabError(
            "this drives Chromium, which is not on the PATH; on Debian and Ubuntu: "
            "apt install chromium fonts-noto-cjk"
        )
    return found


@contextmanager
def browser(executable: str) -> Iterator[Browser]:
    """A Chromium that asks nobody anything."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=BROWSER_ARGS)
        try:
            yield opened
        finally:
            opened.close()
