"""What a replay found: the honest account of one trace under one setup."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from kdalab.lab.request import Report
from kdalab.lab.setup import Setup

MAX_SAMPLES = 512


class Usage(NamedTuple):
    """Bytes in use at one moment, by kind: cached latent KV, cached checkpoints, what running
    requests hold for themselves, and copies on the host."""

    kv: int
    state: int
    private: int
    host: int


class Sample(NamedTuple):
    """``Usage`` at a time (seconds of the trace's clock), after so many requests."""

    at: float
    requests: int
    kv: int
    state: int
    private: int
    host: int


class Timeline:
    """A few hundred samples, evenly spread, whatever the length: when it is full, every second
    one goes and the stride doubles."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.stride = 1

    def wants(self, done: int) -> bool:
        """Is a sample due after ``done`` requests?"""
        return done % self.stride == 0

    def add(self, at: float, done: int, usage: Usage) -> None:
        """Keep one."""
        self.samples.append(Sample(at, done, *usage))
        if len(self.samples) >= MAX_SAMPLES:
            self.samples = self.samples[1::2]
            self.stride *= 2


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, of many requests."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: array[float]) -> Times:
        """Mean and quantiles (nearest rank)."""
        if not values:
            return cls()
        ordered = sorted(values)
        n = len(ordered)

        def at(q: float) -> float:
            return ordered[min(n - 1, max(0, -(-int(q * n * 1000) // 1000) - 1))]

        return cls(sum(ordered) / n, at(0.5), at(0.95), at(0.99), ordered[-1])


@dataclass(slots=True)
class Account:
    """Lengths in tokens, sizes in bytes, times in seconds, work in FLOPs.

    ``known_tokens`` had their latent KV in the cache, ``hit_tokens`` were restored,
    ``replayed_tokens`` are the known ones computed again. What is written is new to the cache;
    what is evicted was written before. ``flops`` is the work of all prompts without a cache.
    ``waited`` requests waited for memory, ``peak_in_flight`` ran at once. ``ttft`` is the time to
    the first token under the setup's rates: with arrivals it contains the wait for the machine,
    without them only restoring and computing. ``busy`` is prefilling,
    ``prefill_span`` lasts to the end of the last prefill and ``makespan`` to the last output token.
    ``sent_`` and ``decode_side_`` are those of a
    decode side (``pd``).
    """

    trace: str
    setup: str
    model: str
    block_tokens: int
    page_bytes: int
    checkpoint_bytes: int
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    hit_tokens: int = 0
    known_tokens: int = 0
    replayed_tokens: int = 0
    flops: int = 0
    flops_saved: int = 0
    flops_replayed: int = 0
    reads: int = 0
    state_bytes_read: int = 0
    pages_written: int = 0
    states_written: int = 0
    states_read_at_least_once: int = 0
    skipped_commits: int = 0
    evicted_kv_bytes: int = 0
    evicted_state_bytes: int = 0
    evicted_states: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0
    host_bytes: int = 0
    peak_bytes: int = 0
    host_bytes_written: int = 0
    host_bytes_read: int = 0
    host_hits: int = 0
    sent_kv_bytes: int = 0
    sent_state_bytes: int = 0
    decode_side_flops: int = 0
    decode_side_restored: int = 0
    waited: int = 0
    peak_in_flight: int = 0
    alpha: float | None = None
    ttft: Times = field(default_factory=Times)
    queue: Times = field(default_factory=Times)
    busy: float = 0.0
    prefill_span: float = 0.0
    makespan: float = 0.0
    over_time: tuple[Sample, ...] = ()
    assumptions: tuple[str, ...] = ()
    report: Report | None = None
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were restored, 0 to 1."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def kv_only_hit_rate(self) -> float:
        """Share of prompt tokens whose latent KV was known, 0 to 1: what is reported when the
        recurrent state is left out of the account."""
        return self.known_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def flops_saved_share(self) -> float:
        """Share of the work that restoring saved, 0 to 1."""
        return self.flops_saved / self.flops if self.flops else 0.0

    @property
    def new_tokens(self) -> int:
        """Prompt tokens computed for the first time."""
        return self.input_tokens - self.hit_tokens - self.replayed_tokens

    @property
    def states_read_share(self) -> float:
        """Share of the states written that were ever read, 0 to 1."""
        return self.states_read_at_least_once / self.states_written if self.states_written else 0.0

    @property
    def state_bytes_written(self) -> int:
        """Bytes of checkpoints that entered the cache."""
        return self.states_written * self.checkpoint_bytes

    @property
    def utilisation(self) -> float:
        """Share of the time, from the first arrival to the last prefill's end, in which the machine
        was prefilling: 0 to 1."""
        return self.busy / self.prefill_span if self.prefill_span else 0.0

    def row(self) -> dict[str, Any]:
        """One flat row: every number under its own name."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Times):
                out |= {f"{f.name}_{q.name}": getattr(value, q.name) for q in fields(value)}
            elif isinstance(value, int | float | str) or value is None:
                out[f.name] = value
        out.pop("report", None)
        for name in ("hit_rate", "kv_only_hit_rate", "flops_saved_share", "new_tokens",
                     "states_read_share", "state_bytes_written", "utilisation"):  # fmt: skip
            out[name] = getattr(self, name)
        return out

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, the course over time and the report included."""
        return {
            **self.row(),
            "over_time": [s._asdict() for s in self.over_time],
            "assumptions": list(self.assumptions),
            "report": self.report.as_dict() if self.report is not None else None,
        }


def _rate(nbytes: float) -> str:
    """Bytes a second in a unit that needs no exponent."""
    return f"{nbytes / 1e12:,.4g} TB/s" if nbytes >= 1e12 else f"{nbytes / 1e9:,.4g} GB/s"


def assumptions(setup: Setup, block: int) -> tuple[str, ...]:
    """What the figures of a setup rest on, in words."""
    out = [f"hits are whole blocks of {block:,} tokens"]
    if setup.cache == "block":
        unit = f"units of {setup.unit:,} tokens" if setup.unit else "blocks of the cache"
        out = [f"hits are whole {unit}"]
    if not setup.decoded:
        out.append("output tokens are not cached")
    r = setup.rates
    times = (
        f"all devices together: prefill {r.prefill_flops / 1e15:.3g} PFLOP/s, "
        f"restore {_rate(r.restore_bytes)}"
    )
    if setup.host:
        times += f", host {_rate(r.host_bytes)}; copies to the host cost no time"
    if setup.pd != "off":
        times += f", network {_rate(r.network_bytes)}"
    out.append(times)
    if setup.arrivals:
        out.append(
            "requests arrive by the trace's clock"
            + (f", its times divided by {setup.speed:g}" if setup.speed != 1 else "")
            + ", are prefilled one at a time in that order, and stay until their last output token "
            f"({r.decode_s * 1e3:g} ms each); what they hold cannot be evicted"
        )
    else:
        out.append("requests run one after the other; times are without any wait")
    if setup.int8:
        out.append("INT8 checkpoints round each state once; what that does to answers is not here")
    if setup.pd == "ship":
        out.append("the decode side, with as much memory, gets the missing KV and one state")
    if setup.pd == "recompute":
        out.append(
            "the decode side, with as much memory, gets no state: it computes each prompt from its "
            "own last checkpoint, one prompt at a time"
        )
    return tuple(out)
