"""The pages as a reader meets them: the hub as a process of its own, a browser that steps.

Times of steps are taken inside the browser, from the click to the frame in which the page shows the
new step, so that driving the browser is in none of them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any

from kdalab.bench.chromium import browser, needed_chromium
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAINT_S, CHANGE_S, STEP_S, BUSY_STEP_S, MEMORY_BYTES = 2.0, 1.0, 0.2, 1.0, 1_500_000_000
_START_TIMEOUT_S = 180.0
_SHOWN = "#kd-picture :is(svg, table)"

_STEPS_JS = """
async (count) => {
  const at = () => document.querySelector('#kd-stepbar input[type=range]');
  const frame = () => new Promise(requestAnimationFrame);
  const times = [];
  let back = false;
  for (let i = 0; i < count; i++) {
    const bar = at();
    if (!bar) return times;
    if (bar.value === bar.max) back = true;
    if (bar.value === '0') back = false;
    const before = bar.value, begin = performance.now();
    document.getElementById(back ? 'kd-back' : 'kd-forward').click();
    while (at().value === before) {
      if (performance.now() - begin > 30000) throw new Error('no answer to a step in 30 s');
      await frame();
    }
    times.push((performance.now() - begin) / 1000);
  }
  return times;
}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: seconds or bytes (``unit`` "s" or "B"), and what is aimed at (at most)."""

    what: str
    value: float | None
    unit: str = "s"
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        return None if self.goal is None or self.value is None else self.value <= self.goal


def bench_ui(
    pages: Sequence[str] = (), steps_per_page: int = 10, sessions: int = 8, steps: int = 1_000
) -> list[Row]:
    """Start the hub, open every page, step through it, then step in several sessions at once.

    Args:
        pages: slugs; none means all.
        steps_per_page: steps that a page's median is taken over.
        sessions: browser contexts that step at the same time.
        steps: of all sessions together, before memory is read again.

    Raises:
        KdalabError: no Chromium, an unknown page, or a hub that did not start or ended.
    """
    executable = needed_chromium()
    with hub() as (url, server, started), browser(executable) as opened:
        rows = [Row("start of the hub to its first answer", started)]
        begin = time.perf_counter() - started
        rows.append(Row("first paint, the hub just started", _paint(opened, url), "s", PAINT_S))
        known = drawn(url)
        rows.append(Row("start of the hub until every page is drawn", time.perf_counter() - begin))
        at_start = resident_bytes(server.pid)
        slugs = _chosen(pages, known)
        rows.append(Row("first paint", median(_paint(opened, url) for _ in range(3)), "s", PAINT_S))
        rows += _pages(opened, url, slugs, steps_per_page)
        times = _together(opened, url, slugs, sessions, -(-steps // sessions))
        taken = sorted(seconds for _, seconds in times)
        slug, slowest = max(times, key=lambda item: item[1])
        busy = f"a step with {sessions} sessions"
        rows += [
            Row(f"{busy}, median", median(taken), "s", BUSY_STEP_S),
            Row(f"{busy}, 95 of 100", taken[int(0.95 * (len(taken) - 1))], "s", BUSY_STEP_S),
            Row(f"{busy}, largest ({slug})", slowest, "s", BUSY_STEP_S),
            Row("memory of the hub at the start", at_start, "B", MEMORY_BYTES),
            Row(
                f"memory after {len(taken):,} steps more",
                resident_bytes(server.pid), "B", MEMORY_BYTES,
            ),
        ]  # fmt: skip
    return rows


@contextmanager
def hub() -> Iterator[tuple[str, subprocess.Popen[str], float]]:
    """The hub as a process on a free port: its address, the process, seconds to the first answer.

    Raises:
        KdalabError: it ended or did not answer; the message has its last line.
    """
    port = _free_port()
    command = [sys.executable, "-m", "kdalab", "demo", "--port", str(port)]
    with tempfile.TemporaryFile("w+") as said:
        begin = time.perf_counter()
        server = subprocess.Popen(command, stdout=said, stderr=said, text=True, env=os.environ)
        try:
            url = f"http://127.0.0.1:{port}"
            _answering(url, server, said)
            yield url, server, time.perf_counter() - begin
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def drawn(url: str, timeout: float = _START_TIMEOUT_S) -> list[str]:
    """Wait until what every page opens with is drawn; the slugs of the pages.

    Raises:
        KdalabError: after ``timeout`` seconds.
    """
    end = time.monotonic() + timeout
    while True:
        with urllib.request.urlopen(f"{url}/config", timeout=60) as answer:
            config: dict[str, Any] = json.load(answer)
        pictures = [
            c["props"].get("value")
            for c in config["components"]
            if c["props"].get("elem_id") == "kd-picture"
        ]
        if all(pictures):
            return [slug for slug, *_ in config["pages"] if slug]
        if time.monotonic() > end:
            raise KdalabError(f"pages were still empty after {timeout:g} s")
        time.sleep(0.5)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        (line,) = [x for x in status.read_text().splitlines() if x.startswith("VmRSS")]
        return int(line.split()[1]) * 1024
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True)
    return int(shown.stdout) * 1024


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answering(url: str, server: subprocess.Popen[str], said: IO[str]) -> None:
    end = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                said.seek(0)
                last = (said.read().strip().splitlines() or ["it said nothing"])[-1]
                raise KdalabError(f"the hub did not start: {last}") from None
            time.sleep(0.02)


def _chosen(pages: Sequence[str], known: Sequence[str]) -> list[str]:
    for slug in pages:
        if slug not in known:
            raise KdalabError(f"unknown page {slug!r}; pages: {', '.join(known)}")
    return list(pages or known)


def _paint(opened: Browser, url: str) -> float:
    """Seconds to the first contentful paint of the front page, nothing in the browser's cache."""
    page = opened.new_page()
    try:
        page.goto(url)
        page.wait_for_selector("h1")
        entries = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        page.wait_for_function(entries)
        return float(page.evaluate(entries)) / 1000
    finally:
        page.close()


