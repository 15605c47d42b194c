def group_layers(specs: list[tuple[str, int]]) -> tuple[list[list[int]], int]:
    """Cache groups of a model's layers.

    Args:
        specs: of each layer, in order: its kind, "full" (attention) or "state" (KDA), and the bytes
            of its page. Layers of equal spec can share a block table.

    Returns:
        ``(groups, empty)``: the layers' numbers group by group, and how many places for layers stay
        empty when all groups have as many places as the largest has layers.
    """
    raise NotImplementedError
