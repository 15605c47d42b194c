def fine_probe(hashes: list[str], cached: set[str], block: int, unit: int) -> int:
    """How far the KV of a prompt is known, also inside a block.

    Args:
        hashes: one for each whole unit of the prompt; each stands for the whole prefix up to its
            end. A block is known by the hash of its last unit.
        cached: hashes that the cache knows.
        block: tokens of a block, a multiple of ``unit``.
        unit: tokens that one hash stands for.

    Returns:
        Known tokens.
    """
    raise NotImplementedError
