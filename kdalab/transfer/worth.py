"""When moving a state beats computing it again: bytes by kind, and the length at which they tie.

Arithmetic on ``spec`` alone. Both ways are straight lines in the number of tokens: shipping has a
fixed part (recurrent and conv state, whatever the length) and a part for each token (latent KV),
replaying has a part for each token only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kdalab.errors import KdalabError
from kdalab.spec import ModelSpec, state_sizes

LENGTHS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
"""Prompts whose bytes are listed, tokens."""

BANDWIDTHS = tuple(10 ** (8 + step / 20) for step in range(71))
"""From 0.1 GB/s to 316 GB/s, in bytes a second: 20 to the decade."""


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Bytes of each kind for one prompt: ``share`` is what recurrent and conv state are of all."""

    model: str
    tokens: int
    latent: int
    recurrent: int
    conv: int

    @property
    def total(self) -> int:
        """All kinds."""
        return self.latent + self.recurrent + self.conv

    @property
    def share(self) -> float:
        """Of the bytes, what does not depend on the prompt's length."""
        return (self.recurrent + self.conv) / self.total


@dataclass(frozen=True, slots=True)
class WorthLine:
    """One model: ``points`` are (bandwidth in bytes a second, break-even in tokens or infinity).

    ``fixed_bytes`` are recurrent and conv state, ``token_bytes`` the latent KV of a token.
    """

    model: str
    rate: float
    fixed_bytes: int
    token_bytes: int
    points: tuple[tuple[float, float], ...]

    @property
    def floor(self) -> float:
        """Bandwidth (bytes a second) below which shipping never wins: one token's latent KV then
        travels no faster than the token is computed."""
        return self.token_bytes * self.rate


def bytes_by_kind(spec: ModelSpec, lengths: Sequence[int] = LENGTHS) -> list[KindBytes]:
    """What a request of each length has to move, whole model; exact integers from ``spec``."""
    sizes = state_sizes(spec)
    return [
        KindBytes(spec.name, n, sizes.latent_bytes(n), sizes.recurrent_bytes, sizes.conv_bytes)
        for n in lengths
    ]


def break_even(
    fixed_bytes: float,
    token_bytes: float,
    bandwidth: float,
    seconds_a_token: float,
    ship_fixed: float = 0.0,
    ship_token: float = 0.0,
    replay_fixed: float = 0.0,
) -> float:
    """Tokens from which on shipping a state is sooner than computing it; infinite if never.

    Shipping n tokens takes ``ship_fixed + fixed_bytes / bandwidth + n (ship_token + token_bytes /
    bandwidth)`` seconds, replaying them ``replay_fixed + n seconds_a_token``.
    """
    gain = seconds_a_token - ship_token - token_bytes / bandwidth
    need = ship_fixed + fixed_bytes / bandwidth - replay_fixed
    if need <= 0 and gain >= 0:
        return 0.0
    return need / gain if gain > 0 else float("inf")


def worth_line(spec: ModelSpec, rate: float, bandwidths: Sequence[float]) -> WorthLine:
    """Break-even of a whole model over bandwidths (bytes a second), at a prefill of ``rate`` tokens
    a second.

    Raises:
        KdalabError: a rate or a bandwidth that is not above 0.
    """
    if not rate > 0 or any(not b > 0 for b in bandwidths):
        raise KdalabError("bandwidths and the rate of prefill are above 0")
    sizes = state_sizes(spec)
    fixed, token = sizes.checkpoint_bytes, sizes.latent_bytes_per_token
    points = tuple((b, break_even(fixed, token, b, 1 / rate)) for b in bandwidths)
    return WorthLine(spec.name, rate, fixed, token, points)
