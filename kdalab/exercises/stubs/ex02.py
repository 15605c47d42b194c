def bytes_of_request(
    n_tokens: int, latent_bytes_per_token: int, checkpoint_bytes: int, interval: int
) -> int:
    """Bytes that a prompt leaves in the cache.

    Args:
        n_tokens: tokens of the prompt.
        latent_bytes_per_token: latent KV of one token, all MLA layers (bytes).
        checkpoint_bytes: one checkpoint, all KDA layers (bytes).
        interval: a checkpoint after every so many tokens (at least 1).

    Returns:
        Latent KV of all tokens, and one checkpoint at every multiple of ``interval`` from
        ``interval`` to ``n_tokens`` (bytes).
    """
    raise NotImplementedError
