"""Settings of the lab as the flags of SGLang and vLLM, and the defaults of both.

Names are those of late 2026 (SGLang 0.5.23, vLLM 0.33) and change between versions. What a flag
does there is modelled at the granularity of the trace's blocks; ``LIMITS`` says where the model
and the system differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kdalab.errors import KdalabError
from kdalab.lab.block_run import layout_for
from kdalab.lab.setup import BLOCK_ONLY, DEFAULTS, Setup
from kdalab.spec import state_sizes
from kdalab.spec.dtypes import canonical_dtype

#: SGLang's default ratio of state memory to KV memory, and its usual chunk of prefill.
SGLANG_SPLIT = 0.9
SGLANG_CHUNK = 8192
#: Types that both systems take for the cache and for recurrent states, under the lab's names.
_KV_TYPES = {"bf16": "bfloat16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_STATE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
#: SGLang copies a node to the host at this use of it.
_WRITE_POLICY = {1: "write_through", 2: "write_through_selective"}


@dataclass(frozen=True, slots=True)
class System:
    """One serving system: what of it can be set, and its defaults.

    ``knobs`` are settings and the values to try (text, as in ``Setup.parse``). ``allowed`` turns
    a setup in which a knob was just set into one that the system starts with, that knob kept.
    """

    name: str
    default: Setup
    knobs: dict[str, tuple[str, ...]]
    limits: tuple[str, ...]
    allowed: Callable[[Setup, str], Setup] = lambda setup, knob: setup


def _on_radix(base: Setup) -> Setup:
    """The model, memory and machine of any setup, with a radix cache."""
    return replace(base, cache="radix", **{name: DEFAULTS[name] for name in BLOCK_ONLY})


def sglang(base: Setup, host: int = 0) -> System:
    """SGLang: a radix tree with one state for each prefill chunk."""
    default = replace(
        _on_radix(base),
        checkpoints=f"branch-first:{SGLANG_CHUNK}",
        retention="lru",
        split=SGLANG_SPLIT if base.memory is not None else None,
        host=0,
    )
    knobs: dict[str, tuple[str, ...]] = {
        "checkpoints": tuple(f"branch-first:{n}" for n in (2048, 4096, 8192, 16384, 32768)),
        "int8": ("off", "on"),
        "retention": ("lru", "lru+cap:1", "lru+cap:2", "lru+cap:4", "lru+cap:16"),
    }
    if base.memory is not None:
        knobs["split"] = ("0.2", "0.5", "0.9", "2.0", "4.0", "off")
    if host:
        knobs["host"] = ("off", str(host))
    limits = (
        "SGLang's INT8 pool stands beside the active pool and has a size of its own; here states "
        "of both forms share the state memory",
        "a chunk of prefill holds one request here, in SGLang perhaps several",
        "the memory is that of one rank of tensor parallel size 1; of more ranks each holds all "
        "latent KV and its share of every state",
        "SGLang's INT8 checkpoints go with a fixed split and without a host tier only; no other "
        "combination was tried",
    )
    return System("SGLang", default, knobs, limits, _allowed_in_sglang)


def sglang_conflict(setup: Setup) -> str:
    """Why SGLang does not start with these settings together; "" if it does. Its INT8 checkpoint
    pool is off under unified memory, and its server refuses it beside a hierarchical cache."""
    if not setup.int8:
        return ""
    if setup.memory is not None and setup.split is None:
        return (
            "SGLang keeps no INT8 checkpoints under unified memory (--enable-unified-memory); "
            "use int8=off, or a fixed split such as split=0.9"
        )
    if setup.host:
        return (
            "SGLang does not start with --enable-int8-mamba-checkpoint and "
            "--enable-hierarchical-cache together; use int8=off or host=off"
        )
    return ""


def _allowed_in_sglang(setup: Setup, knob: str) -> Setup:
    if not sglang_conflict(setup):
        return setup
    if knob != "int8":
        return replace(setup, int8=False)
    unified = setup.memory is not None and setup.split is None
    return replace(setup, split=SGLANG_SPLIT if unified else setup.split, host=0)


def vllm(base: Setup, trace_block: int, host: int = 0) -> System:
    """vLLM: blocks under hashes, states where a step ends. ``host`` is not used, which is said."""
    default = replace(
        base,
        cache="block",
        checkpoints=Setup().checkpoints,
        retention="lru",
        split=None,
        int8=False,
        host=0,
        decoded=False,
        pd="off",
        policy=None,
        write_through=DEFAULTS["write_through"],
        mode="align",
        interval=0,
        unit=None,
        block=None,
        layout="padded",
    )
    block = layout_for(default, trace_block).groups[0].block_tokens
    units = {str(u) for u in (trace_block, block // 4, block // 2) if u and not u % trace_block}
    units = {u for u in units if block % int(u) == 0 and int(u) < block}
    knobs: dict[str, tuple[str, ...]] = {
        "interval": ("reachable", "dense", str(2 * block), str(4 * block), str(16 * block)),
        "unit": ("auto", *sorted(units, key=int)),
        "block": ("auto", str(2 * block)),
    }
    limits = ["one pool on one rank: the layout of pages is that of tensor parallel size 1"]
    if host:
        limits.append("blocks have no host tier here: the host's memory is not used")
    return System("vLLM", default, knobs, tuple(limits))


def own_policy(base: Setup, policy: str, host: int = 0) -> System:
    """A policy of one's own on the radix cache, in the memory that suits it best. ``host`` is not
    used, which is said."""
    default = replace(_on_radix(base), policy=policy, split=None, host=0)
    knobs: dict[str, tuple[str, ...]] = {"int8": ("off", "on")}
    if base.memory is not None:
        knobs["split"] = ("off", "0.2", "0.5", "0.9", "2.0", "4.0")
    limits = ("a policy of one's own is tried without the host's memory",) if host else ()
    return System(f"own policy {policy}", default, knobs, limits)


def sglang_flags(setup: Setup) -> list[str]:
    """A radix setup as SGLang's command line.

    Raises:
        KdalabError: SGLang does not start with these settings together.
    """
    if conflict := sglang_conflict(setup):
        raise KdalabError(conflict)
    flags = ["--mamba-radix-cache-strategy extra_buffer"]
    name, _, chunk = setup.checkpoints.partition(":")
    if name == "branch-first" and chunk:
        flags.append(f"--chunked-prefill-size {chunk}")
    if setup.split is not None:
        flags.append(f"--mamba-full-memory-ratio {setup.split:g}")
    elif setup.memory is not None:
        flags.append("--enable-unified-memory")
    if setup.int8:
        flags.append("--enable-int8-mamba-checkpoint")
        if setup.memory is not None and setup.split is not None:
            share = setup.memory * setup.split / (1 + setup.split)
            count = int(share // state_sizes(setup.spec).checkpoint_int8_bytes)
            flags.append(f"--int8-mamba-ckpt-size {max(1, count)}")
    _, _, cap = setup.retention.partition("cap:")
    if cap:
        flags.append(f"--mamba-max-states-per-path {cap}")
    if setup.host and setup.memory:
        flags.append(f"--enable-hierarchical-cache --hicache-ratio {setup.host / setup.memory:.2f}")
        if (word := _WRITE_POLICY.get(setup.write_through)) is not None:
            flags.append(f"--hicache-write-policy {word}")
        else:
            flags.append(f"(no flag of SGLang for write_through={setup.write_through}: 1 or 2)")
    return flags + _type_flags(setup, "SGLang", "--mamba-ssm-dtype")


def _type_flags(setup: Setup, system: str, for_states: str) -> list[str]:
    """Types of latent KV and of states, where they are not the model's own."""
    flags = []
    for key, given, known, flag in (
        ("kv_dtype", setup.kv_dtype, _KV_TYPES, "--kv-cache-dtype"),
        ("state_dtype", setup.state_dtype, _STATE_TYPES, for_states),
    ):
        if given is None:
            continue
        word = known.get(canonical_dtype(given))
        said = f"(no flag of {system} for {key}={given}: it takes {', '.join(known)})"
        flags.append(said if word is None else f"{flag} {word}")
    return flags


