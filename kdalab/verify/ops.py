"""Every op of ``kdalab_kernels``: each fast backend against the fp64 specification.

One row an op. A case draws sizes and inputs, among them the ones that break kernels: a single
token, lengths around a chunk, K != V, dimensions that are no power of two, grouped value heads,
empty sequences, gates from 0 to a full reset, nearly parallel keys. The same inputs, rounded to
fp32, go to the backend, and in fp64 to ``backend="reference"``.

The Triton backend is tried where Triton can run: on a GPU, or with ``TRITON_INTERPRET=1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import kdalab_kernels as kk
from kdalab.verify.claim import Claim, Progress

LIMIT = 2e-5
"""RMS of the difference over RMS of the specification, for fp32."""

Tensors = dict[str, Any]


@dataclass(slots=True)
class Draw:
    """Random sizes and inputs of one case; everything is drawn in fp64."""

    random: torch.Generator
    small: bool = False  # for the interpreter, whose time goes with the number of programs
    sizes: dict[str, int] = field(default_factory=dict)

    def one_of(self, *choices: Any) -> Any:
        """One of ``choices``."""
        return choices[int(torch.randint(len(choices), (1,), generator=self.random))]

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Numbers in [0, 1)."""
        return torch.rand(shape, generator=self.random, dtype=torch.float64)

    def gate(self, *shape: int) -> torch.Tensor:
        """Log-decay of one kind: none, hardly any, ordinary, strong, or all of these mixed."""
        u = self.uniform(*shape)
        kind = self.one_of("zero", "tiny", "plain", "strong", "mixed")
        if kind == "mixed":
            levels = torch.tensor([0.0, -1e-4, -0.5, -50.0, -1000.0], dtype=torch.float64)
            return levels[(u * len(levels)).long()]
        return -u * {"zero": 0.0, "tiny": 1e-4, "plain": 2.0, "strong": 1000.0}[kind]

    def tokens(self) -> Tensors:
        """q, k, v, g, beta of one packed row of sequences, and its offsets (or None)."""
        H, group = self.one_of(1, 2, 3), self.one_of(1, 2)
        K, V = self.one_of((16, 16), (32, 32), (60, 32), (32, 100))
        lengths = self.one_of((1,), (17,), (64,), (65,), (130,), (5, 0, 70), (0, 33, 64, 1))
        if self.small:
            H, group, (K, V) = min(H, 2), 1 + (H == 1), (min(K, 32), min(V, 32))
            lengths = tuple(min(n, 70) for n in lengths[:3])
        T, HV = sum(lengths), H * group
        k = torch.nn.functional.normalize(self.normal(1, T, H, K), dim=-1)
        if self.one_of(True, False, False):
            common = torch.nn.functional.normalize(self.normal(1, 1, H, K), dim=-1)
            k = torch.nn.functional.normalize(common + 0.1 * k, dim=-1)
        return {
            "q": self.normal(1, T, H, K),
            "k": k,
            "v": self.normal(1, T, HV, V),
            "g": self.gate(1, T, HV, K),
            "beta": self.uniform(1, T, HV),
            "initial_state": self.normal(len(lengths), HV, K, V),
            "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        }


Call = Callable[[Tensors, str], Iterable[torch.Tensor]]


class OpCase(NamedTuple):
    """How one op is tried.

    ``draw`` gives the inputs, and a function that calls the op with them and a backend; what an op
    writes in place counts among what that function returns. An ``exact`` op moves or rounds
    numbers and does no other arithmetic: it must equal the specification in fp32, bit for bit.
    """

    draw: Callable[[Draw], tuple[Tensors, Call]]
    exact: bool = False


def op_claims(cases: int, seed: int, progress: Progress | None = None) -> list[Claim]:
    """One row for every op: all its fast backends that can run here.

    Args:
        cases: random cases for each backend of each op; the interpreted Triton kernels, which
            need about a second each, are tried on a tenth of them.
        seed: of the random choices.
    """
    from kdalab.verify.op_cases import CASES

    claims = []
    for done, (name, case) in enumerate(CASES.items()):
        if progress is not None:
            progress(f"{name} = specification", done, len(CASES))
        claims.append(_claim(name, case, cases, seed))
    return claims


def _claim(name: str, case: OpCase, cases: int, seed: int) -> Claim:
    worst, tried, seen = 0.0, 0, []
    for backend in kk.backends_of(name):
        if backend == "reference" or (backend == "triton" and not triton_runs()):
            continue
        interpreted = backend == "triton" and not torch.cuda.is_available()
        random = torch.Generator().manual_seed(seed)
        count = max(1, cases // 10) if interpreted else cases
        for _ in range(count):
            worst = max(worst, compare(case, Draw(random, small=interpreted), backend))
        tried += count
        seen.append("triton (interpreted)" if interpreted else backend)
    title = f"{name} = {'' if case.exact else 'fp64 '}specification"
    return Claim(title, tried, worst, 0.0 if case.exact else LIMIT, "relative", ", ".join(seen))


def compare(case: OpCase, draw: Draw, backend: str) -> float:
    """Largest relative difference of ``backend`` from the specification in one drawn case."""
    inputs, call = case.draw(draw)
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    given = {k: _cast(v, torch.float32, device) for k, v in inputs.items()}
    # The specification sees the rounded numbers, widened: rounding of inputs is nobody's error.
    dtype = torch.float32 if case.exact else torch.float64
    wide = {k: _cast(v, dtype, "cpu") for k, v in given.items()}
    got, expected = list(call(given, backend)), list(call(wide, "reference"))
    return max(relative(a, b) for a, b in zip(got, expected, strict=True))


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS(got - expected) / RMS(expected); infinite for another shape, NaN or inf."""
    if got.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    error = float((got.cpu().double() - expected.double()).square().mean().sqrt())
    size = float(expected.double().square().mean().sqrt())
    if not error < float("inf"):
        return float("inf")
    return error / size if size else error


def triton_runs() -> bool:
    """Whether Triton kernels can run in this process: on a GPU, or interpreted."""
    import os

    if not any("triton" in kk.backends_of(op) for op in ("chunk_kda", "l2norm")):
        return False
    return torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


def _cast(x: Any, dtype: torch.dtype, device: str) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    # Always a copy: ops that work in place must not meet each other's results.
    return x.to(device, dtype if x.is_floating_point() else x.dtype, copy=True)
