"""Every model test runs on one thread, but those that say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kdalab.model import HybridModel, tiny_model


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Products here are tiny: on a busy machine two threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny() -> HybridModel:
    """The tiny model of seed 0; it keeps nothing, so tests can share it."""
    return tiny_model()
