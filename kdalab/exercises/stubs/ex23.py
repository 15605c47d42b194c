def ship_or_replay(
    tokens: int, state_bytes: int, latent_bytes_per_token: int, bandwidth: int, prefill_rate: int
) -> tuple[str, int]:
    """Is a prefix quicker sent to another instance, or computed there again?

    Args:
        tokens: of the prefix.
        state_bytes: recurrent and conv state of all layers, sent once (bytes).
        latent_bytes_per_token: latent KV of a token (bytes).
        bandwidth: of the link (bytes a second).
        prefill_rate: of the other instance (tokens a second).

    Returns:
        ``(choice, break_even)``: "ship" if sending is quicker, else "replay"; and the fewest tokens
        for which sending is quicker, -1 if it never is.
    """
    raise NotImplementedError
