"""Reading and writing sizes the way people do: ``256GiB``, ``64k`` tokens, ``414.00 MiB``."""

from __future__ import annotations

import re

from kdalab.errors import KdalabError

_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
# A context of "128k" tokens means 131,072 in every model card, so k and m are binary here.
_TOKEN_UNITS: dict[str, int] = {"": 1, "k": 2**10, "ki": 2**10, "m": 2**20, "mi": 2**20}

_QUANTITY = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_STEPS: tuple[tuple[str, int], ...] = (
    ("TiB", 2**40),
    ("GiB", 2**30),
    ("MiB", 2**20),
    ("KiB", 2**10),
)


def parse_bytes(text: str | int) -> int:
    """``"256GiB"``, ``"1.5 MB"``, ``"4096"`` or an integer, as a number of bytes.

    KiB, MiB, GiB, TiB are powers of 1,024; kB, MB, GB, TB powers of 1,000; case does not matter.

    Raises:
        KdalabError: not a number with one of these units, negative, or part of a byte. A fraction
            of a larger unit rounds to the nearest byte.
    """
    return _parse(text, _BYTE_UNITS, "bytes", "4096, 512MiB, 256GiB or 1.5TB")


def parse_tokens(text: str | int) -> int:
    """``"4096"``, ``"4k"`` or ``"1M"`` (binary: 4,096 and 1,048,576), as a number of tokens.

    Raises:
        KdalabError: not a number with one of these units, negative, or part of a token.
    """
    return _parse(text, _TOKEN_UNITS, "tokens", "4096, 4k (4,096) or 1M (1,048,576)")


def format_bytes(count: int | float) -> str:
    """Bytes in the largest binary unit that leaves at least 1, with two decimals.

    Below 1 KiB the exact number of bytes: ``"768 B"``, ``"414.00 MiB"``, ``"1,536.00 TiB"``.
    """
    sign, size = ("-" if count < 0 else ""), abs(count)
    for unit, step in _STEPS:
        if size >= step:
            return f"{sign}{size / step:,.2f} {unit}"
    return f"{sign}{size:,.0f} B"


def format_exact_bytes(count: int) -> str:
    """Bytes with thousands separators: ``"434,110,464 B"``."""
    return f"{count:,} B"


def format_apart(first: int, second: int) -> tuple[str, str]:
    """Two sizes that are compared: as ``format_bytes``, or to the byte where that reads alike."""
    a, b = format_bytes(first), format_bytes(second)
    return (a, b) if a != b else (format_exact_bytes(first), format_exact_bytes(second))


def format_tokens(count: int | float) -> str:
    """Tokens with thousands separators: ``"16,253 tokens"``, ``"1 token"``."""
    return f"{count:,.0f} token{'' if count == 1 else 's'}"


def format_seconds(seconds: float) -> str:
    """Microseconds, milliseconds or seconds, whichever reads best, with two decimals."""
    size = abs(seconds)
    if size >= 1 or size == 0:
        return f"{seconds:,.2f} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.2f} µs"


def _parse(text: str | int, units: dict[str, int], what: str, examples: str) -> int:
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise KdalabError(f"{text} {what} is negative; use for example {examples}")
        return text
    match = _QUANTITY.fullmatch(str(text)) if len(str(text)) <= 32 else None
    unit = match.group(2).lower() if match else None
    if match is None or unit not in units:
        shown = str(text) if len(str(text)) <= 40 else str(text)[:37] + "..."
        raise KdalabError(f"{shown!r} is not a number of {what}; use for example {examples}")
    whole, _, fraction = match.group(1).replace(",", "").replace("_", "").partition(".")
    # Integers all the way: a float would round 0.1 TiB to the wrong byte.
    parts = 10 ** len(fraction)
    scaled, rest = divmod(int(whole + fraction) * units[unit] + parts // 2, parts)
    if units[unit] == 1 and rest != parts // 2:
        raise KdalabError(f"{str(text)!r} is not a whole number of {what}")
    return scaled
