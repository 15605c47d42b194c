"""The joint boundary against arithmetic on the texts, and mixtures against the engine's faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdalab.cache.placement import Every
from kdalab.engine import Engine, Faults
from kdalab.errors import KdalabError
from kdalab.lessons import JOINT, MIXES, lesson_model, play_joint
from kdalab.lessons.scenario import LESSON_CONFIG


def common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


@pytest.mark.parametrize(("example", "spacing"), [("fan-out", 128), ("edit", 64), ("again", 128)])
def test_the_restore_point_is_the_last_checkpoint_of_the_common_text(example, spacing):
    first, last = JOINT[example]
    run = play_joint(example, spacing)
    shared = common(first, last)
    kept = list(range(spacing, len(first) + 1, spacing))
    assert run.token_match == min(shared, kept[-1]) // 16 * 16
    assert list(run.checkpoints) == [b for b in kept if b <= shared]
    assert run.restore == max(b for b in [0, *run.checkpoints] if b < len(last))
    assert run.exact == 0.0
    assert run.generated == tuple(lesson_model().greedy(list(last.encode()), 6))


@pytest.mark.parametrize(
    ("mix", "fault"), [("skip-replay", "skip_replay"), ("drop-conv", "drop_conv")]
)
def test_a_mixture_is_the_engine_s_fault_bit_for_bit(mix, fault):
    run = play_joint("fan-out", 128, (mix,))
    (mixed,) = run.mixes
    engine = Engine(lesson_model(), replace(LESSON_CONFIG, placement=Every(128)))
    first, last = (list(text.encode()) for text in JOINT["fan-out"])
    engine.submit(first, 1, "A")
    engine.run()
    engine.config = replace(engine.config, faults=Faults.named([fault]))
    request = engine.submit(last, 6, "B")
    engine.run()
    assert tuple(request.generated) == mixed.generated
    own = torch.stack(request.logits)[mixed.resume - run.restore :]
    true = lesson_model().logits(last)[mixed.resume :]
    seen = (own[: len(true)].double() - true.double()).abs().amax(-1)
    assert seen.tolist() == list(mixed.differences[: len(true)])
    assert mixed.worst > 10 * run.margin


def test_an_evicted_checkpoint_leaves_known_text_and_nothing_to_mix():
    run = play_joint("pressure", 128, MIXES)
    assert run.kv_reach > run.restore == 0
    assert run.checkpoints == ()
    assert [m.name for m in run.mixes] == ["skip-replay"]
    assert set(run.absent) == set(MIXES) - {"skip-replay"}


def test_every_mixture_shows_and_another_text_is_worse_than_another_letter():
    worst = {m.name: m.worst for m in play_joint("fan-out", 128, MIXES).mixes}
    assert set(worst) == set(MIXES)
    assert all(value > 0.1 for value in worst.values())
    assert worst["other-text"] > worst["one-letter"]


def test_what_is_not_offered_is_refused():
    with pytest.raises(KdalabError, match="example"):
        play_joint("none", 128)
    with pytest.raises(KdalabError, match="mixture"):
        play_joint("again", 128, ("all",))
