"""Everything a replay depends on, in one object with a text form.

``Setup.parse("model=kimi-k3 memory=80GiB checkpoints=leaf+branch int8=on")``; ``str(setup)`` gives
what differs from the defaults, and parsing that gives the same setup. Every command, every row of
a sweep and every recommendation speaks this one language.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kdalab.cache import CacheMode, parse_placement
from kdalab.errors import KdalabError
from kdalab.lab import hardware as machines
from kdalab.lab.policies import block_order, check_retention
from kdalab.spec import ModelSpec, resolve_model
from kdalab.units import parse_bytes

CACHES = ("radix", "block")
PD = ("off", "ship", "recompute")


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration of model, memory, cache and machine.

    Args:
        model: a preset or a config.json; ``state_dtype`` and ``kv_dtype`` change its types.
        memory: bytes for latent KV and states together; None for no limit.
        cache: "radix" (SGLang's way) or "block" (vLLM's way).
        checkpoints: radix: where checkpoints are taken, see ``parse_placement``.
        retention: lru, marconi (alpha tuned on the trace), marconi:ALPHA; radix also lru-path, and
            each with +cap:N.
        split: radix: states to KV in fixed pools (SGLang's ``mamba_full_memory_ratio``); None for
            one pool that both share.
        int8: radix: checkpoints are kept in INT8; active states stay as they are.
        host: radix: bytes of a host tier, 0 for none; ``write_through`` uses make a node due.
        decoded: radix: the output enters the cache too, where the trace knows its ids.
        block, unit, interval, mode, layout, kernel_grid: block: the attention block in tokens
            (None: the smallest that holds a state), ``prefix_match_unit`` (None: the block), the
            retention interval (None dense, 0 reachable boundaries, tokens), the cache mode, how
            pages are laid out, the kernel's grid of states inside a chunk.
        chunk: block: tokens of a prefill chunk.
        pd: "off"; "ship": a decode side that gets KV and state; "recompute": one that gets no
            state and has to compute from its own.
        arrivals: take the trace's arrival times: requests overlap, hold locks and memory while
            they run, and wait for each other. Off: one after the other.
        speed: the trace's clock runs so many times faster.
        hardware: a preset of rates; the next four replace single ones (all devices together).
        policy: ``FILE.py:Class``, a placement or an eviction order of one's own.

    Raises:
        KdalabError: an unknown name, a number out of range, or settings that exclude each other.
    """

    model: str = "kimi-k3"
    state_dtype: str | None = None
    kv_dtype: str | None = None
    memory: int | None = None
    cache: str = "radix"
    checkpoints: str = "leaf+branch"
    retention: str = "lru"
    split: float | None = None
    int8: bool = False
    host: int = 0
    write_through: int = 2
    decoded: bool = False
    block: int | None = None
    unit: int | None = None
    interval: int | None = 0
    mode: str = "align"
    layout: str = "padded"
    kernel_grid: int = 0
    chunk: int = 8192
    pd: str = "off"
    arrivals: bool = False
    speed: float = 1.0
    hardware: str = "h200x16"
    prefill_flops: float | None = None
    restore_bandwidth: int | None = None
    host_bandwidth: int | None = None
    network_bandwidth: int | None = None
    decode_seconds: float | None = None
    policy: str | None = None

    def __post_init__(self) -> None:
        for name in DEFAULTS:
            check_value(name, getattr(self, name))
        self._check_together()

    def _check_together(self) -> None:
        if self.split is not None and self.memory is None:
            raise KdalabError("a fixed split divides a memory; give memory=..., or split=off")
        if self.cache == "block":
            default = DEFAULTS
            for name in RADIX_ONLY:
                if getattr(self, name) != default[name]:
                    raise KdalabError(f"{name} is a setting of cache=radix; leave it out here")
            block_order(self.retention)
        else:
            for name in BLOCK_ONLY:
                if getattr(self, name) != DEFAULTS[name]:
                    raise KdalabError(f"{name} is a setting of cache=block; add cache=block")

    # -- text --------------------------------------------------------------------------------

    def __str__(self) -> str:
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != DEFAULTS[field.name] or field.name == "model":
                parts.append(shlex.quote(f"{field.name}={shown(field.name, value)}"))
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str | Iterable[str], base: Setup | None = None) -> Setup:
        """``key=value`` pairs, in one string or several, on top of ``base``.

        Raises:
            KdalabError: an unknown key, one that is given twice with different values, or a value
                that its key does not take.
        """
        changes: dict[str, Any] = {}
        for word in split_words(text) if isinstance(text, str) else text:
            key, value = read_word(word)
            if key in changes and changes[key] != value:
                raise KdalabError(
                    f"{key} is given twice, as {shown(key, changes[key])} and as "
                    f"{shown(key, value)}; give one of them"
                )
            changes[key] = value
        return replace(base or cls(), **changes)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    # -- what follows from it ----------------------------------------------------------------

    @property
    def spec(self) -> ModelSpec:
        """The model, with its dtypes."""
        return resolve_model(self.model).with_dtypes(state=self.state_dtype, kv=self.kv_dtype)

    @property
    def rates(self) -> Rates:
        """The machine's rates, single ones replaced."""
        h = machines.hardware(self.hardware)

        def pick(own: float | None, preset: float) -> float:
            return preset if own is None else float(own)

        return Rates(
            pick(self.prefill_flops, h.prefill_flops),
            pick(self.restore_bandwidth, h.restore_bytes),
            pick(self.host_bandwidth, h.host_bytes),
            pick(self.network_bandwidth, h.network_bytes),
            pick(self.decode_seconds, h.decode_s),
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """FLOP/s, bytes/s and seconds of a whole deployment."""

    prefill_flops: float
    restore_bytes: float
    host_bytes: float
    network_bytes: float
    decode_s: float


DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Setup)}
_CHOICES: dict[str, tuple[str, ...]] = {
    "cache": CACHES,
    "pd": PD,
    "mode": tuple(str(m) for m in CacheMode),
    "layout": ("padded", "packed"),
}
_LEAST: dict[str, float] = {
    "memory": 1, "split": 0.001, "host": 0, "write_through": 1, "block": 1, "unit": 1,
    "interval": 0, "kernel_grid": 0, "chunk": 1, "restore_bandwidth": 1, "host_bandwidth": 1,
    "network_bandwidth": 1, "decode_seconds": 0,
    # Far below any real one, and no time that follows is beyond a float.
    "speed": 1e-6, "prefill_flops": 1e6,
}  # fmt: skip
_MOST: dict[str, float] = {
    "split": 1_000, "speed": 1e9, "prefill_flops": 1e24, "decode_seconds": 1e6,
}  # fmt: skip
_CHECKS: dict[str, Callable[[str], object]] = {
    "checkpoints": parse_placement, "retention": check_retention, "hardware": machines.hardware,
}  # fmt: skip
RADIX_ONLY = (
    "checkpoints", "split", "int8", "host", "write_through", "decoded", "pd", "policy",
)  # fmt: skip
BLOCK_ONLY = ("block", "unit", "interval", "mode", "layout", "kernel_grid", "chunk")


