"""Text in English, Chinese and Korean: one catalogue, every key in all three languages.

A catalogue is a folder of TOML files. A key stands under its file's name, a line a language::

    [chunks.title]
    en = "Chunks: the order matters, the grouping does not"
    zh = "..."
    ko = "..."

Placeholders are those of ``str.format``: ``{tokens:,}``. Terms of the field stay in English where
the field keeps them.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kdalab.errors import KdalabError
from kdalab.particles import with_particles

LANGUAGES: dict[str, str] = {"en": "English", "zh": "中文", "ko": "한국어"}
"""Code of each language -> its name in itself. The first is what everything falls back to."""


class Words:
    """The catalogue in one folder: ``words("ko", "chunks.title")``.

    Raises:
        KdalabError: a file that is no TOML, or an entry without all languages, or whose languages
            name different placeholders; the message says which.
    """

    def __init__(self, folder: Path) -> None:
        self.entries: dict[str, dict[str, str]] = {}
        for file in sorted(folder.glob("*.toml")):
            try:
                tree = tomllib.loads(file.read_text("utf-8"))
            except tomllib.TOMLDecodeError as error:
                raise KdalabError(f"{file.name}: {error}") from error
            self._add(file.stem, tree)

    def _add(self, prefix: str, tree: Mapping[str, Any]) -> None:
        if all(isinstance(value, str) for value in tree.values()):
            self._check(prefix, tree)
            self.entries[prefix] = dict(tree)
            return
        for key, below in tree.items():
            if not isinstance(below, dict):
                raise KdalabError(f"{prefix}.{key}: text beside other keys; give it its own table")
            self._add(f"{prefix}.{key}", below)

    @staticmethod
    def _check(key: str, entry: Mapping[str, str]) -> None:
        if set(entry) != set(LANGUAGES):
            raise KdalabError(f"{key}: languages {sorted(entry)}; it needs {sorted(LANGUAGES)}")
        names = {code: placeholders(text) for code, text in entry.items()}
        if any(found != names["en"] for found in names.values()):
            raise KdalabError(f"{key}: the languages name different values: {names}")

    def __call__(self, lang: str, key: str, **values: object) -> str:
        """The text of ``key`` in ``lang`` (English where the language is unknown), filled in.

        Raises:
            KdalabError: no such key, or a placeholder without its value.
        """
        entry = self.entries.get(key)
        if entry is None:
            raise KdalabError(f"no text named {key!r}")
        text = entry.get(lang, entry["en"])
        try:
            filled = text.format(**values) if values or "{" in text else text
        except (KeyError, IndexError, ValueError) as error:
            raise KdalabError(f"{key} in {lang}: {error!r} when filled with {values}") from error
        return with_particles(filled) if lang == "ko" else filled

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def under(self, prefix: str) -> list[str]:
        """Keys that begin with ``prefix.``, in the order of the files."""
        return [key for key in self.entries if key.startswith(f"{prefix}.")]


def placeholders(text: str) -> frozenset[str]:
    """Names in braces: ``{tokens:,} of {n}`` has ``tokens`` and ``n``."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def best_language(wanted: Iterable[str] | str | None) -> str:
    """The first language of an Accept-Language header (or of a list of codes) that is there.

    >>> best_language("ko-KR,ko;q=0.9,en;q=0.8")
    'ko'
    """
    if wanted is None:
        return "en"
    codes = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    ranked = sorted(enumerate(codes), key=lambda pair: (-_weight(pair[1]), pair[0]))
    for _, code in ranked:
        short = code.split(";")[0].strip().lower().split("-")[0]
        if short in LANGUAGES:
            return short
    return "en"


def _weight(code: str) -> float:
    _, _, quality = code.partition("q=")
    try:
        return float(quality) if quality else 1.0
    except ValueError:
        return 0.0


@lru_cache(maxsize=8)
def catalogue(folder: Path) -> Words:
    """The catalogue of a folder, read once a process."""
    return Words(folder)
