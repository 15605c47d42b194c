def kept_blocks(n_prompt: int, block: int, retention: int | None, junction: int) -> list[int]:
    """Boundaries whose state stays in the cache after a prompt was prefilled, block by block.

    Args:
        n_prompt: tokens of the prompt.
        block: tokens of a block; a state is made at every multiple of it.
        retention: None (every block), 0 (what a later lookup can reach) or a number of tokens, a
            multiple of ``block``.
        junction: the boundary that a second prompt was seen to share (a multiple of ``block``, at
            most ``n_prompt``); 0 for none.

    Returns:
        The boundaries, ascending.
    """
    raise NotImplementedError
