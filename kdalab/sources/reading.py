"""The reading list: names of SGLang, vLLM and FLA in the order to open them, from a data file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast, get_args

from kdalab.errors import KdalabError

Kind = Literal["class", "def", "flag", "name"]

_FILE = Path(__file__).with_name("sources.toml")


@dataclass(frozen=True, slots=True)
class System:
    """A project to read. ``marker`` is a folder that tells its checkout from others.

    ``seen`` is the version in which the files were looked up.
    """

    key: str
    title: str
    marker: str
    home: str
    seen: str

    @property
    def package(self) -> str:
        """The folder of its Python package, ``vllm`` for vLLM."""
        return self.marker.split("/")[0]


@dataclass(frozen=True, slots=True)
class Symbol:
    """One name to read: where it was seen last, why it matters, and our file for the same."""

    system: str
    name: str
    kind: Kind
    file: str
    why: str
    ours: str


@lru_cache(maxsize=1)
def load_sources() -> tuple[dict[str, System], tuple[Symbol, ...]]:
    """Systems by key, and every symbol in reading order."""
    data = tomllib.loads(_FILE.read_text("utf-8"))
    systems = {key: System(key, **fields) for key, fields in data["systems"].items()}
    symbols = []
    for entry in data["symbols"]:
        if entry["system"] not in systems or entry["kind"] not in get_args(Kind):
            raise KdalabError(f"{_FILE.name}: {entry['name']!r} has an unknown system or kind")
        symbols.append(Symbol(**{**entry, "kind": cast(Kind, entry["kind"])}))
    return systems, tuple(symbols)
