"""The phrase book: what the engine says can be said in three languages."""

from __future__ import annotations

import re

import pytest

from kdalab.errors import KdalabError
from kdalab.lessons import RESTORE
from kdalab.phrases import Phrases, phrases, say, say_html


def test_parts_are_carried_over_and_looked_up_in_turn():
    text = "B falls back from token 320 to the restore point 192 (no checkpoint on the path)."
    assert say("zh", text) == "B 从 token 320 退回到恢复点 192（路径上没有 checkpoint）。"
    assert say("en", text) == text


def test_sentences_and_lists_are_said_part_by_part():
    text = "A computes its new tokens 0 to 64. Its state at 64 is frozen into checkpoint 1."
    assert say("ko", text) == (
        "A는 새 토큰 0부터 64까지 계산한다. 64에서의 상태를 checkpoint 1에 고정한다."
    )
    assert say("zh", "Evicted the state of node 3, node 4 (no reader left).") == (
        "逐出节点 3 的状态、节点 4（没有读者了）。"
    )


def test_unknown_text_stays_as_it_is():
    assert say("zh", "A quick brown fox.") == "A quick brown fox."


def test_markup_keeps_its_tags_and_says_its_text():
    svg = '<svg aria-label="root"><text x="1">Radix tree</text><title>free\nroot</title></svg>'
    assert say_html("ko", svg) == (
        '<svg aria-label="루트"><text x="1">기수 트리</text><title>빈 것\n루트</title></svg>'
    )
    assert say_html("ko", "<p>a &lt;b&gt; root</p>") == "<p>a &lt;b&gt; root</p>"


@pytest.mark.parametrize("name", sorted(RESTORE))
def test_every_event_and_reason_of_the_lessons_is_translated(recorded, name):
    run = recorded(name)
    said = [e.sentence() for e in run.events] + [s.sentence for s in run.steps]
    for event in run.events:
        why = getattr(event, "why", ())
        said += why if isinstance(why, tuple) else ()
    for lang, script in (("zh", "[一-鿿]"), ("ko", "[가-힣]")):
        for text in set(said):
            if "Dispatched" in text or text.startswith("Phase "):
                continue
            assert re.search(script, say(lang, text)), text
            assert not re.search(r"\b(the|of|its|is)\b", say(lang, text)), text


def test_a_phrase_without_a_language_is_refused(tmp_path):
    (tmp_path / "x.toml").write_text('[[phrase]]\nen = "a"\nzh = "b"\n', "utf-8")
    with pytest.raises(KdalabError, match="needs en, zh, ko"):
        Phrases(tmp_path)
    (tmp_path / "x.toml").write_text('[[phrase]]\nen = "{a}"\nzh = "{b}"\nko = "{a}"\n', "utf-8")
    with pytest.raises(KdalabError, match="different parts"):
        Phrases(tmp_path)


def test_no_phrase_hides_another():
    """Every English template, filled with letters, finds itself and no other phrase."""
    book = phrases()
    for _, entry in book.rules:
        names = sorted(set(re.findall(r"{(\w+)}", entry["en"])))
        values = dict(zip(names, ("Qa", "Qb", "Qc", "Qd", "Qe", "Qf"), strict=False))
        expected = entry["zh"].format(**values)
        assert book.find("zh", entry["en"].format(**values)) == expected, entry["en"]


def test_a_list_of_requests_is_joined_in_the_readers_language():
    said = say("zh", "A, B and C generate 3 tokens each, in one batch.")
    assert said == "A、B、C 在同一批中各生成 3 个 token。"
    assert say("ko", "B and C generate 3 tokens each, in one batch.").startswith("B, C")
