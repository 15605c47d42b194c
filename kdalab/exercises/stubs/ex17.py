def padded_block(
    attention_bytes_per_token: int, state_bytes: int, multiple: int
) -> tuple[int, int]:
    """The block of the padded layout, for one attention layer beside one KDA layer.

    Args:
        attention_bytes_per_token: of one attention layer.
        state_bytes: recurrent and conv state of one KDA layer.
        multiple: the kernel's blocks are multiples of so many tokens.

    Returns:
        ``(tokens, wasted)``: the fewest tokens, a multiple of ``multiple``, whose attention page
        holds a state; and the bytes of a page that stay unused when it holds one.
    """
    raise NotImplementedError
