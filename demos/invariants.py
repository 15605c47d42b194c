"""**Break the invariants**: every rule switched off, one at a time, and the check that sees it.

``python -m demos.invariants`` opens this page alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Settings
from demos._engine_film import finite
from demos._film import Film, Row, why_panel
from demos._lesson import Lesson
from demos._text import t
from kdalab.engine import Faults, checks, shared_state
from kdalab.lessons import RULES, play_rule
from kdalab.lessons import BrokenRule as Broken
from kdalab.lessons.player import shown_token
from kdalab.phrases import say
from kdalab.viz.invariants import RuleRow, rules_svg
from kdalab.viz.svg import esc
from kdalab.viz.tables import Table
from kdalab.viz.why import format_difference


class RulesFilm(Film):
    """One step a rule; a rule runs when its step is first looked at."""

    def __init__(self) -> None:
        self.last = len(RULES) - 1
        self.opening = RULES.index("cow")

    def sentence(self, step: int, lang: str) -> str:
        return t(lang, f"invariants.off-{RULES[step]}")

    def tone(self, step: int) -> str:
        return "evict" if step else "restore"

    def picture(self, step: int, lang: str) -> str:
        return _table_picture(RULES, step, step, lang)

    def why(self, step: int, lang: str) -> str:
        found = play_rule(RULES[step])
        return why_panel(
            (t(lang, "common.in-step"), f'<p class="now">{esc(self.sentence(step, lang))}</p>'),
            *_reading(found, lang),
        )

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        return (rules_table(RULES[: step + 1], lang),)

    def data(self) -> dict[str, Any]:
        return {"rules": [_plain(play_rule(rule)) for rule in RULES]}


class RuleFilm(Film):
    """One rule: what happens, the damage, the check."""

    def __init__(self, rule: str) -> None:
        self.found, self.rule = play_rule(rule), rule
        self.n = len(self.found.acts)
        self.last = self.n + (1 if rule == "healthy" else 2)
        self.opening = self.n + 1

    def sentence(self, step: int, lang: str) -> str:
        if step == 0:
            return t(lang, f"invariants.off-{self.rule}")
        if step <= self.n:
            act = self.found.acts[step - 1]
            said = say(lang, act.sentence)
            return said if act.kind != "FaultInjected" else f"{act.request}: {said}"
        if step == self.n + 1:
            return _damage(self.found, lang)
        return t(lang, "invariants.caught", check=self.found.check)

    def tone(self, step: int) -> str:
        if step == 0 or step > self.n:
            return "finish" if step == self.last else "plain" if step == 0 else "evict"
        kinds = {"FaultInjected": "evict", "CopiedOnWrite": "copy", "Snapshotted": "snapshot",
                 "Matched": "restore"}  # fmt: skip
        return kinds.get(self.found.acts[step - 1].kind, "plain")

    def picture(self, step: int, lang: str) -> str:
        names = ("healthy",) if self.rule == "healthy" else ("healthy", self.rule)
        shown = len(names) - 1 if step > self.n else len(names) - 2
        return _table_picture(names, shown, len(names) - 1, lang) + self._acts(step, lang)

    def _acts(self, step: int, lang: str) -> str:
        lines = []
        for number in range(1, self.n + 1):
            mark = ' class="binds"' if number == step else ""
            lines.append(f"<li{mark}>{number}. {esc(self.sentence(number, lang))}</li>")
        return f'<div class="kd-why"><ul>{"".join(lines)}</ul></div>'

    def why(self, step: int, lang: str) -> str:
        now = f'<p class="now">{esc(self.sentence(step, lang))}</p>'
        return why_panel((t(lang, "common.in-step"), now), *_reading(self.found, lang))

    def tables(self, step: int, lang: str) -> Sequence[Table]:
        return (rules_table(tuple(dict.fromkeys(("healthy", self.rule))), lang),)

    def log(self, lang: str) -> Sequence[Row]:
        return [
            Row(i + 1, a.request, a.kind, say(lang, a.sentence))
            for i, a in enumerate(self.found.acts)
        ]

    @property
    def requests(self) -> Sequence[str]:
        return tuple(sorted({a.request for a in self.found.acts if a.request}))

    def data(self) -> dict[str, Any]:
        return {"rules": [_plain(self.found)]}


def _damage(found: Broken, lang: str) -> str:
    worst = format_difference(max(found.state, found.logits))
    if found.ended:
        return t(lang, "invariants.ended", who=found.victim)
    if found.first_wrong is None:
        key = "exact" if found.rule == "healthy" else "no-wrong"
        return t(lang, f"invariants.{key}", who=found.victim, n=len(found.alone), off=worst)
    return t(
        lang, "invariants.wrong", who=found.victim, at=found.first_wrong + 1, n=len(found.alone),
        off=worst,
    )  # fmt: skip


def _reading(found: Broken, lang: str) -> list[tuple[str, str]]:
    """Why the rule is there, the damage, who polluted whom, the check's own words."""
    css = "kd-good" if found.rule == "healthy" else "kd-bad"
    who = t(lang, "invariants.self", who=found.victim)
    if found.polluter:
        name = found.polluter
        key = "polluted" if len(name) == 1 else f"polluted-{name}"
        who = t(lang, f"invariants.{key}", a=name, b=found.victim)
    damage = f'<p class="{css}">{esc(_damage(found, lang))}</p>'
    if found.rule != "healthy":
        damage += f"<p>{esc(who)}</p>"
    numbers = t(
        lang, "invariants.numbers", state=format_difference(found.state),
        logits=format_difference(found.logits),
    )  # fmt: skip
    parts = [
        (t(lang, "invariants.rule"), f"<p>{esc(t(lang, f'invariants.law-{found.rule}'))}</p>"),
        (t(lang, "invariants.damage"), f"{damage}<p>{esc(numbers)}</p>"),
    ]
    if found.says:
        said = f"<p>{esc(found.check)}: <code>{esc(found.says)}</code></p>"
        parts.append((t(lang, "invariants.catches"), said))
    return parts


