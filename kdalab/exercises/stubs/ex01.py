def equal_tokens(checkpoint_bytes: int, latent_bytes_per_token: int) -> int:
    """Tokens of latent KV that weigh at least as much as one checkpoint.

    Args:
        checkpoint_bytes: one checkpoint, all KDA layers (bytes).
        latent_bytes_per_token: latent KV of one token, all MLA layers (bytes, at least 1).

    Returns:
        The smallest whole number of tokens n with ``n * latent_bytes_per_token >=
        checkpoint_bytes``.
    """
    raise NotImplementedError
