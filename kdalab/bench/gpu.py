"""The second half of ``kdalab bench gpu``: speed on a GPU beside fla-core and FlashKDA.

Timed with CUDA events, a cold second-level cache before every call, medians, in turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kdalab.bench import peers
from kdalab.bench.cases import COPY, OUR_CHUNK, OUR_INPLACE, OUR_LOAD, OUR_STORE, Case, Prepared
from kdalab.bench.kernels import Rates, Row, bench_kernels
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    import torch

FLA_CHUNK = "fla-core chunk_kda"
FLA_RECURRENT = "fla-core fused_recurrent_kda"
FLASH = "flash_kda.fwd"
T = 8192
LENGTHS = {
    "fixed": (T,),
    "mixed": (1300, 547, 2048, 963, 271, 3063),
    "8 x 1024": (1024,) * 8,
}
CACHE_BYTES = 256 << 20  # larger than any card's second-level cache


def require_gpu() -> None:
    """KdalabError saying what is needed where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise KdalabError(
            f"no GPU: torch {torch.__version__} sees none. Needed: Linux, an NVIDIA card of "
            "sm_80 or newer with about 8 GiB free, a CUDA build of torch, triton 3.6 or newer; "
            "fla-core for the comparison. `kdalab bench gpu --dry-run` lists what it would do, "
            "`--interpret` runs the checks in tiny on this machine"
        )


def cuda_medians(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each call on the GPU; the calls take turns after three warm-up rounds."""
    import torch

    flush = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
    for turn in range(3 + repeats):
        for name, call in calls.items():
            flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            if turn >= 3:
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: 1e-3 * statistics.median(start.elapsed_time(end) for start, end in pairs)
        for name, pairs in events.items()
    }


def gpu_rates() -> Rates:
    """Measured on this card: bfloat16 matrix products, and copying (read plus written)."""
    import torch

    n, nbytes = 8192, 1 << 30
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.zeros(nbytes, dtype=torch.int8, device="cuda") for _ in range(2))
    took = cuda_medians({"mm": lambda: a @ b, "copy": lambda: target.copy_(source)}, 20)
    return Rates(2 * n**3 / took["mm"], 2 * nbytes / took["copy"])


def speed_cases(device: str = "cuda", backend: str = "triton") -> list[Case]:
    """Prefill as FlashKDA's published tables have it, decode, INT8 store and load, at K3's size."""
    prefills = [
        prefill(f"{name}, H={H}", lengths, H, 128, device, backend)
        for H in (96, 64)
        for name, lengths in LENGTHS.items()
    ]
    decodes = [decode(N, 96, 128, device, backend) for N in (32, 256)]
    moves = [checkpoints(way, 4, 24, 96, 128, device, backend) for way in ("store", "load")]
    return [*prefills, *decodes, *moves]


def bench_gpu_speed(repeats: int = 20) -> tuple[Rates, list[Row]]:
    """All of :func:`speed_cases` on the GPU; KdalabError without one."""
    import torch

    require_gpu()
    with torch.inference_mode():  # fla-core takes its fast paths only there
        return bench_kernels(speed_cases(), repeats, gpu_rates(), cuda_medians)


def _layer_inputs(
    B: int, n: int, H: int, D: int, device: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a KDA layer hands to the kernel, bfloat16 before activation, and the switches."""
    import torch

    rng = torch.Generator(device=device).manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=rng, device=device, dtype=torch.float32)

    q, k, v, g = (normal(B, n, H, D).bfloat16() for _ in range(4))
    x = {"q": q, "k": k, "v": v, "g": g, "beta": normal(B, n, H).bfloat16()}
    switches = {
        "A_log": torch.rand(H, generator=rng, device=device),
        "dt_bias": normal(H * D) * 0.1,
        "use_qk_l2norm_in_kernel": True,
        "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True,
        "lower_bound": -5.0,
    }
    return x, switches


def _difference(expected: Callable[[], torch.Tensor], *names: str) -> Callable[..., float | None]:
    """Relative RMS of these results to the torch path's, computed once, in float32."""
    kept: list[torch.Tensor] = []

    def error(name: str, result: Any) -> float | None:
        if name not in names:
            return None
        if not kept:
            kept.append(expected())
        o, exact = (t.flatten().float() for t in (_first(result), kept[0]))
        return float((o - exact).square().mean().sqrt() / exact.square().mean().sqrt())

    return error


def _first(result: Any) -> torch.Tensor:
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out