def _polluter(found: Broken, lang: str) -> str:
    """A request's letter, or what else left something behind."""
    name = found.polluter
    return name if len(name) <= 1 else t(lang, f"invariants.who-{name}")


def _wrong(found: Broken, lang: str) -> str:
    if found.ended:
        return t(lang, "invariants.short-ended")
    if found.first_wrong is None:
        return t(lang, "invariants.short-none")
    return f"{found.first_wrong + 1} / {len(found.alone)}"


@lru_cache(maxsize=256)
def _table_picture(names: tuple[str, ...], done: int, here: int, lang: str) -> str:
    rows = []
    for number, rule in enumerate(names):
        name = t(lang, f"invariants.rule-{rule}")
        if number > done:
            rows.append(RuleRow(name, run=False))
            continue
        found = play_rule(rule)
        rows.append(
            RuleRow(
                name, _polluter(found, lang), found.victim, max(found.state, found.logits),
                _wrong(found, lang), found.check, good=rule == "healthy",
            )
        )  # fmt: skip
    words = {
        w: t(lang, f"invariants.word-{w}")
        for w in ("rule", "who", "state", "wrong", "check", "made", "right", "scale")
    }
    made: list[str] = []
    right: list[str] = []
    if here <= done:
        found = play_rule(names[here])
        made, right = [_text(x) for x in found.generated], [_text(x) for x in found.alone]
    label = t(lang, "invariants.label")
    shown = rules_svg(rows, here, made, right, words=words, label=label)
    return f'<div class="kd-scroll">{shown}</div>'


def rules_table(names: Sequence[str], lang: str) -> Table:
    """Every rule that has been switched off, with its numbers."""
    heads = ("rule", "switch", "who", "state", "logits", "wrong", "check", "says")
    rows = []
    for rule in names:
        found = play_rule(rule)
        who = f"{_polluter(found, lang)} → {found.victim}" if found.polluter else found.victim
        rows.append(
            (
                t(lang, f"invariants.rule-{rule}"), SWITCH[rule], who,
                format_difference(found.state), format_difference(found.logits),
                _wrong(found, lang), found.check, found.says or "-",
            )
        )  # fmt: skip
    columns = tuple(t(lang, f"invariants.column-{h}") for h in heads)
    return Table(t(lang, "invariants.table"), columns, tuple(rows))


SWITCH = {
    "healthy": "-", "boundary": "skip_replay", "pair": "drop_conv", "cow": "share_checkpoint",
    "copy": "alias_snapshot", "lock": "free_locked", "clear": "skip_clear",
    "int8": "quantise_in_recurrence", "draft": "keep_rejected", "image": "ignore_images",
    "step": "read_unwritten", "whole": "start_early", "gate": "move_held",
    "identity": "exchange.receive",
}  # fmt: skip
"""Rule -> its fault in ``engine.faults``; ``exchange.receive`` asks for no identity."""


def _plain(found: Broken) -> dict[str, Any]:
    return {
        "rule": found.rule, "switch": SWITCH[found.rule], "victim": found.victim,
        "polluter": found.polluter, "state": finite(found.state), "logits": finite(found.logits),
        "first_wrong": found.first_wrong, "generated": list(found.generated),
        "alone": list(found.alone), "check": found.check, "says": found.says,
        "ended": found.ended,
    }  # fmt: skip


def _text(token: int) -> str:
    text = shown_token(token)
    return f"[{token}]" if text == "·" else text


def film(settings: Settings) -> Film:
    """The film of one setting."""
    rule = settings["rule"]
    return RulesFilm() if rule == "all" else RuleFilm(rule)


LESSON = Lesson(
    slug="invariants",
    group="systems",
    controls=(Choice("rule", ("all", *RULES), "all", 420),),
    film=film,
    legend=False,
    terms=(
        ("key length equals state length", "state at the node's end", "state under a block's key"),
        ("copy on write", "COW on a match, deferred", "private COW block"),
        ("snapshot is a copy, or the slot is given", "`extra_buffer`, donate", "reversed COW"),
        (
            "locks",
            "`acquire_component_lock` (older: `full_lock_ref`, `mamba_lock_ref`)",
            "`ref_cnt` of each block",
        ),
        ("images in the key", "pad values of the image hash", "multimodal extra keys"),
        ("not in the step that caches it", "-", "deferred: asks for `num_gpu_blocks + 1`"),
        ("whole before decode", "state with the last chunk", "the last mamba state always"),
        ("gate against moves", "pages gated in PD transfers", "-"),
        ("poison", "`SGLANG_DEBUG_POISON_POOL`", "-"),
    ),
    code=(
        ("code-faults", Faults),
        ("code-check", checks.check),
        ("code-shared", shared_state.reach),
    ),
    notebook="joint",
    next=("joint", "sharing", "int8", "verify", "transfer"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
