"""What ``kdalab bench kernels`` measures: each case is one op on one set of inputs, and its peers.

A case knows its least work: operations and bytes, from which the floors follow. Inputs are made
when the case is run, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kdalab.bench import peers
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    import torch

TILE = 32  # tokens of a tile of the torch path
CHECKED_TOKENS = 256
MOST_PAIR_BYTES = 1 << 30  # that a peer may hold at a time


class Shape(NamedTuple):
    """B rows of T tokens, H heads with key dimension K and value dimension V."""

    B: int
    T: int
    H: int
    K: int
    V: int

    def __str__(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self._asdict().items())

    def flop(self, C: int = TILE) -> float:
        """Least arithmetic of the chunk form: ``T (6 K V + 2 C K + C V + C^2)`` per head.

        For K = V = d this is equation 13 of the Kimi Linear report, ``6 T d^2 + 3 T C d + T C^2``.
        """
        per_token = 6 * self.K * self.V + 2 * C * self.K + C * self.V + C * C
        return float(self.B * self.H * self.T * per_token)

    def nbytes(self) -> int:
        """float32 bytes of q, k, v, g, beta and o, each touched once."""
        return 4 * self.B * self.H * self.T * (3 * self.K + 2 * self.V + 1)


class Prepared(NamedTuple):
    """A case with its inputs made: the calls that take turns, and how to tell who is right."""

    calls: dict[str, Callable[[], Any]]
    notes: dict[str, str]  # why a peer has no call
    error: Callable[[str, Any], float | None]  # of a call's result, relative RMS


@dataclass(frozen=True)
class Case:
    """One op on one set of inputs.

    Attributes:
        op: ``prefill``, ``decode``, ``conv``, ``gate``, ``int8 store`` or ``int8 load``.
        size: the axes in words.
        flop: floating-point operations that must be done (multiply and add count as two).
        nbytes: bytes that must move, each read or written once.
        names: every implementation; the first is what the ratios compare with.
        prepare: makes the inputs.
        floor: an implementation, and the one that is its floor: their ratio is measured apart.
    """

    op: str
    size: str
    flop: float
    nbytes: int
    names: tuple[str, ...]
    prepare: Callable[[], Prepared]
    sizes: Mapping[str, int] = field(default_factory=dict)
    floor: tuple[str, str] | None = None


FLA_RECURRENCE = "fla-core naive_recurrent_kda"
FLA_CHUNK = "fla-core naive_chunk_kda"
HF_CHUNK = "transformers chunk fallback"
HF_RECURRENT = "transformers recurrent fallback"
OUR_RECURRENCE = "kdalab naive_recurrent_kda"
OUR_RECURRENT = "kdalab fused_recurrent_kda"
OUR_CHUNK = "kdalab chunk_kda"
PRODUCTS = "its matrix products alone, batched"
COPY = "copying the bytes"
OUR_INPLACE = "kdalab fused_recurrent_kda_inplace"
OUR_CONV, TORCH_CONV = "kdalab causal_conv1d", "torch conv1d and silu (transformers' fallback)"
OUR_GATE, TORCH_GATE = "kdalab fused_kda_gate", "torch softplus"
OUR_STORE, OUR_LOAD = "kdalab store_checkpoints_inplace", "kdalab load_checkpoints_inplace"


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


def token_inputs(shape: Shape) -> dict[str, Any]:
    """q, k, v, g and beta in float32: unit keys, decays around 0.95."""
    import torch
    from torch.nn.functional import logsigmoid, normalize

    B, T, H, K, V = shape
    rng = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=rng)

    q, k = normalize(normal(B, T, H, K), dim=-1), normalize(normal(B, T, H, K), dim=-1)
    v, g = normal(B, T, H, V), logsigmoid(normal(B, T, H, K) + 3)
    return {"q": q, "k": k, "v": v, "g": g, "beta": normal(B, T, H).sigmoid()}


def relative_rms(x: torch.Tensor, exact: torch.Tensor) -> float:
    """``RMS(x - exact) / RMS(exact)`` over exact's rows."""
    difference = x[:, : exact.shape[1]].double() - exact.double()
    return float(difference.square().mean().sqrt() / exact.double().square().mean().sqrt())


