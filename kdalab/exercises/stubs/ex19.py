def chunk_stops(n_prompt: int, start: int, block: int, budget: int) -> list[int]:
    """Where the chunks of a prefill end, so that states stand at block boundaries.

    Args:
        n_prompt: tokens of the prompt.
        start: where the computation begins, fewer than ``n_prompt``.
        block: tokens of a block.
        budget: the most tokens of one chunk.

    Returns:
        The ends of all chunks, ascending; the last is ``n_prompt``.
    """
    raise NotImplementedError
