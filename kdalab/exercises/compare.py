"""Where two answers first differ, in words. Knows numbers, texts, containers, records, arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from kdalab.errors import shown

_READ: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__index__),
    (float, float.__float__),
    (str, str.__str__),
)


def first_difference(expected: Any, got: Any, tolerance: float = 0.0, at: str = "") -> str | None:
    """What is wrong with ``got``, or None when it says the same as ``expected``.

    A list does for a tuple and a numpy or torch number for a number; a bool is not a number.
    Floats may differ by ``tolerance * max(1, |expected|)``; whole numbers, texts and dtypes not
    at all.
    """
    where = f"at {at.lstrip('.')}: " if at else ""
    if _is_array(expected):
        return _arrays(expected, got, tolerance, where)
    if isinstance(expected, bool) or expected is None or isinstance(expected, str | bytes):
        if type(got) is not type(expected):
            return f"{where}expected {_kind(expected)}, you return {_kind(got)}"
        return None if got == expected else f"{where}expected {expected!r}, you return {got!r}"
    if isinstance(expected, Real):
        return _numbers(expected, got, tolerance, where)
    if is_dataclass(expected):
        if type(got) is not type(expected):
            return f"{where}expected {_kind(expected)}, you return {_kind(got)}"
        names = [f.name for f in fields(expected)]
        pairs = [(f".{n}", getattr(expected, n), getattr(got, n)) for n in names]
    elif isinstance(expected, Set):
        if not isinstance(got, Set):
            return f"{where}expected a set, you return {_kind(got)}"
        missing, extra = expected - got, got - expected
        words = [
            f"{w} {shown(min(s, key=repr))}" for w, s in (("no", missing), ("also", extra)) if s
        ]
        return f"{where}your set has {' and '.join(words)}" if words else None
    elif isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            return f"{where}expected a dict, you return {_kind(got)}"
        if set(got) != set(expected):
            return f"{where}expected the keys {sorted(map(repr, expected))}, not {shown(list(got))}"
        pairs = [(f"[{k!r}]", v, got[k]) for k, v in expected.items()]
    else:
        if not isinstance(got, Sequence) or isinstance(got, str | bytes):
            return f"{where}expected {_kind(expected)}, you return {_kind(got)}"
        if len(got) != len(expected):
            return f"{where}expected {len(expected)} items, you return {len(got)}"
        parts = getattr(expected, "_fields", None)
        pairs = [
            (f".{parts[i]}" if parts else f"[{i}]", e, g)
            for i, (e, g) in enumerate(zip(expected, got, strict=True))
        ]
    for step, mine, yours in pairs:
        found = first_difference(mine, yours, tolerance, at + step)
        if found is not None:
            return found
    return None


def plain(value: Any) -> Any:
    """``value`` in Python's own numbers, texts and containers, where it inherits from one of them.

    A class of the answer's own may say of itself that it equals anything; what it holds does not.
    """
    kind = type(value)
    if kind is bool or kind.__module__.partition(".")[0] == "numpy":
        return value
    for base, read in _READ:
        if kind is not base and issubclass(kind, base):
            return read(value)
    if issubclass(kind, tuple):
        items = [plain(v) for v in tuple.__iter__(value)]
        return tuple(items)
    if issubclass(kind, list):
        return [plain(v) for v in list.__iter__(value)]
    if issubclass(kind, dict):
        return {plain(k): plain(v) for k, v in dict.items(value)}
    if issubclass(kind, set | frozenset):
        base = set if issubclass(kind, set) else frozenset
        return base(plain(v) for v in base.__iter__(value))
    if is_dataclass(kind) and kind.__module__ == "kdalab.exercises.values":
        return kind(**{f.name: plain(getattr(value, f.name)) for f in fields(kind)})
    return value


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, NaN included."""
    return first_difference(a, b) is None


def is_close(expected: float, got: float, tolerance: float) -> bool:
    """Within ``tolerance * max(1, |expected|)``; NaN and infinities only if they are the same."""
    if math.isnan(expected) or math.isnan(got):
        return math.isnan(expected) and math.isnan(got)
    if expected == got:
        return True
    return not math.isinf(expected) and abs(expected - got) <= tolerance * max(1.0, abs(expected))


def _numbers(expected: Any, got: Any, tolerance: float, where: str) -> str | None:
    number = got.item() if _is_scalar(got) else got
    if type(number) not in (int, float, Fraction):
        return f"{where}expected {_kind(expected)}, you return {_kind(got)}"
    if isinstance(expected, Integral) and not isinstance(number, Integral):
        return f"{where}expected a whole number (int), you return {_kind(got)} {shown(got)}"
    if isinstance(expected, Integral):
        right = expected == number
    else:
        right = is_close(float(expected), float(number), tolerance)
    if not right:
        return f"{where}expected {_plain(expected)}, you return {_plain(number)}"
    return None


def _arrays(expected: Any, got: Any, tolerance: float, where: str) -> str | None:
    import numpy as np

    if type(got) is not type(expected):
        return f"{where}expected a {type(expected).__name__}, you return {_kind(got)}"
    if tuple(got.shape) != tuple(expected.shape):
        return f"{where}expected shape {list(expected.shape)}, you return {list(got.shape)}"
    if got.dtype != expected.dtype:
        return f"{where}expected dtype {expected.dtype}, you return {got.dtype}"
    mine, yours = _numpy(expected), _numpy(got)
    if not mine.size:
        return None
    near = np.asarray(
        [
            is_close(float(a), float(b), tolerance)
            for a, b in zip(mine.flat, yours.flat, strict=True)
        ]
    ).reshape(mine.shape)
    if near.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~near)[0])
    count = int((~near).sum())
    return (
        f"{where}[{', '.join(map(str, index))}] should be {mine[index]:.9g}, yours is "
        f"{yours[index]:.9g} ({count} of {mine.size} differ)"
    )


def _numpy(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):
        return value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, Real)


def _is_scalar(value: Any) -> bool:
    """A number of numpy, or an array or tensor of no axes, of their own classes."""
    own = type(value).__module__.partition(".")[0] in ("numpy", "torch")
    return own and hasattr(value, "item") and getattr(value, "ndim", 1) == 0


def _plain(number: Any) -> str:
    if isinstance(number, Integral):
        whole = int(number)
        return f"{whole:,}" if abs(whole) < 10**30 else shown(whole)
    return f"{float(number):.12g}"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
