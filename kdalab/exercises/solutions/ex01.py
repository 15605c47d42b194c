def equal_tokens(checkpoint_bytes: int, latent_bytes_per_token: int) -> int:
    """Division rounded up, in whole numbers."""
    return -(-checkpoint_bytes // latent_bytes_per_token)
