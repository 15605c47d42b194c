def expected_replay(match_lengths: list[int], interval: int) -> float:
    """Tokens that a request replays on average, with a checkpoint at every ``interval`` tokens.

    Args:
        match_lengths: how far the text of each request is known (tokens), at least one number.
        interval: tokens from one checkpoint to the next.

    Returns:
        The mean over the requests of match less restore point (tokens).
    """
    raise NotImplementedError
