def chunk_stops(n_prompt: int, start: int, block: int, budget: int) -> list[int]:
    """The earliest of what ends a chunk, again and again."""
    tail = (n_prompt - 1) // block * block
    stops = []
    while start < n_prompt:
        end = min(start + budget, n_prompt)
        floored = end // block * block
        if end < n_prompt and floored > start:
            end = floored
        marks = [tail]
        if start % block:
            marks.append((start // block + 1) * block)
        end = min([end, *(m for m in marks if start < m < end)])
        stops.append(end)
        start = end
    return stops
