"""Three ways to invert ``I + Akk`` in float32, on keys that tell them apart.

With near-parallel keys and slow decay the powers of Akk grow before they cancel, so the product
``(I - A)(I + A^2)(I + A^4)...``, exact algebra, loses every digit; substitution does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

COSINE, BETA, GATE, K = 0.99, 0.95, -0.0005, 128
LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class SolveError:
    """Relative RMS errors of a float32 inverse against float64, largest of several tiles.

    Attributes:
        C: tokens in a tile.
        doubling: by the product of powers.
        substitution: by ``torch.linalg.solve_triangular``.
        blocks: by joining the inverses of blocks, as ``chunk_kda`` does on the torch path, from
            keys and gates: the rounding of Akk is in it, which the others are spared.
    """

    C: int
    doubling: float
    substitution: float
    blocks: float


def solve_errors(sizes: tuple[int, ...] = (16, 32, 64), tiles: int = 8) -> list[SolveError]:
    """Errors for keys with a cosine of 0.99, beta 0.95 and a gate of -0.0005 in every channel."""
    return [_errors(C, tiles) for C in sizes]


def _errors(C: int, tiles: int) -> SolveError:
    import torch
    from torch.nn.functional import normalize

    rng = torch.Generator().manual_seed(0)
    shared = normalize(torch.randn(tiles, 1, K, generator=rng), dim=-1)
    own = normalize(torch.randn(tiles, C, K, generator=rng), dim=-1)
    # Two keys share COSINE of their squared length.
    k = normalize(COSINE**0.5 * shared + (1 - COSINE) ** 0.5 * own, dim=-1)
    time = torch.arange(C, dtype=torch.float64)
    decay = torch.exp(GATE * (time[:, None] - time)).tril(-1)
    A = BETA * (k.double() @ k.double().mT) * decay
    eye = torch.eye(C)
    exact = torch.linalg.solve_triangular(A + eye, eye.double().expand_as(A), upper=False)

    def error(x: torch.Tensor) -> float:
        wrong = (x.double() - exact).square().mean((1, 2)) / exact.square().mean((1, 2))
        return float(wrong.sqrt().max())

    single = A.float()
    solved = torch.linalg.solve_triangular(
        single, eye.expand_as(single), upper=False, unitriangular=True
    )
    return SolveError(C, error(_doubling(single)), error(solved), error(_blocks(k)))


def _doubling(A: torch.Tensor) -> torch.Tensor:
    """``(I + A)^-1 = (I - A)(I + A^2)(I + A^4)...``, until the power is 0 in exact algebra."""
    import torch

    C = A.shape[-1]
    eye = torch.eye(C)
    out, power, done = eye - A, A, 2
    while done < C:
        power = power @ power
        out, done = out @ (eye + power), 2 * done
    return out


def _blocks(k: torch.Tensor) -> torch.Tensor:
    """The inverse that the torch path makes of these keys ``[tiles, C, K]``."""
    import torch

    from kdalab_kernels.torch_path.decay import decayed_products, levels, squares

    n, C, _ = k.shape
    columns = k.clone()
    rows = torch.stack((columns, BETA * columns), dim=2)
    G = torch.full_like(k, GATE * LOG2_E)
    total, spare = torch.empty_like(k), torch.empty_like(k)
    A, T = (squares(n, C, k.dtype, k.device) for _ in range(2))
    T.diagonal(dim1=1, dim2=2).fill_(1.0)
    pairs = levels(rows, columns, G, total, A, T)
    decayed_products(rows, columns, G, total, A, spare, pairs)
    return T
