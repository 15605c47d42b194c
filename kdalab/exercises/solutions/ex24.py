def first_difference(prompts: list[tuple[int, ...]], block: int) -> tuple[int, int, int]:
    """Both caches as sets of prefixes."""
    known: set[tuple[int, ...]] = set()
    tree: set[tuple[int, ...]] = set()
    blocks: set[tuple[int, ...]] = set()

    def deepest(tokens: tuple[int, ...], where: set[tuple[int, ...]], end: int) -> int:
        return max((b for b in range(block, end + 1, block) if tokens[:b] in where), default=0)

    for index, tokens in enumerate(prompts):
        n = len(tokens)
        found = deepest(tokens, tree, n - 1), deepest(tokens, blocks, n - 1)
        if found[0] != found[1]:
            return index, *found
        match = deepest(tokens, known, n)
        ends = (n // block * block, (n - 1) // block * block)
        for states, end in zip((tree, blocks), ends, strict=True):
            left = {end, match} if match > deepest(tokens, states, n) else {end}
            states.update(tokens[:b] for b in left if b)
        known.update(tokens[:b] for b in range(block, n + 1, block))
    return -1, 0, 0