def _pages(opened: Browser, url: str, slugs: Sequence[str], steps: int) -> list[Row]:
    """From the front page to each page by its card, and steps there."""
    changes, charted, rows = [], [], []
    page = opened.new_page(viewport={"width": 1360, "height": 900})
    for slug in slugs:
        page.goto(url)
        card = page.locator(f".kd-cards a[href='./{slug}']")
        card.wait_for()
        begin = time.perf_counter()
        card.click()
        _wait_shown(page, slug)
        changes.append(time.perf_counter() - begin)
        _wait_charts(page)
        charted.append(time.perf_counter() - begin)
        taken = _step(page, steps)
        if taken:
            rows.append(Row(f"a step, {slug}", median(taken), "s", STEP_S))
    page.close()
    slowest, last = (slugs[times.index(max(times))] for times in (changes, charted))
    return [
        Row("page change, median", median(changes), "s", CHANGE_S),
        Row(f"page change, slowest ({slowest})", max(changes), "s", CHANGE_S),
        Row(f"page change until its charts are drawn, slowest ({last})", max(charted)),
        *rows,
    ]


def _wait_shown(page: Page, slug: str) -> None:
    page.wait_for_function(
        "([slug, shown]) => location.pathname.endsWith('/' + slug) "
        "&& document.querySelector(shown) !== null",
        arg=[slug, _SHOWN],
    )


def _wait_charts(page: Page) -> None:
    """Wait until the page's charts are drawn: reading plotly.js takes the page a second or so."""
    page.wait_for_function(
        "() => [...document.querySelectorAll('[id^=kd-plot-]')]"
        ".every((box) => box.querySelector('svg.main-svg'))"
    )


def _has_steps(page: Page) -> bool:
    page.wait_for_selector("#kd-stepbar [data-query]", state="attached")
    return page.locator("#kd-stepbar input[type=range]").count() > 0


def _step(page: Page, count: int) -> list[float]:
    if not _has_steps(page):
        return []
    times: list[float] = page.evaluate(_STEPS_JS, count)
    return times


def _together(
    opened: Browser, url: str, slugs: Sequence[str], sessions: int, each: int
) -> list[tuple[str, float]]:
    """(page, seconds) of every step of several sessions that step at once, on pages in turn.

    Raises:
        KdalabError: none of the pages has steps.
    """
    with ExitStack() as stack:
        tabs: list[tuple[str, Page]] = []
        for number in range(sessions * len(slugs)):
            if len(tabs) == sessions:
                break
            slug = slugs[number % len(slugs)]
            context = opened.new_context(viewport={"width": 1360, "height": 900})
            page = context.new_page()
            page.goto(f"{url}/{slug}")
            _wait_shown(page, slug)
            _wait_charts(page)
            if _has_steps(page):
                stack.callback(context.close)
                tabs.append((slug, page))
            else:
                context.close()
        if not tabs:
            raise KdalabError(f"no page of {', '.join(slugs)} has steps; name another")
        for _, page in tabs:
            page.evaluate(f"(n) => {{ window.kdTimes = ({_STEPS_JS})(n); }}", each)
        return [
            (slug, seconds)
            for slug, page in tabs
            for seconds in page.evaluate("() => window.kdTimes")
        ]
