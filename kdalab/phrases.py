"""A phrase book: what the engine, the cache and the pictures say in English, in other languages.

Events, reasons and labels are written once, in English, where they arise. A phrase gives such a
text with its moving parts in braces, and its two translations::

    [[phrase]]
    en = "{who} computes its new tokens {a} to {b}."
    zh = "..."
    ko = "..."

What a brace caught is looked up in turn (a reason inside a sentence). A text that no phrase fits
stays English, which is better than nothing and is what the tests look for.
"""

from __future__ import annotations

import html
import re
import tomllib
from functools import lru_cache
from pathlib import Path

from kdalab.errors import KdalabError
from kdalab.particles import with_particles
from kdalab.words import LANGUAGES, placeholders

_FOLDER = Path(__file__).parent / "text"
_TEXT = re.compile(r">([^<>]*[A-Za-z]{2}[^<>]*)<")
_NAME = re.compile(r'(aria-label|title|aria-valuetext)="([^"]*[A-Za-z]{2}[^"]*)"')
_PART = r"(?:(?!\. [A-Z]).)+?"  # a part does not reach into the next sentence
_GAP = re.compile(r"(?<=[\u4e00-\u9fff，。：；、）]) (?=[\u4e00-\u9fff（])|(?<=[，。：；、）]) ")
_NAMES = re.compile(r"[A-Z]\w?(?:, [A-Z]\w?)*,? and [A-Z]\w?")  # requests, as events list them
_STOP = re.compile(r"(?<=[.!?]) (?=[A-Z0-9])")


class Phrases:
    """Every phrase of a folder of TOML files.

    Raises:
        KdalabError: a phrase without all languages, or whose languages name different parts.
    """

    def __init__(self, folder: Path) -> None:
        self.rules: list[tuple[re.Pattern[str], dict[str, str]]] = []  # the most literal first
        self.plain: dict[str, dict[str, str]] = {}
        for file in sorted(folder.glob("*.toml")):
            for entry in tomllib.loads(file.read_text("utf-8")).get("phrase", []):
                self._add(file.name, entry)
        self.rules.sort(key=lambda rule: -len(re.sub(r"{.*?}", "", rule[1]["en"])))

    def _add(self, file: str, entry: dict[str, str]) -> None:
        text = entry.get("en", "")
        if set(entry) != set(LANGUAGES):
            raise KdalabError(f"{file}: {text!r} needs {', '.join(LANGUAGES)}")
        parts = placeholders(text)
        if any(placeholders(entry[code]) != parts for code in entry):
            raise KdalabError(f"{file}: {text!r}: the languages name different parts")
        if not parts:
            self.plain[text] = entry
            return
        pattern = re.escape(text).replace(r"\{", "{").replace(r"\}", "}")
        for name in parts:
            head, tail = pattern.split("{" + name + "}", 1)
            tail = tail.replace("{" + name + "}", f"(?P={name})")
            pattern = f"{head}(?P<{name}>{_PART}){tail}"
        self.rules.append((re.compile(pattern, re.DOTALL), entry))

    def find(self, lang: str, text: str) -> str | None:
        """The translation, or None for a text that no phrase fits."""
        if text in self.plain:
            return self.plain[text][lang]
        for pattern, entry in self.rules:
            match = pattern.fullmatch(text)
            if match:
                values = {k: self.say(lang, v) for k, v in match.groupdict().items()}
                said = entry[lang].format(**values)
                return with_particles(said) if lang == "ko" else _closed(lang, said)
        return None

    def say(self, lang: str, text: str) -> str:
        """The translation of a text, sentence by sentence where the whole is unknown."""
        if lang == "en" or not text:
            return text
        if text in self.plain:
            return self.plain[text][lang]
        comma = "、" if lang == "zh" else ", "
        if _NAMES.fullmatch(text):
            return comma.join(re.split(r",? and |, ", text))
        for mark in (", ", " and "):  # a list, if every part of it is known
            parts = [self.find(lang, part) for part in text.split(mark)]
            if len(parts) > 1 and None not in parts:
                return comma.join(str(p) for p in parts)
        found = self.find(lang, text)
        if found is not None:
            return found
        sentences = _STOP.split(text)
        if len(sentences) > 1:
            return _closed(lang, " ".join(self.say(lang, s) for s in sentences))
        return text


def _closed(lang: str, text: str) -> str:
    """Chinese without the spaces that were between English words."""
    return _GAP.sub("", text) if lang == "zh" else text


@lru_cache(maxsize=1)
def phrases() -> Phrases:
    """The phrase book of this installation, read once a process."""
    return Phrases(_FOLDER)


@lru_cache(maxsize=8192)
def say(lang: str, text: str) -> str:
    """``text``, which is English, in ``lang``; as it is where the phrase book has nothing."""
    return phrases().say(lang, text)


def say_html(lang: str, markup: str) -> str:
    """HTML or SVG with every text in it said in ``lang``; tags and attributes stay."""
    if lang == "en":
        return markup

    def text(match: re.Match[str]) -> str:
        return f">{_lines(lang, match.group(1))}<"

    def name(match: re.Match[str]) -> str:
        return f'{match.group(1)}="{_lines(lang, match.group(2))}"'

    return _NAME.sub(name, _TEXT.sub(text, markup))


def _lines(lang: str, escaped: str) -> str:
    lines = []
    for line in html.unescape(escaped).split("\n"):
        bare = line.strip()
        lines.append(line.replace(bare, say(lang, bare)) if bare else line)
    return html.escape("\n".join(lines), quote=True)
