"""Inputs and the error measure that the kernel tests share."""

import torch

GATES = ("zero", "tiny", "random", "safe", "saturated", "huge", "reset", "mixed")


def gate(kind: str, shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Natural-log decay of one kind: from no decay at all to a full reset at every token."""
    u = torch.rand(shape, generator=rng, dtype=torch.float64)
    if kind == "mixed":  # each token and channel draws its own kind
        choices = torch.tensor([0.0, -1e-4, -0.5, -6.0, -50.0, -1000.0], dtype=torch.float64)
        return choices[(u * 6).long()]
    return {
        "zero": u * 0.0,
        "tiny": -1e-4 * u,
        "random": -u,
        "safe": -5.0 * u,
        "saturated": -6.0 - 44.0 * u,
        "huge": -1000.0 * (0.5 + u),
        "reset": torch.where(u < 0.3, -torch.inf, -u),
    }[kind]


def inputs(
    B: int,
    T: int,
    H: int,
    HV: int,
    K: int,
    V: int,
    *,
    kind: str = "random",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    correlated: bool = False,
) -> list[torch.Tensor]:
    """q, k, v, g, beta; with correlated keys cos(k_i, k_j) is about 0.99 and beta 0.95."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    q, k = unit(normal(B, T, H, K)), unit(normal(B, T, H, K))
    if correlated:
        k = unit(unit(normal(B, 1, H, K)) + 0.1 * k)
    beta = torch.rand((B, T, HV), generator=rng, dtype=torch.float64)
    if correlated:
        beta = torch.full_like(beta, 0.95)
    g = gate(kind, (B, T, HV, K), rng)
    return [x.to(dtype) for x in (q, k, normal(B, T, HV, V), g, beta)]


def state(N: int, HV: int, K: int, V: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A random state ``[N, HV, K, V]``."""
    rng = torch.Generator().manual_seed(99)
    return torch.randn((N, HV, K, V), generator=rng, dtype=torch.float64).to(dtype)


def rel_rms(x: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS(x - expected) / RMS(expected); 0 / 0 counts as 0, NaN and inf as infinitely wrong."""
    if x.numel() == 0 and expected.numel() == 0:
        return 0.0
    error = (x.double() - expected.double()).square().mean().sqrt().item()
    size = expected.double().square().mean().sqrt().item()
    if not error < float("inf"):
        return float("inf")
    return error / size if size else error


def wide(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same numbers in float64."""
    return [x.double() for x in xs]
