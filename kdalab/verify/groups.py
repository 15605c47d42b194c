"""What ``kdalab verify`` tries, in order. A new kind of claim is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kdalab.verify.blocks import block_claims
from kdalab.verify.claim import Claim, Progress
from kdalab.verify.features import engine_claims
from kdalab.verify.k3 import k3_claims
from kdalab.verify.lab import lab_claims
from kdalab.verify.network import chunk_claim, transformers_claims
from kdalab.verify.ops import op_claims
from kdalab.verify.restore import restore_claims
from kdalab.verify.serve import serve_claims
from kdalab.verify.transfer import transfer_claims


class Group(NamedTuple):
    """Claims that are tried together; ``claims(cases, seed, progress)`` gives their rows."""

    title: str
    claims: Callable[[int, int, Progress], list[Claim]]


GROUPS: tuple[Group, ...] = (
    Group("restored = straight", restore_claims),
    Group("the engine's features", lambda n, seed, show: engine_claims(min(n, 60), seed, show)),
    Group("the engine on blocks", lambda n, seed, show: block_claims(min(n, 12), seed, show)),
    Group("lab = engine", lambda n, seed, show: lab_claims(min(n, 200), seed, show)),
    Group("chunk form = recurrence", lambda n, seed, _: [chunk_claim(min(n, 200), seed)]),
    Group("ops = specification", lambda n, seed, show: op_claims(min(n, 200), seed, show)),
    Group("model = transformers", lambda n, seed, _: transformers_claims(seed)),
    Group("moved = stayed", lambda n, seed, show: transfer_claims(min(n, 40), seed, show)),
    Group("two processes = one", lambda n, seed, show: serve_claims(min(n, 12), seed, show)),
    # The same network code once more, with every switch on: a quarter of the cases.
    Group("Kimi K3", lambda n, seed, show: k3_claims(-(-n // 4), seed, show)),
)