def _switch(key: str, text: str) -> bool:
    if text.lower() in ("on", "yes", "true", "1"):
        return True
    if text.lower() in ("off", "no", "false", "0"):
        return False
    raise KdalabError(f"{key}={text}; use on or off")


def _size(key: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except KdalabError as error:
        raise KdalabError(f"{key}={text}: {error}") from None


def _size_or(word: str, value: int | None) -> Callable[[str, str], int | None]:
    def parse(key: str, text: str) -> int | None:
        return value if text.lower() == word else _size(key, text)

    return parse


def _whole(key: str, text: str) -> int:
    digits = text.replace(",", "").replace("_", "")
    if not digits.isdecimal() or len(digits) > 15:
        raise KdalabError(f"{key}={text}; use a whole number{_range(key)}")
    return int(digits)


def _range(key: str) -> str:
    least, most = _LEAST.get(key), _MOST.get(key)
    if most is not None:
        return f" of {least or 0:g} to {most:,.0f}" if most < 1e15 else f" of {least:g} to {most:g}"
    return "" if least is None else f", {least:g} or more"


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value or value in (float("inf"), float("-inf")):
        raise KdalabError(f"{key}={text}; use a number{_range(key)}")
    return value


def _or_none(word: str, inner: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    return lambda key, text: None if text.lower() == word else inner(key, text)


def _interval(key: str, text: str) -> int | None:
    if text.lower() in ("dense", "reachable"):
        return None if text.lower() == "dense" else 0
    return _whole(key, text)


def _word(key: str, text: str) -> str:
    return text


def _placement(key: str, text: str) -> str:
    return text.lower().replace("_", "")  # one text for one placement


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "model": _word, "state_dtype": _or_none("model", _word), "kv_dtype": _or_none("model", _word),
    "memory": _size_or("unlimited", None), "cache": _word, "checkpoints": _placement,
    "retention": _word, "split": _or_none("off", _number), "int8": _switch,
    "host": _size_or("off", 0), "write_through": _whole, "decoded": _switch,
    "block": _or_none("auto", _whole), "unit": _or_none("auto", _whole), "interval": _interval,
    "mode": _word, "layout": _word, "kernel_grid": _whole, "chunk": _whole, "pd": _word,
    "arrivals": _switch, "speed": _number, "hardware": _word,
    "prefill_flops": _or_none("preset", _number),
    "restore_bandwidth": _size_or("preset", None), "host_bandwidth": _size_or("preset", None),
    "network_bandwidth": _size_or("preset", None),
    "decode_seconds": _or_none("preset", _number), "policy": _or_none("none", _word),
}  # fmt: skip
_NONE: dict[str, str] = {
    "memory": "unlimited", "split": "off", "block": "auto", "unit": "auto", "interval": "dense",
    "policy": "none", "state_dtype": "model", "kv_dtype": "model",
}  # fmt: skip


def split_words(text: str) -> list[str]:
    """``KEY=VALUE ...`` as its words, quoted as in a shell.

    Raises:
        KdalabError: a quote that does not end.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise KdalabError(f"{text!r}: {error}") from None


def read_word(word: str) -> tuple[str, Any]:
    """``KEY=VALUE`` as the key and its value.

    Raises:
        KdalabError: no such key, or a value that it does not take.
    """
    name, equals, value = word.partition("=")
    key = name.strip().replace("-", "_").lower()
    if not equals or key not in _PARSERS:
        raise KdalabError(f"{word!r} is no setting; use KEY=VALUE with {', '.join(_PARSERS)}")
    if not value.strip():
        raise KdalabError(f"{key}= has no value; leave it out for {shown(key, DEFAULTS[key])}")
    return key, _PARSERS[key](key, value.strip())


def check_value(name: str, value: Any) -> None:
    """Refuse a value that no setup could take, whatever its other settings are.

    Raises:
        KdalabError: an unknown name, or a number out of range.
    """
    if (allowed := _CHOICES.get(name)) is not None and value not in allowed:
        raise KdalabError(f"{name} = {value!r}; allowed: {', '.join(allowed)}")
    if name in _CHECKS:
        _CHECKS[name](value)
    if value is None:
        return
    told = f"{value:g}" if isinstance(value, float) else value
    if (least := _LEAST.get(name)) is not None and not value >= least:
        raise KdalabError(f"{name} = {told}; use {least:,g} or more")
    if (most := _MOST.get(name)) is not None and not value <= most:
        limit = f"{most:,.0f}" if most < 1e15 else f"{most:g}"
        raise KdalabError(f"{name} = {told}; use {limit} or less")


def shown(name: str, value: Any) -> str:
    """A value in the text form that ``Setup.parse`` reads."""
    if value is None:
        return _NONE.get(name, "preset")
    if isinstance(value, bool):
        return "on" if value else "off"
    if name in ("memory", "host") and value:
        for unit, step in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
            if value % step == 0:
                return f"{value // step}{unit}"
    return repr(value) if isinstance(value, float) else str(value)
