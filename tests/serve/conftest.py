from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from serve.serving import Stand, stand


@pytest.fixture(scope="package")
def running() -> Iterator[Stand]:
    """Prefill, decode and router as processes."""
    with stand() as found:
        yield found
