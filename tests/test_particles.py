"""Korean particles: one form each, by the sound before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdalab.particles import with_particles
from kdalab.phrases import phrases
from kdalab.words import catalogue


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A이(가) B은(는)", "A가 B는"),
        ("노드을(를) 블록을(를)", "노드를 블록을"),
        ("64(으)로 100(으)로 8(으)로 3(으)로", "64로 100으로 8로 3으로"),
        ("59.9%을(를) 123.00 KiB이(가)", "59.9%를 123.00 KiB가"),
        ("서울(으)로 checkpoint와(과) #7은(는)", "서울로 checkpoint와 #7은"),
        ("블록 3(둘째)은(는)", "블록 3(둘째)는"),
        ("이 괄호(들)는 그대로", "이 괄호(들)는 그대로"),
    ],
)
def test_a_particle_follows_the_last_sound(text, said):
    assert with_particles(text) == said


def test_no_filled_text_shows_two_forms():
    marks = ("이(가)", "은(는)", "을(를)", "와(과)", "(으)로")
    words = catalogue(Path(__file__).parents[1] / "demos" / "text")
    doubled = [e["ko"] for e in words.entries.values() if any(m in e["ko"] for m in marks)]
    doubled += [e["ko"] for _, e in phrases().rules if any(m in e["ko"] for m in marks)]
    assert doubled
    for text in doubled:
        assert not any(mark in with_particles(text) for mark in marks), text
