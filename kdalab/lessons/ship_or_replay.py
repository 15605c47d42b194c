"""Whether a state should travel at all: what is refused, what real models move, when it pays."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdalab.transfer import MatrixRow
    from kdalab.transfer.worth import KindBytes, WorthLine


@lru_cache(maxsize=1)
def refused_offers() -> tuple[MatrixRow, ...]:
    """Every way in which a state can be the wrong one, judged here and now by the real checks."""
    from kdalab.transfer import refusal_matrix

    return tuple(refusal_matrix())


WORTH_MODELS = ("kimi-linear-48b", "kimi-k3")


@lru_cache(maxsize=8)
def worth_lines(rate: float) -> tuple[WorthLine, ...]:
    """Break-even of ``WORTH_MODELS`` over the bandwidth, at a prefill of ``rate`` tokens a second.

    Raises:
        KdalabError: a rate that is not above 0.
    """
    from kdalab.spec import resolve_model
    from kdalab.transfer.worth import BANDWIDTHS, worth_line

    return tuple(worth_line(resolve_model(name), rate, BANDWIDTHS) for name in WORTH_MODELS)


def real_bytes(tokens: int) -> tuple[KindBytes, ...]:
    """What the same request would move on real models, by kind."""
    from kdalab.spec import resolve_model
    from kdalab.transfer.worth import bytes_by_kind

    specs = [resolve_model(name) for name in WORTH_MODELS]
    return tuple(bytes_by_kind(spec, (tokens,))[0] for spec in specs)
