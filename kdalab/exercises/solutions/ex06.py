def joint_boundary(
    token_match: int,
    kv_boundaries: list[int],
    state_boundaries: list[int],
    n_tokens: int,
    page: int,
) -> int:
    """What both kinds have, cut by match, prompt and page."""
    joint = set(kv_boundaries) & set(state_boundaries)
    last = min(token_match, n_tokens - 1)
    return max((b for b in joint if b <= last and b % page == 0), default=0)
