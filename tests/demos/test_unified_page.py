"""Who takes memory from whom, as the unified page says it, against the frontiers."""

from __future__ import annotations

import re

from demos._text import t
from demos.unified import LESSON
from kdalab.engine import events as ev
from kdalab.units import format_bytes


def test_it_opens_where_latent_kv_takes_what_a_state_gave():
    film = LESSON.play(LESSON.default)
    found, at = film.found, film.opening
    admitted = film.run.events[film.run.steps[at - 1].event_index]
    assert isinstance(admitted, ev.Admitted)
    assert found.refusals[0][1].startswith(f"{admitted.request}:")  # the split refuses it
    before, gave, took = (found.layouts[i] for i in (at - 2, at - 1, at))
    assert gave.high - before.high == found.state_bytes
    pages = len(admitted.private_pages) * found.page_bytes
    assert took.low - gave.low == pages
    assert before.gap < pages + found.state_bytes  # it would not have fitted
    assert took.low - found.padding > found.split_pages * found.page_bytes
    # What the eviction freed is what D's own state takes: the state frontier ends where it began.
    assert took.high == before.high
    said = film.why(at, "en") + film.sentence(at - 1, "en") + film.why(at - 1, "en")
    once = took.low - min(x.high for x in found.layouts[:at])
    assert once > 0
    sums = (pages, found.state_bytes, pages + found.state_bytes, before.gap, once)
    assert all(format_bytes(n) in said for n in sums)


def test_a_fall_of_the_line_is_named_with_the_step_in_which_states_had_the_bytes():
    for holes in ("eager", "lazy"):
        film = LESSON.play(LESSON.settings({"holes": holes}))
        layouts, at = film.found.layouts, film.opening
        step = int(re.search(r"belonged to states at step (\d+)", film.why(at, "en"))[1]) - 1
        assert layouts[step].high < layouts[at].low
        assert all(x.high > layouts[step].high for x in layouts[:step])


def test_each_step_says_what_either_side_takes_and_gives():
    film = LESSON.play(LESSON.default)
    layouts = film.found.layouts
    for step in range(1, film.last + 1):
        kv = layouts[step].low - layouts[step - 1].low
        states = layouts[step - 1].high - layouts[step].high
        said = [re.sub(r"[\d.]+ (KiB|B)", "N", x) for x in
                re.findall(r"<li>(.*?)</li>", film.why(step, "en"))]  # fmt: skip
        wanted = []
        for name, n in (("kv", kv), ("s", states)):
            if n:
                wanted.append(t("en", f"unified.{name}-{'takes' if n > 0 else 'gives'}", size="N"))
        assert said == wanted, step
