"""Screenshots of every page: light and dark, wide and narrow.

``python -m demos.screenshots --out docs/images`` starts the hub on a free port and saves
``<page>-<theme>-<width>.png``, and ``restore.png``, the picture of the README.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demos import app
from kdalab.bench.chromium import browser as browser
from kdalab.bench.chromium import chromium_path as chromium_path

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE, NARROW = (1360, 900), (400, 860)
README_QUERY = "scenario=fan-out&spacing=192&step=13"


@contextmanager
def serving(port: int | None = None) -> Iterator[str]:
    """The hub on a free port (or ``port``), as its address; closed at the end."""
    blocks = app.build_app()
    _, url, _ = blocks.launch(
        server_name="127.0.0.1",
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        **app.launch_options(),
    )
    app.draw_pages(blocks)
    try:
        yield url.rstrip("/")
    finally:
        blocks.close(verbose=False)


def open_page(opened: Browser, url: str, size: tuple[int, int], **context: Any) -> Page:
    """A page at ``url``, drawn and settled."""
    page = opened.new_page(viewport={"width": size[0], "height": size[1]}, **context)
    page.goto(url)
    page.wait_for_selector("h1")
    page.wait_for_selector(".kd-svg")
    page.wait_for_timeout(1500)
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Save the screenshots; returns 2 with one line on stderr where Chromium is missing."""
    parser = argparse.ArgumentParser(prog="python -m demos.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder")
    parser.add_argument("--readme-only", action="store_true", help="only restore.png")
    options = parser.parse_args(argv)
    executable = chromium_path()
    if executable is None:
        print("screenshots need Chromium; on Debian: apt install chromium", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with serving() as url, browser(executable) as opened:
        if not options.readme_only:
            for slug in ["", *(p.slug for p in app.pages())]:
                for theme in ("light", "dark"):
                    for name, size in (("wide", WIDE), ("narrow", NARROW)):
                        page = open_page(opened, f"{url}/{slug}?__theme={theme}", size)
                        file = options.out / f"{slug or 'home'}-{theme}-{name}.png"
                        page.screenshot(path=file, full_page=True)
                        print(file)
                        page.close()
        file = options.out / "restore.png"
        page = open_page(opened, f"{url}/restore?{README_QUERY}&__theme=light", WIDE)
        page.screenshot(path=file, clip=_upto_legend(page), full_page=True)
        print(file)
    return 0


def _upto_legend(page: Page) -> Any:
    """From the title to the legend, a little air around it."""
    top = page.locator("h1").first.bounding_box()
    bottom = page.locator("#kd-legend .kd-legend").bounding_box()
    if top is None or bottom is None:
        raise SystemExit("the page has no title or no legend")
    y = max(0, top["y"] - 16)
    return {"x": 0, "y": y, "width": WIDE[0], "height": bottom["y"] + bottom["height"] + 16 - y}


if __name__ == "__main__":
    sys.exit(main())
