def first_difference(prompts: list[tuple[int, ...]], block: int) -> tuple[int, int, int]:
    """The first prompt that a radix tree and a block cache restore at different boundaries.

    Args:
        prompts: the tokens of each request, in the order of arrival; each is finished before the
            next comes, and nothing is ever evicted.
        block: tokens of a page of the tree, and of a block.

    Returns:
        ``(index, tree_restore, block_restore)`` of that prompt; ``(-1, 0, 0)`` if there is none.
    """
    raise NotImplementedError
