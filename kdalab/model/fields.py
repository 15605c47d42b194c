"""Typed reading of a config: what is missing, of another type or absurd is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kdalab.errors import KdalabError

MOST = 1 << 28
"""No width, head or expert count of a model comes near this."""

_REQUIRED: Any = object()


class Fields:
    """Looks a field up under any of its names; a dotted name reaches into an inner object.

    A field that is null counts as absent.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def value(self, *names: str, default: Any = _REQUIRED) -> tuple[str, Any]:
        """(name under which it was found, value).

        Raises:
            KdalabError: absent, and there is no default.
        """
        for name in names:
            node: Any = self.raw
            for part in name.split("."):
                node = node.get(part) if isinstance(node, Mapping) else None
            if node is not None:
                return name, node
        if default is _REQUIRED:
            raise KdalabError(f"the config has no field {' or '.join(names)}")
        return names[0], default

    def states(self, name: str) -> bool:
        """True when the field is there, be it null."""
        node: Any = self.raw
        for part in name.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return False
            node = node[part]
        return True

    def integer(
        self, *names: str, least: int = 1, most: int = MOST, default: Any = _REQUIRED
    ) -> Any:
        """A whole number, or the default.

        Raises:
            KdalabError: absent, not a JSON integer, or outside ``least..most``.
        """
        name, value = self.value(*names, default=default)
        if value is default:
            return value
        if type(value) is not int or not least <= value <= most:
            raise KdalabError(
                f"{name} is {shown(value)}; it must be a whole number from {least:,} to {most:,}"
            )
        return value

    def number(
        self,
        *names: str,
        above: float = -math.inf,
        below: float = math.inf,
        default: Any = _REQUIRED,
    ) -> Any:
        """A finite number, as a float, or the default.

        Raises:
            KdalabError: absent, not a JSON number, not finite, or outside ``(above, below)``.
        """
        name, value = self.value(*names, default=default)
        if value is default:
            return value
        number = float("nan")
        if type(value) is float or (type(value) is int and abs(value) < 2**53):
            number = float(value)
        if not (math.isfinite(number) and above < number < below):
            bounds = [f"above {above:g}"] if above > -math.inf else []
            bounds += [f"below {below:g}"] if below < math.inf else []
            limits = f" {' and '.join(bounds)}" if bounds else ""
            raise KdalabError(f"{name} is {shown(value)}; it must be a finite number{limits}")
        return number

    def boolean(self, *names: str, default: Any = _REQUIRED) -> bool:
        """True or false; text and numbers are neither.

        Raises:
            KdalabError: absent, or not a JSON boolean.
        """
        name, value = self.value(*names, default=default)
        if type(value) is not bool:
            raise KdalabError(f"{name} is {shown(value)}; it must be true or false")
        return value

    def layers(self, name: str, n_layers: int) -> list[int]:
        """A list of layers counted from 1, as 0-based numbers in order.

        Raises:
            KdalabError: not a list of whole numbers.
        """
        _, value = self.value(name)
        if not isinstance(value, list) or any(type(i) is not int for i in value):
            raise KdalabError(
                f"{name} is {shown(value)}; it must be a list of layers counted from 1, within "
                f"1..{n_layers}"
            )
        return sorted(i - 1 for i in value)

    def words(self, name: str, n_layers: int, allowed: tuple[str, ...]) -> list[str] | None:
        """One word a layer, or None when the field is absent.

        Raises:
            KdalabError: not a list of ``n_layers`` of the allowed words.
        """
        _, value = self.value(name, default=None)
        if value is None:
            return None
        if not isinstance(value, list):
            raise KdalabError(f"{name} is {shown(value)}; it must be a list of words")
        if len(value) != n_layers:
            raise KdalabError(f"{name} names {len(value)} layers; num_hidden_layers is {n_layers}")
        for word in value:
            if not isinstance(word, str) or word not in allowed:
                raise KdalabError(f"{name} has {shown(word)}; known: {', '.join(allowed)}")
        return value


def shown(value: Any) -> str:
    """A value as text for a message, cut short."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of {int(abs(value).bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
