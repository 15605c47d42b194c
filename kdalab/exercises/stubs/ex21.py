def marconi_scores(nodes: list[tuple[int, int, int]], alpha: float, now: int) -> list[float]:
    """Marconi's score of each candidate for eviction; the lowest goes.

    Args:
        nodes: ``(last_use, flops_saved, nbytes)`` of each: when it was last used (ticks, before
            ``now``), what a hit here saves beyond its parent (FLOPs), and what it frees (bytes).
        alpha: weight of the saving against recency; 0 is least recent use.
        now: the present tick.

    Returns:
        One score a node, in their order.
    """
    raise NotImplementedError
