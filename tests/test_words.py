"""The catalogue of texts: complete in three languages, and strict about what is asked of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdalab.errors import KdalabError
from kdalab.words import LANGUAGES, Words, best_language

GOOD = '[a]\nen = "{n:,} tokens"\nzh = "{n:,} 个 token"\nko = "토큰 {n:,}개"\n'


def made(folder: Path, text: str) -> Words:
    (folder / "page.toml").write_text(text, "utf-8")
    return Words(folder)


def test_a_text_comes_filled_in_and_in_english_where_the_language_is_unknown(tmp_path):
    words = made(tmp_path, GOOD)
    assert words("zh", "page.a", n=1234) == "1,234 个 token"
    assert words("fr", "page.a", n=5) == "5 tokens"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[a]\nen = "x"\nzh = "y"\n', "languages"),
        ('[a]\nen = "{n}"\nzh = "{m}"\nko = "{n}"\n', "different values"),
        ("[a\n", "page.toml"),
        ('[a]\nen = "x"\nzh = "y"\nko = "z"\n[a.b]\nen = "x"\n', "page.a"),
    ],
)
def test_an_incomplete_catalogue_is_refused(tmp_path, text, what):
    with pytest.raises(KdalabError, match=what):
        made(tmp_path, text)


def test_an_unknown_key_and_a_missing_value_are_refused(tmp_path):
    words = made(tmp_path, GOOD)
    with pytest.raises(KdalabError, match="nowhere"):
        words("en", "page.nowhere")
    with pytest.raises(KdalabError, match=r"page\.a"):
        words("en", "page.a", m=1)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("ko-KR,ko;q=0.9,en;q=0.8", "ko"),
        ("fr, zh-TW;q=0.5, en;q=0.4", "zh"),
        ("de", "en"),
        ("", "en"),
        (None, "en"),
        ("en;q=0.2,ko;q=0.9", "ko"),
        ("en;q=x,ko", "ko"),
    ],
)
def test_the_browser_s_language_is_found(header, code):
    assert best_language(header) == code
    assert code in LANGUAGES