def vllm_flags(setup: Setup, trace_block: int) -> list[str]:
    """A block setup as vLLM's command line."""
    block = layout_for(setup, trace_block).groups[0].block_tokens
    flags = ["--enable-prefix-caching", f"--mamba-cache-mode {setup.mode}", f"--block-size {block}"]
    if setup.interval is None:
        flags.append("prefix_cache_retention_interval=None (dense; not the command line's default)")
    else:
        flags.append(f"--prefix-cache-retention-interval {setup.interval}")
    if setup.unit is not None and setup.unit < block:
        flags.append(f"--prefix-match-unit {setup.unit}")
        flags.append("--enable-mamba-fine-grained-prefix-cache")
    flags.append(f"--max-num-batched-tokens {setup.chunk}")
    if setup.retention != "lru":
        flags.append(f"(no flag of vLLM for {setup.retention}: its one queue is least recent use)")
    return flags + _type_flags(setup, "vLLM", "--mamba-ssm-cache-dtype")


def describe(setup: Setup, trace_block: int) -> Sequence[str]:
    """The flags of whichever system the setup's cache belongs to.

    Raises:
        KdalabError: that system does not start with these settings together.
    """
    if setup.policy is not None:
        memory = "one pool" if setup.split is None else f"states : KV = {setup.split:g}"
        int8 = "INT8 checkpoints" if setup.int8 else "native checkpoints"
        return [f"{setup.policy} (no flag of SGLang or vLLM), {memory}, {int8}"]
    return vllm_flags(setup, trace_block) if setup.cache == "block" else sglang_flags(setup)
