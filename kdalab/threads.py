"""How many threads torch uses for the tiny model."""

from __future__ import annotations


def use_one_thread() -> None:
    """Have torch compute on one thread, for this process.

    The tiny model's products are too small to share out: a second thread makes a cell no faster
    on an idle machine, and many times slower on a busy one, where each small product waits for
    both threads to be scheduled. Called by the commands, pages and notebooks that run the model,
    never by an import.
    """
    import torch

    torch.set_num_threads(1)
