"""Look the reading list up in a local checkout: still there, moved, only mentioned, or gone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kdalab.errors import KdalabError
from kdalab.sources.reading import Symbol, System, load_sources

SUFFIXES = (".py", ".pyi", ".rs", ".cu", ".cuh", ".cpp", ".cc", ".h")
MAX_FILE_BYTES = 4 << 20
SHOWN = 3

Status = Literal["there", "moved", "mentioned", "gone"]


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one symbol. ``places`` are ``file:line``, the first few of ``total``."""

    symbol: Symbol
    status: Status
    places: tuple[str, ...]
    total: int


def check_checkout(path: Path) -> tuple[System, list[Found]]:
    """Look up every symbol of the system whose checkout, or installed package, ``path`` is.

    Files are read as text and never run; links are not followed.

    Raises:
        KdalabError: ``path`` is no folder, or none of the systems is in it.
    """
    if not path.is_dir():
        raise KdalabError(f"{path} is not a folder; give the root of a checkout")
    system, base = _identify(path.resolve())
    symbols = [s for s in load_sources()[1] if s.system == system.key]
    defined: dict[str, list[str]] = {s.name: [] for s in symbols}
    mentioned: dict[str, list[str]] = {s.name: [] for s in symbols}
    patterns = {s.name: (_definition(s), _word(s)) for s in symbols}
    for file in _files(base / system.package):
        where = file.relative_to(base).as_posix()
        try:
            text = file.read_text("utf-8", errors="replace")
        except OSError as error:
            raise KdalabError(f"cannot read {file}: {error.strerror}") from error
        for name, (definition, word) in patterns.items():
            word_match = word.search(text)
            if word_match is None:
                continue
            match = definition.search(text)
            if match is not None:
                defined[name].append(_place(where, text, match.start()))
            else:
                mentioned[name].append(_place(where, text, word_match.start()))
    return system, [_verdict(s, defined[s.name], mentioned[s.name]) for s in symbols]


def _verdict(symbol: Symbol, defined: Sequence[str], mentioned: Sequence[str]) -> Found:
    places = sorted(defined, key=lambda p: (p.rpartition(":")[0] != symbol.file, p))
    if not places:
        shown = tuple(sorted(mentioned)[:SHOWN])
        return Found(symbol, "mentioned" if shown else "gone", shown, len(mentioned))
    there = places[0].rpartition(":")[0] == symbol.file
    return Found(symbol, "there" if there else "moved", tuple(places[:SHOWN]), len(places))


def _identify(path: Path) -> tuple[System, Path]:
    """The system, and the folder that holds its package."""
    systems = load_sources()[0]
    for system in systems.values():
        for base in (path, path / "python", path / "src", path.parent):
            if (base / system.marker).is_dir() and (
                base != path.parent or path.name == system.package
            ):
                return system, base
    looked = ", ".join(f"{s.marker} ({s.key})" for s in systems.values())
    raise KdalabError(
        f"{path} is no checkout that is known here; looked for {looked} in it and in its python/ "
        "and src/ folders"
    )


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, followlinks=False):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if not name.endswith(SUFFIXES) or file.is_symlink():
                continue
            if file.stat().st_size <= MAX_FILE_BYTES:
                yield file


def _definition(symbol: Symbol) -> re.Pattern[str]:
    name = re.escape(symbol.name)
    forms = {
        "class": rf"^[ \t]*(?:class|(?:pub(?:\([a-z]+\))? )?struct)[ \t]+{name}\b",
        "def": rf"^[ \t]*(?:async[ \t]+)?(?:def|(?:pub(?:\([a-z]+\))? )?fn)[ \t]+{name}\b",
        "name": rf"(?<![\w.]){name}(?!\w)[ \t]*(?::|=(?!=))|\bself\.{name}[ \t]*(?::|=(?!=))",
    }
    if symbol.kind == "flag":
        field = re.escape(symbol.name.replace("-", "_"))
        return re.compile(rf"[\"']--{name}[\"']|^[ \t]+{field}[ \t]*:", re.MULTILINE)
    return re.compile(forms[symbol.kind], re.MULTILINE)


def _word(symbol: Symbol) -> re.Pattern[str]:
    names = {symbol.name, symbol.name.replace("-", "_")} if symbol.kind == "flag" else {symbol.name}
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(n) for n in sorted(names))})(?!\w)")


def _place(where: str, text: str, at: int) -> str:
    start = len(text[at:]) - len(text[at:].lstrip())
    return f"{where}:{text.count(chr(10), 0, at + start) + 1}"
