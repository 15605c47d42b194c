"""The pages use one word a term in Chinese and in Korean: the one that the glossary chose."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTEAD = tomllib.loads((ROOT / "docs/glossary.toml").read_text("utf-8"))["instead"]
CATALOGUES = sorted((ROOT / "demos/text").glob("*.toml")) + sorted(
    (ROOT / "kdalab/text").glob("*.toml")
)
RUN_AGAIN = {"重放", "재생"}
"""Words for a trace that is run again: what has traces may use them."""
TRACES = {
    "demos/text/lab.toml", "demos/text/density.toml", "kdalab/text/lab.toml",
    "kdalab/text/asked.toml", "kdalab/text/figures.toml",
}  # fmt: skip

_SKIPPED = re.compile(r"\{[^}]*\}|`[^`]*`|kdalab [a-z ]+|（[a-z ]+）|\([a-z ]+\)")


def said(file: Path, lang: str) -> list[str]:
    """Every text of a catalogue, without its placeholders, its code, and the English in brackets
    that explains the word before it."""
    data = tomllib.loads(file.read_text("utf-8"))
    entries = [e for v in data.values() for e in (v if isinstance(v, list) else [v])]
    own = data.get("play", {}) if file.name == "common.toml" else {}  # the button that starts
    texts = [str(e[lang]) for e in entries if isinstance(e, dict) and lang in e and e is not own]
    return [
        re.sub(r"\{[^}]*\}|`[^`]*`|kdalab [a-z ]+|（[a-z ]+）|\([a-z ]+\)", "_", text)
        for text in texts
    ]


@pytest.mark.parametrize("lang", ["zh", "ko"])
@pytest.mark.parametrize("file", CATALOGUES, ids=lambda p: f"{p.parent.parent.name}-{p.stem}")
def test_a_page_says_the_word_that_the_glossary_chose(file: Path, lang: str) -> None:
    traces = file.relative_to(ROOT).as_posix() in TRACES
    wrong = []
    for word, others in INSTEAD[lang].items():
        for other in others:
            if other in RUN_AGAIN and traces:
                continue
            found = re.compile(rf"(?<![a-z_-]){re.escape(other)}(?![a-z_=])", re.IGNORECASE)
            wrong += [(word, other, text) for text in said(file, lang) if found.search(text)]
    assert wrong == []


@pytest.mark.parametrize("lang", ["zh", "ko"])
def test_the_chosen_words_are_the_glossary_s(lang: str) -> None:
    terms = tomllib.loads((ROOT / "docs/glossary.toml").read_text("utf-8"))["term"]
    words = [re.split(r"[(（]", term[lang])[0] for term in terms]
    assert set(INSTEAD[lang]) <= set(words)
