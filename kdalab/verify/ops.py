"""Every op of ``kdalab_kernels``: each fast backend against the fp64 specification.

One row an op. A case draws sizes and inputs, among them the ones that break kernels: a single
token, lengths around a chunk, K != V, dimensions that are no power of two, grouped value heads,
empty sequences, gates from 0 to a full reset, nearly parallel keys. The same inputs, rounded to
fp32, go to the backend, and in fp64 to ``backend="reference"``.

The Triton kernels run on a GPU where there is one. Without, they are interpreted, in a process of
their own: whether a kernel is compiled or interpreted is settled when its file is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

import kdalab_kernels as kk
from kdalab.errors import KdalabError
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


Tried = dict[str, tuple[int, float, str]]
"""Op -> cases, worst difference, and what ran them."""


def op_claims(
    cases: int, seed: int, progress: Progress | None = None, interpret: bool = True
) -> list[Claim]:
    """One row for every op: all its fast backends that can run here.

    Args:
        cases: random cases for each backend of each op; interpreted Triton kernels are slow, and
            tried on a tenth of them.
        seed: of the random choices.
        interpret: try the Triton kernels without a GPU too.
    """
    from kdalab.verify.op_cases import CASES

    show = progress or (lambda *_: None)
    on_gpu = torch.cuda.is_available() and kk.has_triton()
    parts = [try_ops("torch", cases, seed, show)]
    if on_gpu:
        parts.append(try_ops("triton", cases, seed, show))
    elif interpret and kk.has_triton():
        show("Triton kernels, interpreted", 0, 1)
        parts.append(_interpreted(max(1, cases // 10), seed))
    claims = []
    for name, case in CASES.items():
        tried = [part[name] for part in parts if name in part]
        claims.append(
            Claim(
                f"{name} = {'' if case.exact else 'fp64 '}specification",
                sum(count for count, _, _ in tried),
                max(worst for _, worst, _ in tried),
                0.0 if case.exact else LIMIT,
                "relative",
                ", ".join(how for _, _, how in tried),
            )
        )
    return claims


def try_ops(backend: str, cases: int, seed: int, progress: Progress) -> Tried:
    """Every op that has ``backend``, on random cases."""
    from kdalab.verify.op_cases import CASES

    on_gpu = torch.cuda.is_available()
    how = "triton (interpreted)" if backend == "triton" and not on_gpu else backend
    names = [name for name in CASES if backend in kk.backends_of(name)]
    tried: Tried = {}
    for done, name in enumerate(names):
        progress(f"{name} = specification, {how}", done, len(names))
        tried[name] = (cases, try_op(name, backend, cases, seed), how)
    return tried


def try_op(name: str, backend: str, cases: int, seed: int) -> float:
    """Largest relative difference of one op from its specification on random cases."""
    from kdalab.verify.op_cases import CASES

    small = backend == "triton" and not torch.cuda.is_available()
    random = torch.Generator().manual_seed(seed)
    return max(compare(CASES[name], Draw(random, small), backend) for _ in range(cases))


def _interpreted(cases: int, seed: int) -> Tried:
    """The Triton kernels in a fresh process with ``TRITON_INTERPRET=1``.

    Raises:
        KdalabError: the process failed; its last line is in the message.
    """
    done = subprocess.run(
        [sys.executable, "-m", "kdalab.verify.ops", str(cases), str(seed)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise KdalabError(f"the interpreted Triton kernels could not be tried: {last}")
    return {
        name: (n, float(worst), how) for name, (n, worst, how) in json.loads(done.stdout).items()
    }


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
    """RMS(got - expected) / RMS(expected); infinite for another shape, NaN or inf.

    What is expected counts as at least the smallest normal fp32 number: below it, where the map of
    many strong decays lies, fp32 has fewer digits, or none.
    """
    if got.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    error = float((got.cpu().double() - expected.double()).square().mean().sqrt())
    size = float(expected.double().square().mean().sqrt())
    if not error < float("inf"):
        return float("inf")
    return error / max(size, torch.finfo(torch.float32).tiny)


def _cast(x: Any, dtype: torch.dtype, device: str) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    # Always a copy: ops that work in place must not meet each other's results.
    return x.to(device, dtype if x.is_floating_point() else x.dtype, copy=True)


if __name__ == "__main__":
    from kdalab.threads import use_one_thread

    use_one_thread()
    print(json.dumps(try_ops("triton", int(sys.argv[1]), int(sys.argv[2]), lambda *_: None)))
