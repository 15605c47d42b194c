def fine_probe(hashes: list[str], cached: set[str], block: int, unit: int) -> int:
    """Whole blocks from the left; then, in the first that is missing, from high to low."""
    per = block // unit
    whole = 0
    while (whole + 1) * per <= len(hashes) and hashes[(whole + 1) * per - 1] in cached:
        whole += 1
    first = whole * per
    for i in range(min(first + per, len(hashes)) - 1, first - 1, -1):
        if hashes[i] in cached:
            return (i + 1) * unit
    return whole * block
