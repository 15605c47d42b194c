"""Korean particles that depend on the sound before them.

A template writes both forms, ``{who}이(가)``; which one stands there is known once it is filled in.
"""

from __future__ import annotations

import re

_FORMS = {
    "이(가)": ("이", "가"),
    "은(는)": ("은", "는"),
    "을(를)": ("을", "를"),
    "와(과)": ("과", "와"),
    "(으)로": ("으로", "로"),
}
_MARK = re.compile("|".join(map(re.escape, _FORMS)))
_CLOSING = " \"'`)]}*"
# Digits and letters by the last sound of their Korean names: 0 is read 영, 십, 백, 천 or 만.
_FINAL = frozenset("013678LMNRlmnr")
_FINAL_L = frozenset("178LRlr")


def with_particles(text: str) -> str:
    """``text`` with one form of each particle, chosen by the last syllable before it.

    >>> with_particles("A은(는) 3을(를), 64은(는) 8(으)로, 노드이(가)")
    'A는 3을, 64는 8로, 노드가'
    """
    if "(" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        closed, vowel = _FORMS[match.group()]
        final, rieul = _last_sound(text[: match.start()])
        if match.group() == "(으)로" and rieul:
            return vowel
        return closed if final else vowel

    return _MARK.sub(one, text)


def _last_sound(before: str) -> tuple[bool, bool]:
    """Whether a word ends in a consonant, and whether that is ㄹ."""
    word = before.rstrip(_CLOSING)
    last = word[-1:]
    if "가" <= last <= "힣":
        final = (ord(last) - ord("가")) % 28
        return final > 0, final == 8
    if last.islower() and last.isascii():  # an English word, roughly as it is read
        return last in "lmn" or word.endswith("ng"), last == "l"
    return last in _FINAL, last in _FINAL_L
