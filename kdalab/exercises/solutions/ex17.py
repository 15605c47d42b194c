def padded_block(
    attention_bytes_per_token: int, state_bytes: int, multiple: int
) -> tuple[int, int]:
    """Steps of ``multiple`` tokens, rounded up."""
    step = multiple * attention_bytes_per_token
    steps = -(-state_bytes // step)
    return steps * multiple, steps * step - state_bytes