def prefill(shape: Shape) -> Case:
    """Many tokens from an empty state."""

    def prepare() -> Prepared:
        import kdalab_kernels as ours

        x = token_inputs(shape)
        fla, fla_not = peers.fla_naive()
        hf, hf_not = peers.transformers_fallback()
        notes = {FLA_RECURRENCE: fla_not, FLA_CHUNK: fla_not, HF_CHUNK: hf_not}
        notes[PRODUCTS] = f"{products_flop(shape) / 1e9:.3g} GFLOP, with dense triangles"
        calls: dict[str, Callable[[], Any]] = {}
        if fla is not None:
            calls[FLA_RECURRENCE] = lambda: fla.naive_recurrent_kda(**x)
            if shape.T % 64 == 0:
                calls[FLA_CHUNK] = lambda: fla.naive_chunk_kda(**x)
            else:
                notes[FLA_CHUNK] = "takes whole chunks of 64 tokens only"
        if hf is not None:
            # It keeps every pair of a chunk's tokens for every channel, all chunks at once.
            pairs = 4 * shape.B * shape.H * shape.T * 64 * shape.K
            if pairs <= MOST_PAIR_BYTES:
                calls[HF_CHUNK] = lambda: hf.chunk(*x.values())
            else:
                notes[HF_CHUNK] = f"not run: would hold {pairs / 2**30:.0f} GiB at a time"
        calls[OUR_RECURRENCE] = lambda: ours.naive_recurrent_kda(**x)
        calls[OUR_RECURRENT] = lambda: ours.fused_recurrent_kda(**x, backend="torch")
        calls[OUR_CHUNK] = lambda: ours.chunk_kda(**x, backend="torch")
        calls[PRODUCTS] = _products(shape)
        first = {name: t[:, :CHECKED_TOKENS].double() for name, t in x.items()}
        exact, _ = ours.naive_recurrent_kda(**first)

        def error(name: str, result: Any) -> float | None:
            return None if name == PRODUCTS else relative_rms(result[0], exact)

        return Prepared(calls, notes, error)

    names = (FLA_RECURRENCE, FLA_CHUNK, HF_CHUNK, OUR_RECURRENCE, OUR_RECURRENT, OUR_CHUNK)
    return Case(
        "prefill",
        str(shape),
        shape.flop(),
        shape.nbytes(),
        (*names, PRODUCTS),
        prepare,
        shape._asdict(),
        (OUR_CHUNK, PRODUCTS),
    )


def products_flop(shape: Shape, C: int = TILE) -> float:
    """FLOP of the chunk form with dense products, ``T (6 K V + 2 C K + 4 C V)`` per head.

    More than :meth:`Shape.flop`, which counts triangles as halves: a matrix product cannot.
    """
    per_token = 6 * shape.K * shape.V + 2 * C * shape.K + 4 * C * shape.V
    return float(shape.B * shape.H * shape.T * per_token)


