"""The first half of ``kdalab bench gpu``: every Triton kernel against the fp64 specification.

The same code runs on a GPU with the shapes of real models, and in Triton's interpreter with tiny
ones. Low-precision inputs are compared with the specification *of the rounded inputs*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

LIMITS = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 1e-2}  # RMS(difference) / RMS(exact)
GATES = ("zero", "tiny", "random", "saturated", "huge", "mixed")


class Check(NamedTuple):
    """One op on one set of inputs; ``run`` gives the worst relative RMS of its outputs."""

    op: str
    case: str
    dtype: str
    limit: float
    run: Callable[[], float]


@dataclass(frozen=True)
class Checked:
    """What came of a check."""

    op: str
    case: str
    dtype: str
    limit: float
    worst: float
    error: str = ""

    @property
    def passed(self) -> bool:
        """NaN never passes."""
        return not self.error and self.worst <= self.limit


@dataclass(frozen=True)
class Place:
    """Where the checks run and how large they are."""

    device: str = "cuda"
    tiny: bool = False

    def sizes(self, real: tuple[int, ...], tiny: tuple[int, ...]) -> tuple[int, ...]:
        return tiny if self.tiny else real


def run_checks(
    checks: Sequence[Check], progress: Callable[[int, int, Check], None] | None = None
) -> list[Checked]:
    """Run all; a kernel that raises is a failed check, not the end."""
    done = []
    for i, check in enumerate(checks):
        if progress is not None:
            progress(i, len(checks), check)
        worst, error = float("inf"), ""
        try:
            worst = check.run()
        except Exception as raised:
            error = " ".join(f"{type(raised).__name__}: {raised}".split())[:300]
        done.append(Checked(*check[:4], worst, error))
    return done


def all_checks(place: Place) -> list[Check]:
    """Every op in every dtype; one dtype, and the cases that matter, in tiny.

    The cases here are large, or known to break kernels. Every op, with all that it writes and
    keeps, is drawn at random besides, as ``kdalab verify`` does.
    """
    from kdalab.verify.op_cases import CASES
    from kdalab.verify.ops import LIMIT, try_op

    checks = [
        Check(op, case, dtype, max(LIMITS[dtype], least), partial(run, dtype))
        for op, case, dtypes, least, run in _cases(place)
        for dtype in (dtypes[:1] if place.tiny else dtypes)
    ]
    draws = 2 if place.tiny else 40
    for op, case in CASES.items():
        limit = 0.0 if case.exact else LIMIT
        run = partial(try_op, op, "triton", draws, 0)
        checks.append(Check(op, f"{draws} drawn at random", "float32", limit, run))
    return checks


Case = tuple[str, str, tuple[str, ...], float, Callable[[str], float]]
EVERY = tuple(LIMITS)


def _cases(place: Place) -> Iterator[Case]:
    main = place.sizes((1, 1000, 8, 8, 128, 128), (1, 40, 1, 1, 16, 16))
    for kind in GATES:
        yield "chunk_kda", f"gates {kind}", EVERY, 0, partial(_kda, place, "chunk_kda", main, kind)
    shapes: dict[str, tuple[int, ...]] = {
        "grouped values": place.sizes((2, 300, 3, 6, 128, 128), (1, 20, 1, 2, 16, 16)),
        "K 60, V 100": place.sizes((2, 130, 3, 3, 60, 100), (1, 17, 1, 1, 12, 20)),
    }
    lengths = (1, 63) if place.tiny else (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 130)
    shapes |= {f"T {T}": (1, T, *main[2:]) for T in lengths}
    for op in ("chunk_kda", "fused_recurrent_kda"):
        for name, shape in shapes.items():
            yield op, name, EVERY, 0, partial(_kda, place, op, shape, "mixed")
        cu = place.sizes((0, 0, 1, 70, 70, 197, 300, 300), (0, 0, 3, 20))
        packed = (1, cu[-1], *main[2:])
        run = partial(_kda, place, op, packed, "random", cu=cu)
        yield op, "packed, some of length 0", EVERY, 0, run
        run = partial(_kda, place, op, main, "tiny", correlated=True)
        yield op, "correlated keys, slow decay", EVERY, 0, run
        run = partial(_kda, place, op, main, "random", zero_keys=True)
        yield op, "keys of 0", EVERY, 0, run
    yield "chunk_kda", "split at 64", EVERY, 0, partial(_split, place, main)
    yield "fused_recurrent_kda_inplace", "slots, -1", EVERY, 0, partial(_decode, place)
    yield "causal_conv1d", "packed, with state", EVERY, 0, partial(_conv, place)
    yield "fused_kda_gate", "classic", EVERY, 0, partial(_gate, place, None)
    yield "fused_kda_gate", "lower bound -5", EVERY, 0, partial(_gate, place, -5.0)
    yield "l2norm", "", EVERY, 0, partial(_norm, place)
    yield "mla_decode_paged", "shuffled pages", EVERY, 0, partial(_mla, place, False)
    yield "mla_prefill_paged", "shuffled pages", EVERY, 0, partial(_mla, place, True)
    for form in ("native", "INT8"):
        yield "checkpoints", f"{form}, store and load", EVERY, 0, partial(_store, place, form)


def relative(x: torch.Tensor, exact: torch.Tensor) -> float:
    """``RMS(x - exact) / RMS(exact)``; infinite for NaN, and the plain RMS where exact is 0."""
    if x.shape != exact.shape:
        return float("inf")
    if not x.numel():
        return 0.0
    error = float((x.double() - exact.double()).square().mean().sqrt())
    size = float(exact.double().square().mean().sqrt())
    return float("inf") if error != error else error / size if size else error


def _random(place: Place, *shape: int, seed: int = 0) -> torch.Tensor:
    import torch

    rng = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=rng, dtype=torch.float64).to(place.device)


def _gates(place: Place, kind: str, *shape: int) -> torch.Tensor:
    import torch

    rng = torch.Generator().manual_seed(7)
    u = torch.rand(shape, generator=rng, dtype=torch.float64)
    if kind == "mixed":  # each token and channel draws its own
        choice = torch.tensor([0.0, -1e-4, -0.5, -6.0, -50.0, -1000.0], dtype=torch.float64)
        out = choice[(u * 6).long()]
    else:
        out = {
            "zero": u * 0,
            "tiny": -1e-4 * u,
            "random": -u,
            "saturated": -6 - 44 * u,
            "huge": -1000 * (0.5 + u),
        }[kind]
    return out.to(place.device)


def _tokens(
    place: Place,
    shape: tuple[int, ...],
    kind: str,
    correlated: bool = False,
    zero_keys: bool = False,
) -> dict[str, Any]:
    import torch
    from torch.nn.functional import normalize

    B, T, H, HV, K, V = shape
    q, k = (normalize(_random(place, B, T, H, K, seed=s), dim=-1) for s in (1, 2))
    beta = _random(place, B, T, HV, seed=3).sigmoid()
    if correlated:
        k = normalize(normalize(_random(place, B, 1, H, K, seed=4), dim=-1) + 0.1 * k, dim=-1)
        beta = torch.full_like(beta, 0.95)
    if zero_keys:
        k[:, ::2] = 0
    g = _gates(place, kind, B, T, HV, K)
    return {"q": q, "k": k, "v": _random(place, B, T, HV, V, seed=5), "g": g, "beta": beta}


def _low(x: dict[str, Any], dtype: str) -> dict[str, Any]:
    """q, k, v and beta rounded to dtype; gates in float32, as the layer computes them."""
    import torch

    return {n: t.to(torch.float32 if n == "g" else getattr(torch, dtype)) for n, t in x.items()}


def _wide(x: dict[str, Any]) -> dict[str, Any]:
    return {n: t.double() for n, t in x.items()}


def _kda(
    place: Place,
    op: str,
    shape: tuple[int, ...],
    kind: str,
    dtype: str,
    cu: tuple[int, ...] | None = None,
    correlated: bool = False,
    zero_keys: bool = False,
) -> float:
    import torch

    import kdalab_kernels as ours

    x = _low(_tokens(place, shape, kind, correlated, zero_keys), dtype)
    B, _, _, HV, K, V = shape
    N = B if cu is None else len(cu) - 1
    S = _random(place, N, HV, V, K, seed=6).float()
    rest: dict[str, Any] = {"output_final_state": True, "state_v_first": True}
    if cu is not None:
        rest["cu_seqlens"] = torch.tensor(cu, device=place.device)
    if op == "chunk_kda":
        rest["return_intermediate_states"] = True
    run = getattr(ours, op)
    got = run(**x, initial_state=S, **rest, backend="triton")
    exact = run(**_wide(x), initial_state=S.double(), **rest, backend="reference")
    return max(relative(a, b) for a, b in zip(got, exact, strict=True))


def _split(place: Place, shape: tuple[int, ...], dtype: str) -> float:
    """Two calls that meet on the chunk grid against the specification in one piece."""
    import torch

    import kdalab_kernels as ours

    B, T, *rest = shape
    x = _low(_tokens(place, (B, max(T, 96), *rest), "mixed"), dtype)
    exact, last = ours.naive_recurrent_kda(**_wide(x), output_final_state=True)
    o, S, cut = [], None, 64
    for part in (slice(None, cut), slice(cut, None)):
        piece = {n: t[:, part] for n, t in x.items()}
        y, S = ours.chunk_kda(**piece, initial_state=S, output_final_state=True, backend="triton")
        o.append(y)
    assert S is not None
    assert last is not None
    return max(relative(torch.cat(o, 1), exact), relative(S, last))


def _decode(place: Place, dtype: str) -> float:
    """Slots in any order, a row of padding, and the other slots bit-identical."""
    import torch

    import kdalab_kernels as ours

    N, H, K = place.sizes((33, 32, 128), (3, 2, 16))
    x = _low(_tokens(place, (N, 1, H, H, K, K), "random"), dtype)
    pool = _random(place, 2 * N, H, K, K, seed=8).float()
    slots = torch.randperm(2 * N, generator=torch.Generator().manual_seed(9))[:N]
    slots[1] = -1
    used = slots[slots >= 0]
    others = torch.ones(2 * N, dtype=torch.bool)
    others[used] = False
    pool[others.to(place.device)] = torch.nan
    before, wide = pool.clone(), pool.double()
    o = ours.fused_recurrent_kda_inplace(**x, states=pool, slots=slots, backend="triton")
    exact = ours.fused_recurrent_kda_inplace(
        **_wide(x), states=wide, slots=slots, backend="reference"
    )
    kept, was = (t[others.to(place.device)].view(torch.int32) for t in (pool, before))
    if not torch.equal(kept, was):
        return float("inf")
    at = used.to(place.device)
    return max(relative(o, exact), relative(pool[at], wide[at]))


def _conv(place: Place, dtype: str) -> float:
    import torch

    import kdalab_kernels as ours

    D, *lengths = place.sizes((36864, 1, 0, 2, 3, 130, 500), (24, 1, 0, 2, 9))
    cu = torch.tensor([0, *accumulate(lengths)], device=place.device)
    low = getattr(torch, dtype)
    x, state = _random(place, 1, sum(lengths), D).to(low), _random(place, len(lengths), 3, D)
    weight, state = _random(place, D, 4, seed=1).float(), state.to(low)
    rest: dict[str, Any] = {"output_final_state": True, "cu_seqlens": cu}
    got = ours.causal_conv1d(x, weight, initial_state=state, **rest, backend="triton")
    exact = ours.causal_conv1d(
        x.double(), weight.double(), initial_state=state.double(), **rest, backend="reference"
    )
    return max(relative(a, b) for a, b in zip(got, exact, strict=True))  # type: ignore[arg-type]


def _gate(place: Place, bound: float | None, dtype: str) -> float:
    import torch

    import kdalab_kernels as ours

    T, H, K = place.sizes((1000, 96, 128), (5, 2, 16))
    f = (4 * _random(place, 1, T, H, K)).to(getattr(torch, dtype))
    A_log, bias = _random(place, H).float(), _random(place, H * K).float()
    got = ours.fused_kda_gate(f, A_log, bias, bound, backend="triton")
    exact = ours.fused_kda_gate(
        f.double(), A_log.double(), bias.double(), bound, backend="reference"
    )
    return relative(got, exact)


def _norm(place: Place, dtype: str) -> float:
    import torch

    import kdalab_kernels as ours

    x = _random(place, *place.sizes((1, 1000, 96, 128), (1, 5, 2, 16))).to(getattr(torch, dtype))
    x[:, 0] = 0
    return relative(ours.l2norm(x, backend="triton"), ours.l2norm(x.double(), backend="reference"))


def _mla(place: Place, prefill: bool, dtype: str) -> float:
    import torch

    import kdalab_kernels as ours

    H, C, R, page, *contexts = place.sizes(
        (32, 576, 512, 64, 1, 63, 64, 1000, 5000), (2, 24, 16, 16, 1, 20)
    )
    low = getattr(torch, dtype)
    pages_of = [-(-n // page) for n in contexts]
    order = torch.randperm(sum(pages_of), generator=torch.Generator().manual_seed(3))
    table = torch.zeros(len(contexts), max(pages_of), dtype=torch.int32)
    for i, (start, n) in enumerate(zip(accumulate([0, *pages_of]), pages_of, strict=False)):
        table[i, :n] = order[start : start + n]
    table = table.to(place.device)
    pages = _random(place, len(order), page, C).to(low)
    queries = [min(n, 130) if prefill else 1 for n in contexts]
    q = _random(place, sum(queries), H, C, seed=1).to(low)
    rest: tuple[Any, ...] = (table, torch.tensor(contexts))
    run: Callable[..., torch.Tensor] = ours.mla_decode_paged
    if prefill:
        cu = torch.tensor([0, *accumulate(queries)], device=place.device)
        run, rest = ours.mla_prefill_paged, (table, cu, rest[1])
    tail = (*rest, C**-0.5, R)
    got = run(q, pages, *tail, backend="triton")
    return relative(got, run(q.double(), pages.double(), *tail, backend="reference"))


def _store(place: Place, form: str, dtype: str) -> float:
    """Store, then load elsewhere: native is bit-exact; INT8 equals the specification's INT8."""
    import torch

    import kdalab_kernels as ours

    S, L, H, K = place.sizes((6, 4, 32, 128), (3, 2, 1, 16))
    low = getattr(torch, dtype)
    active, conv = _random(place, S, L, H, K, K).to(low), _random(place, S, L, 3, 3 * H * K).to(low)
    kept = active.clone() if form == "native" else ours.quantize_states(active, backend="reference")
    results = []
    for backend in ("triton", "reference"):
        states = (
            kept.clone()
            if isinstance(kept, torch.Tensor)
            else ours.QuantizedStates(kept.q * 0, kept.scale * 0)
        )
        pool = ours.CheckpointBuffers(states, torch.zeros_like(conv))
        into, window = torch.zeros_like(active), torch.zeros_like(conv)
        src, dst = torch.tensor([2, -1, 0]), torch.tensor([1, -1, 2])
        ours.store_checkpoints_inplace(active, conv, pool, src, dst, backend=backend)
        ours.load_checkpoints_inplace(pool, into, window, dst, src, backend=backend)
        results.append((into, window))
    exact = torch.equal(results[0][1], results[1][1])
    if form == "native":
        exact = exact and torch.equal(results[0][0], results[1][0])
    return relative(results[0][0], results[1][0]) if exact else float("inf")
