"""Fixtures that several folders share: recordings of the lessons, the hub, and a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import hypothesis
import pytest

# Before torch is imported, and for the processes that tests start as well. The models here are so
# small that two threads mostly wait for each other: on a busy machine tens of times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from kdalab.lessons import Recording

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

# No example has a deadline, here as in CI (where hypothesis sees to it itself): a busy machine may
# stop any of them for longer than the usual 200 ms.
hypothesis.settings.register_profile(
    "unhurried",
    hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")


@lru_cache(maxsize=32)
def _recorded(name: str, faults: tuple[str, ...]) -> Recording:
    from kdalab.engine.faults import Faults
    from kdalab.lessons import play, scenario

    return play(scenario(name).changed(faults=Faults.named(list(faults))))


@pytest.fixture(scope="session")
def recorded() -> Callable[..., Recording]:
    """``recorded("fan-out", "skip_replay")``: a scenario's run, made once a session."""
    return lambda name, *faults: _recorded(name, faults)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of Chromium. Without it browser tests are skipped, and fail where CI is set."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found:
        return found
    hint = "no chromium on the PATH; on Debian and Ubuntu: apt install chromium"
    if os.environ.get("CI"):
        pytest.fail(hint)
    pytest.skip(hint)


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """A Chromium without network services of its own."""
    from demos.screenshots import browser as opened

    with opened(chromium) as running:
        # A busy machine is waited for; what never comes fails all the same, if later.
        running.on("context", lambda context: context.set_default_timeout(90_000))
        yield running


@pytest.fixture(scope="session")
def hub() -> Iterator[str]:
    """Address of the hub with all pages, on a free port of this machine."""
    from demos.screenshots import serving

    with serving() as url:
        yield url
