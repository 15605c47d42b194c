"""The options with which every command of ``kdalab lab`` reads its trace, written once.

A command takes ``source: Source`` and is registered through ``with_source``; on its command line
there are then the trace, as its argument, and all options of ``_options``, after its own.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Any

from kdalab.cli import lab_options as o

if TYPE_CHECKING:
    from kdalab.lab import Requests


@dataclass(frozen=True, slots=True)
class Source:
    """Where requests come from, and how they are read."""

    trace: str | None = None
    made_up: str | None = None
    seed: int = 0
    format: str | None = None
    limit: int | None = None
    max_bad_lines: int = 100
    block_tokens: int | None = None
    share: str = "preamble"
    gap: float = 60.0
    sort: bool = False

    def read(self) -> Requests:
        """The requests; errors as in ``read_trace``."""
        return o.read_trace(
            self.trace,
            self.made_up,
            self.seed,
            format=self.format,
            limit=self.limit,
            bad=self.max_bad_lines,
            block=self.block_tokens,
            share=self.share,
            gap=self.gap,
            sort=self.sort,
        )

    @property
    def words(self) -> str:
        """As it is typed after a command: the trace, and what is not as it is by default."""
        said = [] if self.trace is None else [self.trace]
        if said and said[0].startswith("-") and said != ["-"]:  # or it would be read as an option
            said = [f"./{self.trace}"]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                said.append(f"--{field.name.replace('_', '-')}")
                said += [] if value is True else [str(value)]
        return shlex.join(said)


def _trace(trace: o.TraceArg = None) -> None: ...


def _options(
    made_up: o.MadeUpOpt = None,
    seed: o.SeedOpt = 0,
    format: o.FormatOpt = None,
    limit: o.LimitOpt = None,
    max_bad_lines: o.BadOpt = 100,
    block_tokens: o.BlockOpt = None,
    share: o.ShareOpt = "preamble",
    gap: o.GapOpt = 60.0,
    sort: o.SortOpt = False,
) -> None: ...


def with_source(
    command: Callable[..., None], last: Sequence[str] = ("as_json",)
) -> Callable[..., None]:
    """``command(source, ...)`` as a command whose options are those of ``Source`` and its own.

    A command with ``traces`` of its own gets no argument for one.

    Args:
        last: the command's parameters that come after those of ``Source`` in its help.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    del own["source"]
    after = [own.pop(name) for name in last if name in own]
    trace = [] if "traces" in own else _parameters(_trace)
    parameters = [*trace, *own.values(), *_parameters(_options), *after]
    names = {f.name for f in fields(Source)}

    @wraps(command)
    def run(**given: Any) -> None:
        source = Source(**{n: v for n, v in given.items() if n in names})
        command(source=source, **{n: v for n, v in given.items() if n not in names})

    del run.__dict__["__wrapped__"]  # or its signature would be the command's
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameters(function: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())
