def bytes_of_request(
    n_tokens: int, latent_bytes_per_token: int, checkpoint_bytes: int, interval: int
) -> int:
    """Only whole intervals end in a checkpoint."""
    checkpoints = n_tokens // interval
    return n_tokens * latent_bytes_per_token + checkpoints * checkpoint_bytes
