def marconi_scores(nodes: list[tuple[int, int, int]], alpha: float, now: int) -> list[float]:
    """Two terms, each spread over 0 to 1 among the candidates."""

    def normalised(values: list[float]) -> list[float]:
        low, high = min(values), max(values)
        if high == low:
            return [0.0] * len(values)
        return [(v - low) / (high - low) for v in values]

    recency = normalised([1 / (now - used) for used, _, _ in nodes])
    saving = normalised([flops / nbytes for _, flops, nbytes in nodes])
    return [r + alpha * s for r, s in zip(recency, saving, strict=True)]