def _products(shape: Shape) -> Callable[[], None]:
    """The chunk form's matrix products and nothing else, each as one ``torch.bmm`` over all tiles.

    Per tile and head: A (a dense ``[C, K, C]`` stands for the two triangles, of q and of beta k),
    both rows times the state, the inverse times the errors, A times the pseudo values, and keys
    times the pseudo values: five products, ``2 n`` times ``C K C``, ``2 C K V``, ``C C V``,
    ``C C V`` and ``K C V`` FLOP for n tiles and heads, which is :func:`products_flop`. Counted is
    the chunk form as written, not what an implementation may add to it or save. No decay, no
    inverse, no copy, and no tile waits for another. Operands are made once and outputs are
    written over, so no memory is fresh; all tiles of one product go before the next, so at
    T = 4096 they come from memory, as q, k, v and g do for the op.
    """
    import torch

    B, T, H, K, V = shape
    C = min(TILE, T)
    n = B * H * -(-T // C)
    sizes = [(C, K, C), (2 * C, K, V), (C, C, V), (C, C, V), (K, C, V)]
    operands = [
        (torch.randn(n, a, b), torch.randn(n, b, c), torch.empty(n, a, c)) for a, b, c in sizes
    ]

    def run() -> None:
        for left, right, out in operands:
            torch.bmm(left, right, out=out)

    return run


def decode(N: int = 32, H: int = 32, K: int = 128, V: int = 128) -> Case:
    """One token for each of N sequences, against a pool of float32 states."""
    shape = Shape(N, 1, H, K, V)
    state_bytes = 4 * N * H * K * V

    def prepare() -> Prepared:
        import torch

        import kdalab_kernels as ours

        x = token_inputs(shape)
        pool = torch.randn(N, H, V, K).mul_(0.1)
        slots = torch.randperm(N, generator=torch.Generator().manual_seed(1))
        start = pool[slots].transpose(-1, -2).contiguous()
        target = torch.empty_like(pool)
        hf, hf_not = peers.transformers_fallback()
        fla, fla_not = peers.fla_naive()
        last: dict[str, Any] = {"initial_state": start, "output_final_state": True}
        calls: dict[str, Callable[[], Any]] = {COPY: lambda: target.copy_(pool)}
        if fla is not None:
            calls[FLA_RECURRENCE] = lambda: fla.naive_recurrent_kda(**x, **last)
        if hf is not None:
            calls[HF_RECURRENT] = lambda: hf.recurrent(*x.values(), **last)
        calls[OUR_RECURRENT] = lambda: ours.fused_recurrent_kda(**x, **last, backend="torch")
        own = pool.clone()
        # Called again and again on the same pool: only the first result is compared.
        calls[OUR_INPLACE] = lambda: ours.fused_recurrent_kda_inplace(
            **x, states=own, slots=slots, backend="torch"
        )
        wide = {name: t.double() for name, t in x.items()}
        exact, _ = ours.naive_recurrent_kda(**wide, initial_state=start.double())

        def error(name: str, result: Any) -> float | None:
            if name == COPY:
                return None
            return relative_rms(result if name == OUR_INPLACE else result[0], exact)

        return Prepared(calls, {FLA_RECURRENCE: fla_not, HF_RECURRENT: hf_not}, error)

    return Case(
        "decode",
        f"{N} sequences, {H} heads, K={K} V={V}",
        7.0 * N * H * K * V,
        2 * state_bytes,
        (FLA_RECURRENCE, HF_RECURRENT, OUR_RECURRENT, OUR_INPLACE, COPY),
        prepare,
        shape._asdict(),
    )


def conv(T: int = 4096, D: int = 1536, W: int = 4) -> Case:
    """The short convolution with SiLU over T tokens; D is q|k|v of 4 heads."""

    def prepare() -> Prepared:
        import torch
        from torch.nn.functional import conv1d, silu

        import kdalab_kernels as ours

        rng = torch.Generator().manual_seed(2)
        x = torch.randn(1, T, D, generator=rng)
        weight = torch.randn(D, W, generator=rng)
        channels_first = x.transpose(1, 2).contiguous()  # as transformers hands it over
        calls: dict[str, Callable[[], Any]] = {
            TORCH_CONV: lambda: silu(
                conv1d(channels_first, weight[:, None], padding=W - 1, groups=D)[..., :T]
            ),
            OUR_CONV: lambda: ours.causal_conv1d(x, weight, backend="torch")[0],
        }
        exact = ours.causal_conv1d(x.double(), weight.double(), backend="reference")[0]

        def error(name: str, result: Any) -> float | None:
            return relative_rms(result if name == OUR_CONV else result.transpose(1, 2), exact)

        return Prepared(calls, {}, error)

    return Case(
        "conv",
        f"T={T} D={D} W={W}",
        2.0 * T * D * W,
        8 * T * D,
        (TORCH_CONV, OUR_CONV),
        prepare,
    )


def gate(T: int = 4096, H: int = 4, K: int = 128) -> Case:
    """The classic forget gate, ``-exp(A_log) softplus(g + dt_bias)``."""

    def prepare() -> Prepared:
        import torch
        from torch.nn.functional import softplus

        import kdalab_kernels as ours

        rng = torch.Generator().manual_seed(3)
        g = torch.randn(1, T, H, K, generator=rng)
        A_log = torch.rand(H, generator=rng)
        bias = torch.randn(H * K, generator=rng)

        def plain(f: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return -a.exp()[:, None] * softplus(f + b.view(H, K))

        exact = plain(g.double(), A_log.double(), bias.double())
        calls = {
            TORCH_GATE: lambda: plain(g, A_log, bias),
            OUR_GATE: lambda: ours.fused_kda_gate(g, A_log, bias, backend="torch"),
        }
        return Prepared(calls, {}, lambda name, y: relative_rms(y, exact))

    # An exponential and a logarithm count as one operation each.
    size = f"T={T} H={H} K={K}"
    return Case("gate", size, 5.0 * T * H * K, 8 * T * H * K, (TORCH_GATE, OUR_GATE), prepare)


def checkpoints(way: str, N: int = 8, L: int = 4, H: int = 8, K: int = 128, V: int = 128) -> Case:
    """N checkpoints of L layers as INT8 (scale per k-channel), stored or loaded."""
    numbers = N * L * H * K * V
    small = numbers + 4 * numbers // V  # int8 and the float32 scales
    moved = 4 * numbers + small

    def prepare() -> Prepared:
        import torch

        import kdalab_kernels as ours
        from kdalab_kernels.quantized import CheckpointBuffers

        states = torch.randn(N, L, H, V, K)
        window = torch.zeros(N, L, 3, 3 * H * K)
        pool = CheckpointBuffers(ours.quantize_states(states), window.clone())
        slots = torch.arange(N)
        source, target = (torch.zeros(moved // 2, dtype=torch.int8) for _ in range(2))
        back = torch.empty_like(states)

        def store() -> None:
            ours.store_checkpoints_inplace(states, window, pool, slots, slots, backend="torch")

        def load() -> torch.Tensor:
            ours.load_checkpoints_inplace(pool, back, window, slots, slots, backend="torch")
            return back

        calls: dict[str, Callable[[], Any]] = {COPY: lambda: target.copy_(source)}
        calls[OUR_STORE if way == "store" else OUR_LOAD] = store if way == "store" else load

        def error(name: str, result: Any) -> float | None:
            if name == COPY:
                return None
            return relative_rms(load(), states)

        return Prepared(calls, {}, error)

    return Case(
        f"int8 {way}",
        f"{N} checkpoints, {L} layers, {H} heads, K={K} V={V}",
        2.0 * numbers,
        moved,
        (COPY, OUR_STORE if way == "store" else OUR_LOAD),
        prepare,
    )