def prefill(name: str, lengths: tuple[int, ...], H: int, D: int, device: str, backend: str) -> Case:
    """One row of packed sequences through the whole layer-side op, activations included."""
    n = sum(lengths)

    def prepare() -> Prepared:
        import torch

        import kdalab_kernels as ours

        x, switches = _layer_inputs(1, n, H, D, device)
        rest = {**switches, "safe_gate": True, "state_v_first": True, "output_final_state": True}
        cu = torch.tensor([0, *accumulate(lengths)], device=device)
        if len(lengths) > 1:
            rest["cu_seqlens"] = cu
        fla, fla_not = peers.find("fla.ops.kda")
        flash, flash_not = peers.find("flash_kda")
        calls: dict[str, Callable[[], Any]] = {}
        if fla is not None:
            calls[FLA_CHUNK] = lambda: fla.chunk_kda(**x, **rest)
        if flash is not None:
            out = torch.empty_like(x["v"])
            final = torch.empty(len(lengths), H, D, D, device=device)
            last = {"final_state": final, "cu_seqlens": cu if len(lengths) > 1 else None}
            tail = (D**-0.5, out, switches["A_log"], switches["dt_bias"].view(H, D), -5.0)
            calls[FLASH] = lambda: (flash.fwd(*x.values(), *tail, **last), out)[1]

        calls[OUR_CHUNK] = lambda: ours.chunk_kda(**x, **rest, backend=backend)

        def expected() -> torch.Tensor:
            return _first(ours.chunk_kda(**x, **rest, backend="torch"))

        return Prepared(
            calls,
            {FLA_CHUNK: fla_not, FLASH: flash_not},
            _difference(expected, FLA_CHUNK, FLASH, OUR_CHUNK),
        )

    C = 64
    flop = n * H * (6.0 * D * D + 3 * C * D + C * C)  # the report's equation 13
    nbytes = 2 * n * H * (5 * D + 1) + 4 * len(lengths) * H * D * D
    sizes = {"T": n, "H": H, "K": D, "V": D, "sequences": len(lengths)}
    label = f"T={n} {name}, K=V={D}, bfloat16"
    return Case("prefill", label, flop, nbytes, (FLA_CHUNK, FLASH, OUR_CHUNK), prepare, sizes)


def decode(N: int, H: int, D: int, device: str, backend: str) -> Case:
    """A token for each of N sequences; ours in a pool of slots in place, fla's from and to tensors.

    The bytes are those of the states, read and written once; the target is 80 % of the copy rate.
    """

    def prepare() -> Prepared:
        import torch

        import kdalab_kernels as ours

        x, switches = _layer_inputs(N, 1, H, D, device)
        pool = torch.zeros(N, H, D, D, device=device)
        slots = torch.arange(N, device=device)
        fla, fla_not = peers.find("fla.ops.kda")
        calls: dict[str, Callable[[], Any]] = {COPY: lambda: other.copy_(pool)}
        other = torch.zeros_like(pool)
        if fla is not None:
            rest = {**switches, "state_v_first": True, "output_final_state": True}
            calls[FLA_RECURRENT] = lambda: fla.fused_recurrent_kda(**x, **rest, initial_state=other)
        calls[OUR_INPLACE] = lambda: ours.fused_recurrent_kda_inplace(
            **x, **switches, states=pool, slots=slots, check_slots=False, backend=backend
        )

        def expected() -> torch.Tensor:
            zero = torch.zeros_like(pool)
            return _first(
                ours.fused_recurrent_kda(
                    **x, **switches, initial_state=zero, state_v_first=True, backend="torch"
                )
            )

        return Prepared(calls, {FLA_RECURRENT: fla_not}, _difference(expected, OUR_INPLACE))

    return Case(
        "decode",
        f"{N} sequences, H={H} K=V={D}, float32 states",
        7.0 * N * H * D * D,
        8 * N * H * D * D,
        (FLA_RECURRENT, COPY, OUR_INPLACE),
        prepare,
        {"N": N, "H": H, "K": D, "V": D},
    )


def checkpoints(way: str, N: int, L: int, H: int, D: int, device: str, backend: str) -> Case:
    """INT8 checkpoints of L layers; the target is 80 % of the copy rate over the bytes moved."""
    numbers = N * L * H * D * D
    conv = 2 * 2 * N * L * 3 * 3 * H * D
    moved = 4 * numbers + numbers + 4 * numbers // D + conv

    def prepare() -> Prepared:
        import torch

        import kdalab_kernels as ours

        active = torch.randn(N, L, H, D, D, device=device)
        window = torch.zeros(N, L, 3, 3 * H * D, dtype=torch.bfloat16, device=device)
        q = torch.zeros(active.shape, dtype=torch.int8, device=device)
        scale = torch.zeros(N, L, H, 1, D, device=device)
        pool = ours.CheckpointBuffers(ours.QuantizedStates(q, scale), window.clone())
        slots = torch.arange(N)
        back, source, target = (
            torch.empty_like(active),
            *(torch.zeros(moved // 2, dtype=torch.int8, device=device) for _ in range(2)),
        )

        def store() -> None:
            ours.store_checkpoints_inplace(active, window, pool, slots, slots, backend=backend)

        def load() -> torch.Tensor:
            ours.load_checkpoints_inplace(pool, back, window, slots, slots, backend=backend)
            return back

        store()
        name = OUR_STORE if way == "store" else OUR_LOAD
        calls: dict[str, Callable[[], Any]] = {COPY: lambda: target.copy_(source)}
        calls[name] = store if way == "store" else load

        def error(called: str, _: Any) -> float | None:
            return _difference(lambda: active, name)(called, load()) if called == name else None

        return Prepared(calls, {}, error)

    return Case(
        f"int8 {way}",
        f"{N} checkpoints, {L} layers, H={H} K=V={D}",
        2.0 * numbers,
        moved,
        (COPY, OUR_STORE if way == "store" else OUR_LOAD),
        prepare,
        {"N": N, "L": L, "H": H, "K": D, "V": D},
    )
