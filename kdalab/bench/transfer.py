"""What it costs to move a whole state, and from which length on it beats computing it again.

Measured here: the time to the first decoded token on the tiny model, and the speed at which
bundles are written, checked and read. For real models the bytes follow from ``spec``; a time
needs two numbers of the reader's own machines, a bandwidth and a rate of prefill.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdalab.bench.engine import Figure
from kdalab.bench.timing import medians_in_turns
from kdalab.errors import KdalabError
from kdalab.spec import ModelSpec, state_sizes
from kdalab.transfer.worth import LENGTHS as LENGTHS
from kdalab.transfer.worth import KindBytes as KindBytes
from kdalab.transfer.worth import break_even
from kdalab.transfer.worth import bytes_by_kind as bytes_by_kind

if TYPE_CHECKING:
    from kdalab.engine import Engine
    from kdalab.model import HybridModel
    from kdalab.transfer import Bundle

PROMPTS = (256, 1024)
"""Prompts that are measured on the tiny model, tokens."""

BANDWIDTHS = (10**9, 10 * 10**9)
"""Bytes a second of the wire, where none are given."""

PREFILL_RATE = 10_000.0
"""Tokens a second of one prefill instance of a real model, where none is given."""

BLOB_MIB = (16, 64)
SLOWER = 2.0
"""Bundles are to be written and read in at most this many times the time of a copy."""


def modelled(
    spec: ModelSpec, bandwidths: Sequence[float] = BANDWIDTHS, rate: float = PREFILL_RATE
) -> list[Figure]:
    """Break-even of a real model, from its bytes and from two numbers that are given."""
    if rate <= 0 or any(b <= 0 for b in bandwidths):
        raise KdalabError("bandwidths and the rate of prefill are above 0")
    sizes = state_sizes(spec)
    return [
        Figure(
            f"break-even, {spec.name}, computed",
            f"{b / 1e9:g} GB/s, prefill of {rate:,.0f} tokens/s",
            break_even(sizes.checkpoint_bytes, sizes.latent_bytes_per_token, b, 1 / rate),
            "tokens",
            note=f"{sizes.checkpoint_bytes / b * 1e3:.0f} ms for recurrent and conv state alone",
        )
        for b in bandwidths
    ]


def first_tokens(
    prompts: Sequence[int] = PROMPTS, bandwidths: Sequence[float] = BANDWIDTHS, rounds: int = 5
) -> list[Figure]:
    """Seconds from a prefilled state elsewhere to the first token decoded here, tiny model.

    Shipped: export, bytes, the wire (their number divided by the bandwidth), reading with all
    checks, admission, one decode step. Replayed: the whole prompt computed here, one decode step.
    """
    from kdalab.model import tiny_model

    model = tiny_model()
    calls: dict[str, Callable[[], object]] = {}
    sizes = {}
    for n in prompts:
        tokens = [(7 * i) % 250 for i in range(n)]
        origin = _decoding(model, tokens)
        sizes[n] = _blob(origin)
        calls[f"ship {n}"] = _shipping(model, origin, tokens)
        calls[f"replay {n}"] = _replaying(model, tokens)
    seconds = medians_in_turns(calls, rounds)
    figures = []
    for n in prompts:
        group = f"first decoded token, tiny model, {n:,} tokens"
        replay, ship = seconds[f"replay {n}"], seconds[f"ship {n}"]
        figures.append(Figure(group, "replayed here", replay * 1e3, "ms"))
        size = len(sizes[n])
        note = f"a bundle of {size:,} bytes"
        figures.append(Figure(group, "shipped, without the wire", ship * 1e3, "ms", note=note))
        for b in bandwidths:
            total = (ship + size / b) * 1e3
            figures.append(Figure(group, f"shipped at {b / 1e9:g} GB/s", total, "ms"))
    return figures + _measured_break_even(prompts, seconds, sizes, bandwidths)


def _measured_break_even(
    prompts: Sequence[int],
    seconds: dict[str, float],
    sizes: dict[int, bytes],
    bandwidths: Sequence[float],
) -> list[Figure]:
    """The straight lines through the shortest and the longest prompt, and where they cross."""
    low, high = min(prompts), max(prompts)
    if low == high:
        return []

    def line(of: Callable[[int], float]) -> tuple[float, float]:
        slope = max(0.0, (of(high) - of(low)) / (high - low))  # below the noise: none
        return of(low) - slope * low, slope

    ship = line(lambda n: seconds[f"ship {n}"])
    replay = line(lambda n: seconds[f"replay {n}"])
    size = line(lambda n: len(sizes[n]))
    return [
        Figure(
            "break-even, tiny model, from the times above",
            f"{b / 1e9:g} GB/s",
            break_even(size[0], size[1], b, replay[1], ship[0], ship[1], replay[0]),
            "tokens",
            note=f"{replay[1] * 1e6:.0f} us a token replayed, {ship[1] * 1e6:.2f} shipped",
        )
        for b in bandwidths
    ]


def _engine(model: HybridModel) -> Engine:
    from kdalab.cache import parse_placement
    from kdalab.engine import Engine, EngineConfig
    from kdalab.transfer import identity_of

    identity = identity_of(model, name="tiny", model_version="seed-0", tokenizer="bytes")
    sizes: dict[str, Any] = {"n_pages": 256, "n_active": 2, "n_checkpoints": 2, "poison": False}
    config = EngineConfig(placement=parse_placement("branch"), **sizes)
    return Engine(model, config, identity)


def _decoding(model: HybridModel, tokens: list[int]) -> Engine:
    engine = _engine(model)
    request = engine.submit(tokens, 8)
    while request.phase != "decode":
        engine.step()
    return engine


def _blob(origin: Engine) -> bytes:
    from kdalab.transfer import export_request

    return export_request(origin, "A").to_bytes()


def _shipping(model: HybridModel, origin: Engine, tokens: list[int]) -> Callable[[], object]:
    from kdalab.transfer import Bundle, resume_request

    target, first = _engine(model), list(origin.requests["A"].generated)

    def ship() -> None:
        bundle = Bundle.from_bytes(_blob(origin))
        resume_request(target, bundle, tokens, first, 2)
        target.run()

    return ship


def _replaying(model: HybridModel, tokens: list[int]) -> Callable[[], object]:
    target = _engine(model)

    def replay() -> None:
        target.submit(tokens, 2)
        target.run()

    return replay


def throughput(mebibytes: Sequence[int] = BLOB_MIB, rounds: int = 7) -> list[Figure]:
    """GB a second of bundles through memory and files, beside a copy of as many bytes."""
    return [f for size in mebibytes for f in _throughput(size, rounds)]


def _throughput(mebibytes: int, rounds: int) -> list[Figure]:
    import torch

    from kdalab.transfer import Bundle, load_bundle, save_bundle

    bundle = _bundle_of(mebibytes)
    size = bundle.blob_bytes
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    buffer = bytearray(size)
    bundle.write_into(buffer)
    with tempfile.TemporaryDirectory(prefix="kdalab-bench-") as folder:
        file = Path(folder) / "bundle.safetensors"
        plain = Path(folder) / "plain"
        save_bundle(bundle, file)
        seconds = medians_in_turns(
            {
                "copy": lambda: target.copy_(source),
                "write into memory": lambda: bundle.write_into(buffer),
                "read from memory": lambda: Bundle.from_bytes(buffer),
                "a new blob (to_bytes)": bundle.to_bytes,
                "a new plain copy": lambda: bytes(buffer),
                "write a file, synced": lambda: save_bundle(bundle, file),
                "a plain file, not synced": lambda: plain.write_bytes(buffer),
                "read a file": lambda: load_bundle(file),
            },
            rounds,
        )
    group = f"a bundle of {size / 2**20:.0f} MiB"
    copy = seconds.pop("copy")
    figures = [Figure(group, "a copy of its bytes", size / copy / 1e9, "GB/s")]
    aimed = ("write into memory", "read from memory", "read a file")
    for name, taken in seconds.items():
        figures.append(Figure(group, name, size / taken / 1e9, "GB/s"))
        if name in aimed:
            label = f"{name}, against the copy's time"
            figures.append(Figure(group, label, taken / copy, "x", SLOWER))
    return figures


def mooncake(mebibytes: Sequence[int] = BLOB_MIB, rounds: int = 5) -> list[Figure]:
    """GB a second through a Mooncake Store on this machine, over TCP on loopback."""
    from kdalab.transfer import Bundle, MooncakeMaster

    try:
        master = MooncakeMaster()
    except KdalabError as error:
        return [Figure("Mooncake Store", "not measured", 0.0, "", note=str(error))]
    figures = []
    with master, master.client(256 << 20, 256 << 20) as client:
        for size in mebibytes:
            bundle = _bundle_of(size)
            parts, taken_put, taken_get = bundle.parts(), [], []
            for _ in range(rounds + 1):
                start = time.perf_counter()
                client.put("bench", parts)
                middle = time.perf_counter()
                data = client.get("bench")
                taken_get.append(time.perf_counter() - middle)
                taken_put.append(middle - start)
                assert data is not None
                Bundle.from_bytes(data)
                client.remove("bench")
            group = f"Mooncake Store over TCP, a bundle of {size} MiB"
            for name, taken in (("put", taken_put), ("get", taken_get)):
                median = sorted(taken[1:])[rounds // 2]
                figures.append(Figure(group, name, bundle.blob_bytes / median / 1e9, "GB/s"))
    return figures


def _bundle_of(mebibytes: int) -> Bundle:
    """A bundle of about so many MiB, in the shapes of Kimi-Linear: half of it latent KV."""
    import torch

    from kdalab.spec import StateIdentity
    from kdalab.transfer import Bundle, PrefixHash

    heads, size, page, dim, width = 4, 128, 16, 576, 3
    channels = 3 * (heads * size,)
    layer = heads * size * size * 4 + width * sum(channels) * 4
    half = mebibytes * 2**19
    pages = -(-half // (page * dim * 4))
    layers = -(-half // layer)
    random = torch.Generator().manual_seed(0)
    identity = StateIdentity("bench", "0", "0", "fp32", "fp32", "fp32", conv_layout="time_first")
    return Bundle(
        identity,
        PrefixHash.of([1] * (pages * page)),
        torch.randn(pages, 1, page, dim, generator=random),
        torch.randn(layers, heads, size, size, generator=random),
        torch.randn(layers, width, sum(channels), generator=random),
        channels,
    )
