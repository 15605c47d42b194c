def kept_blocks(n_prompt: int, block: int, retention: int | None, junction: int) -> list[int]:
    """The tail and the junction always; others as the retention says."""
    tail = (n_prompt - 1) // block * block
    every = range(block, n_prompt + 1, block)
    if retention is None:
        return list(every)
    reachable = {tail, junction}
    return [b for b in every if b in reachable or (retention and b % retention == 0)]
