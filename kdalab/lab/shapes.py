"""The statistics of a made-up trace: how they are drawn, which there are, and two presets."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields, replace
from typing import Any

from kdalab.errors import KdalabError

#: The largest number that is drawn: tokens or seconds.
MOST = 1e9
#: Beyond this a draw is its cuts and nothing else.
_WIDEST = {"lognormal": 10.0, "normal": MOST}
#: From least to most of each statistic: what a replay's memory and clock can still hold.
_RANGES: dict[str, tuple[float, float]] = {
    "block_tokens": (1, 1_000_000), "sessions_a_second": (1e-6, 1e6), "tick": (0, 1e6),
    "common": (0, 10_000_000), "systems": (1, 100_000), "zipf": (0, 20), "branch": (0, 1),
    "most": (1, 10_000_000),
}  # fmt: skip
_WHOLE = ("block_tokens", "common", "systems", "most")


def _check(name: str, value: Any, least: float, most: float) -> None:
    whole = name in _WHOLE
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise KdalabError(f"{name} = {value!r}; use a {kind} from {least:,g} to {most:,.0f}")


@dataclass(frozen=True, slots=True)
class Draw:
    """How a number is drawn: ``lognormal`` of ``middle`` (the median) and ``width`` (sigma of the
    logarithm), or ``normal`` of mean and standard deviation; cut at 1 and ``most``."""

    middle: float
    width: float
    kind: str = "lognormal"
    most: float = 1e9

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _WIDEST:
            raise KdalabError(f"a draw of kind {self.kind!r}; allowed: {', '.join(_WIDEST)}")
        _check("a draw's middle", self.middle, 1e-9, MOST)
        _check(f"the width of a {self.kind} draw", self.width, 0, _WIDEST[self.kind])
        _check("the most of a draw", self.most, 1, MOST)

    def __call__(self, chance: random.Random) -> float:
        if self.kind == "normal":
            value = chance.gauss(self.middle, self.width)
        else:
            value = self.middle * math.exp(chance.gauss(0.0, self.width))
        return min(self.most, max(1.0, value))


@dataclass(frozen=True, slots=True)
class Shape:
    """The statistics of a made-up trace. Tokens, seconds, shares 0 to 1.

    Args:
        block_tokens: of a block.
        sessions_a_second: conversations that begin.
        tick: arrivals are rounded down to multiples of so many seconds (0: not at all).
        common: tokens with which every prompt begins.
        systems: how many system prompts there are; ``system`` their lengths after ``common``,
            ``zipf`` how unequally they are used (0: equally).
        first: length of a conversation's first message, which may itself be a long history.
        added: what each later turn adds beside the output before it.
        output: tokens decoded.
        think: seconds from one arrival of a conversation to its next.
        go_on: (a, b) of the Beta distribution from which each conversation draws the chance that
            it goes on after a turn.
        branch: chance that a turn goes back to an earlier one.
        most: a conversation ends before its prompt exceeds so many tokens.
    """

    block_tokens: int = 512
    sessions_a_second: float = 1.0
    tick: float = 0.0
    common: int = 0
    systems: int = 1
    system: Draw = Draw(600, 0.5)
    zipf: float = 1.0
    first: Draw = Draw(2_000, 1.0)
    added: Draw = Draw(400, 1.0)
    output: Draw = Draw(300, 0.7)
    think: Draw = Draw(60, 1.0)
    go_on: tuple[float, float] = (2.0, 2.0)
    branch: float = 0.05
    most: int = 1_000_000

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            _check(name, getattr(self, name), least, most)
        for value in self.go_on:
            _check("go_on", value, 1e-3, 1e6)
        if self.common >= self.most:
            raise KdalabError(
                f"common = {self.common:,} tokens leave nothing of the most that a prompt may have "
                f"({self.most:,}); use fewer, or change most"
            )


#: Fitted by statistics to Mooncake's conversation trace (one hour of Kimi's chat, FAST'25).
CHAT = Shape(
    block_tokens=512,
    sessions_a_second=2.5,
    tick=3.0,
    common=512,
    systems=400,
    system=Draw(220, 1.9, most=60_000),
    zipf=0.6,
    first=Draw(4_900, 1.15, most=110_000),
    added=Draw(340, 1.6, most=90_000),
    output=Draw(343, 200, "normal", most=2_000),
    think=Draw(126, 1.05),
    go_on=(0.9, 2.7),
    branch=0.04,
    most=126_000,
)

#: Fitted by statistics to eight sessions of coding agents that start a minute apart.
AGENT = Shape(
    block_tokens=64,
    sessions_a_second=1 / 60,
    systems=40,
    system=Draw(14_500, 1_500, "normal"),
    zipf=0.3,
    first=Draw(5_500, 1.2, most=100_000),
    added=Draw(270, 2.0, most=50_000),
    output=Draw(213, 1.05, most=4_800),
    think=Draw(12, 1.35),
    go_on=(34.0, 2.3),
    branch=0.05,
    most=115_000,
)

PRESETS: dict[str, Shape] = {"chat-like": CHAT, "agent-like": AGENT}


def shape(name: str) -> Shape:
    """A preset.

    Raises:
        KdalabError: no such preset.
    """
    if name not in PRESETS:
        raise KdalabError(f"unknown preset {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]


def changed(name: str, changes: dict[str, Any]) -> Shape:
    """A preset with other statistics, as they come from JSON: a draw is ``[middle, width]``, with
    ``kind`` and ``most`` behind them if need be.

    Raises:
        KdalabError: no such preset or field, or a value that its field does not take.
    """
    base = shape(name)
    values: dict[str, Any] = {}
    for key, value in changes.items():
        old = getattr(base, key, None) if key in _FIELDS else None
        if old is None:
            raise KdalabError(f"{key!r} is no statistic; allowed: {', '.join(_FIELDS)}")
        try:
            values[key] = _like(old, value)
        except KdalabError as error:
            raise KdalabError(f"{key} = {value!r}: {error}") from None
    return replace(base, **values)


_FIELDS = tuple(f.name for f in fields(Shape))


def _like(old: Any, value: Any) -> Any:
    """A value from JSON as its field has it; numbers are judged by ``Draw`` and ``Shape``."""
    if isinstance(old, Draw):
        if not isinstance(value, list) or not 2 <= len(value) <= 4:
            raise KdalabError('use [MIDDLE, WIDTH], or [MIDDLE, WIDTH, "normal", MOST]')
        return Draw(*value)
    if isinstance(old, tuple):
        if not isinstance(value, list) or len(value) != 2:
            raise KdalabError("use [A, B], two numbers above 0")
        return tuple(value)
    return value
