def ship_or_replay(
    tokens: int, state_bytes: int, latent_bytes_per_token: int, bandwidth: int, prefill_rate: int
) -> tuple[str, int]:
    """(state + n latent) / bandwidth < n / rate, multiplied out so that no number is rounded."""
    gain = bandwidth - prefill_rate * latent_bytes_per_token
    if gain <= 0:
        return "replay", -1
    break_even = prefill_rate * state_bytes // gain + 1
    return ("ship" if tokens >= break_even else "replay"), break_even
