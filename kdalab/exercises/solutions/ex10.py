def expected_replay(match_lengths: list[int], interval: int) -> float:
    """What is left of each match beyond its last checkpoint."""
    return sum(m % interval for m in match_lengths) / len(match_lengths)
