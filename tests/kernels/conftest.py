"""Every kernel test draws the same numbers in every run and in every order."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_numbers():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _one_thread():
    """Inputs here are tiny: on a busy machine several threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
