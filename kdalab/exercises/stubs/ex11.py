def place(matches: list[int], budget: int) -> list[int]:
    """At most ``budget`` boundaries for checkpoints that make the total replay least.

    Args:
        matches: how far the text of each later request is known (tokens).
        budget: checkpoints that there is room for.

    Returns:
        The boundaries, ascending. A request of match m restarts at the largest boundary <= m, or
        at 0.
    """
    raise NotImplementedError
