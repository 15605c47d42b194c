"""The ops of Kimi Delta Attention side by side with FLA's naive functions, on the CPU.

All in one process, in turns, on the same inputs, and every result is compared with the token
recurrence in float64 on the first tokens: a fast wrong answer is of no use to anyone.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kdalab.bench.timing import copy_rate, matmul_rate, medians_in_turns
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    import torch

    Call = Callable[[], tuple[Any, ...]]

FLA_RECURRENCE = "FLA naive_recurrent_kda"
FLA_CHUNK = "FLA naive_chunk_kda"
OUR_RECURRENCE = "kdalab naive_recurrent_kda"
OUR_RECURRENT = "kdalab fused_recurrent_kda (torch)"
OUR_CHUNK = "kdalab chunk_kda (torch)"
CHECKED_TOKENS = 256


class Shape(NamedTuple):
    """B rows of T tokens, H heads with key dimension K and value dimension V."""

    B: int
    T: int
    H: int
    K: int
    V: int

    def flop(self, C: int = 32) -> float:
        """Least arithmetic of the chunk form: ``T (6 K V + 2 C K + C V + C^2)`` per head.

        For K = V = d this is equation 13 of the Kimi Linear report, ``6 T d^2 + 3 T C d + T C^2``.
        """
        per_token = 6 * self.K * self.V + 2 * C * self.K + C * self.V + C * C
        return float(self.B * self.H * self.T * per_token)

    def nbytes(self) -> int:
        """float32 bytes of q, k, v, g, beta and o, each touched once."""
        return 4 * self.B * self.H * self.T * (3 * self.K + 2 * self.V + 1)


DEFAULT_SHAPES = (
    Shape(1, 4096, 4, 128, 128),
    Shape(1, 1024, 4, 128, 128),
    Shape(1, 64, 4, 32, 32),
)
QUICK_SHAPES = (Shape(1, 1024, 4, 128, 128), Shape(1, 64, 4, 32, 32))


@dataclass(frozen=True)
class Row:
    """One implementation at one shape; None where there is nothing to measure or compare."""

    shape: Shape
    name: str
    ms: float | None
    times_recurrence: float | None  # the naive recurrence's time over this one's
    times_fla_chunk: float | None  # FLA's naive chunk form's time over this one's
    error: float | None  # relative RMS of the first outputs against float64
    note: str = ""


def parse_shape(text: str) -> Shape:
    """``"1,4096,4,128,128"`` as B, T, H, K, V; KdalabError for anything else."""
    parts = text.replace("x", ",").split(",")
    if len(parts) != 5 or not all(
        p.strip().isdecimal() and len(p) < 10 and int(p) > 0 for p in parts
    ):
        raise KdalabError(f"shape {text[:40]!r}: give five whole numbers above 0, B,T,H,K,V")
    shape = Shape(*(int(p) for p in parts))
    if shape.B * shape.T * shape.H * max(shape.K, shape.V) > 1 << 28:
        raise KdalabError(f"shape {text!r}: more than 2^28 numbers in one tensor; choose a smaller")
    if shape.K > 256:
        raise KdalabError(f"shape {text!r}: K is at most 256")
    return shape


def bench_kernels(shapes: Iterable[Shape] = DEFAULT_SHAPES, repeats: int = 5) -> list[Row]:
    """Measure every implementation at every shape, float32, and the machine's floors.

    Args:
        shapes: what to measure.
        repeats: timed rounds per shape after one warm-up round; the median is kept.

    Returns:
        Per shape five rows of implementations (without FLA: a row that says so) and two floors:
        the least arithmetic at the measured matrix-product rate, and one pass over inputs and
        output at the measured copy rate.
    """
    import torch

    rates = matmul_rate(), copy_rate()
    rows: list[Row] = []
    with torch.no_grad():
        for shape in shapes:
            rows += _bench_shape(shape, repeats, *rates)
    return rows


def _inputs(shape: Shape) -> tuple[torch.Tensor, ...]:
    import torch
    from torch.nn.functional import logsigmoid, normalize

    B, T, H, K, V = shape
    rng = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=rng)

    q, k = normalize(normal(B, T, H, K), dim=-1), normalize(normal(B, T, H, K), dim=-1)
    return q, k, normal(B, T, H, V), logsigmoid(normal(B, T, H, K) + 3), normal(B, T, H).sigmoid()


def _bench_shape(shape: Shape, repeats: int, flop_rate: float, byte_rate: float) -> list[Row]:
    import kdalab_kernels as ours

    q, k, v, g, beta = _inputs(shape)
    fla, why_not = _fla_naive()
    calls: dict[str, Call] = {}
    notes = {FLA_RECURRENCE: why_not, FLA_CHUNK: why_not}
    if fla is not None:
        calls[FLA_RECURRENCE] = lambda: fla.naive_recurrent_kda(q, k, v, g, beta)
        if shape.T % 64 == 0:
            calls[FLA_CHUNK] = lambda: fla.naive_chunk_kda(q, k, v, g, beta)
        else:
            notes[FLA_CHUNK] = "takes whole chunks of 64 tokens only"
    calls[OUR_RECURRENCE] = lambda: ours.naive_recurrent_kda(q, k, v, g, beta)
    calls[OUR_RECURRENT] = lambda: ours.fused_recurrent_kda(q, k, v, g, beta, backend="torch")
    calls[OUR_CHUNK] = lambda: ours.chunk_kda(q, k, v, g, beta, backend="torch")

    first = [x[:, :CHECKED_TOKENS].double() for x in (q, k, v, g, beta)]
    exact, _ = ours.naive_recurrent_kda(*first)  # type: ignore[arg-type]
    errors = {name: _error(call()[0], exact) for name, call in calls.items()}
    seconds = medians_in_turns(calls, repeats)
    recurrence = seconds.get(FLA_RECURRENCE, seconds[OUR_RECURRENCE])
    fla_chunk = seconds.get(FLA_CHUNK)

    def row(name: str, s: float | None, error: float | None, note: str) -> Row:
        if s is None:
            return Row(shape, name, None, None, None, None, note)
        over_chunk = None if fla_chunk is None else fla_chunk / s
        return Row(shape, name, s * 1e3, recurrence / s, over_chunk, error, note)

    order = (FLA_RECURRENCE, OUR_RECURRENCE, FLA_CHUNK, OUR_RECURRENT, OUR_CHUNK)
    rows = [row(n, seconds.get(n), errors.get(n), notes.get(n, "")) for n in order]
    arithmetic = f"{shape.flop() / 1e9:.3g} GFLOP at {flop_rate / 1e9:.0f} GFLOP/s"
    traffic = f"{shape.nbytes() / 1e6:.3g} MB at {byte_rate / 1e9:.0f} GB/s"
    rows.append(row("floor: matrix products", shape.flop() / flop_rate, None, arithmetic))
    rows.append(row("floor: memory", shape.nbytes() / byte_rate, None, traffic))
    return rows


def _error(o: torch.Tensor, exact: torch.Tensor) -> float:
    difference = o[:, : exact.shape[1]].double() - exact
    return float(difference.square().mean().sqrt() / exact.square().mean().sqrt())


class _FlaNaive(NamedTuple):
    naive_recurrent_kda: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]
    naive_chunk_kda: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def _fla_naive() -> tuple[_FlaNaive | None, str]:
    """FLA's naive functions, or why they are not to be had."""
    try:
        with warnings.catch_warnings():  # FLA warns at import that a CPU is not its home
            warnings.simplefilter("ignore")
            module = importlib.import_module("fla.ops.kda.naive")
    except ModuleNotFoundError as error:
        return None, f"not installed (no module named {error.name})"
    except Exception as error:  # FLA imports Triton, which fails in many ways on odd machines
        return None, f"installed, but its import fails: {error}"
    return _FlaNaive(module.naive_recurrent_kda, module.naive_chunk_kda), ""
