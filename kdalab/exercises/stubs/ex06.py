def joint_boundary(
    token_match: int,
    kv_boundaries: list[int],
    state_boundaries: list[int],
    n_tokens: int,
    page: int,
) -> int:
    """The boundary at which a prompt can be restored.

    Args:
        token_match: how far the text is known (tokens).
        kv_boundaries: boundaries at which latent KV is available, in any order (tokens).
        state_boundaries: those at which recurrent and conv state are, in any order (tokens).
        n_tokens: tokens of the prompt.
        page: tokens of one latent page; nothing is restored inside a page.

    Returns:
        The largest boundary that is in both lists, on a page, within the match, and that leaves
        at least one token of the prompt to compute; 0 when there is none.
    """
    raise NotImplementedError
