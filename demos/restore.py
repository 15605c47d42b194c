"""**Restore, step by step**: a known text is not a restorable state.

``python -m demos.restore`` opens this page alone.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from demos import _page
from demos._controls import Choice, Number, Settings, Switches, Text
from demos._engine_film import EngineFilm
from demos._film import Film
from demos._lesson import Lesson
from demos._text import t
from kdalab.cache import RadixStateCache
from kdalab.engine import prefill
from kdalab.engine.faults import Faults
from kdalab.lessons import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MIN_NEW_TOKENS,
    RESTORE,
    Recording,
    Scenario,
    play,
    scenario,
)
from kdalab.memory import CheckpointPool
from kdalab.phrases import say
from kdalab.viz.svg import esc

_BOXES = ("a", "b", "c")
_FIRST = next(iter(RESTORE))


class RestoreFilm(EngineFilm):
    """A scenario's run, under its question."""

    def __init__(self, run: Recording, own: bool) -> None:
        super().__init__(run)
        self.own = own
        last = run.scenario.prompts[-1].name
        self.opening = self.last
        if not run.scenario.config.faults.active:
            for kinds in (("CopiedOnWrite", "Cleared", "Matched"), ("Replayed",)):
                found = self.first_of(*kinds, request=last)
                self.opening = self.opening if found == self.last else found

    def picture(self, step: int, lang: str) -> str:
        chosen = self.run.scenario
        title = t(lang, f"restore.scenario-{chosen.name}")
        own = t(lang, "restore.own") if self.own else ""
        lead = (
            f'<div class="kd-page"><p class="example"><b>{esc(title)}.</b> '
            f"{esc(say(lang, chosen.question))} {esc(say(lang, chosen.lead))} {esc(own)}</p></div>"
        )
        sizes = " · ".join(
            t(lang, "restore.size", who=name, size=len(tokens))
            for name, tokens in self.run.texts.items()
        )
        ran = t(lang, "restore.ran", seconds=f"{self.run.seconds:.2f}")
        return (
            f"{lead}{super().picture(step, lang)}"
            f'<div class="kd-bytes">{esc(sizes)} · {esc(ran)}</div>'
        )


def scenario_of(settings: Settings) -> Scenario:
    """The scenario that the settings describe; with no text at all, its own prompts.

    Raises:
        KdalabError: a prompt that is empty or too long.
    """
    texts = tuple(settings[key] for key in _BOXES)
    return scenario(settings["scenario"]).changed(
        texts=texts if any(texts) else None,
        spacing=settings["spacing"],
        new_tokens=settings["tokens"],
        faults=Faults.named(list(settings["fault"])),
    )


def film(settings: Settings) -> Film:
    """The film of one setting."""
    chosen = scenario_of(settings)
    own = [p.text for p in chosen.prompts] != [p.text for p in RESTORE[chosen.name].prompts]
    return RestoreFilm(play(chosen), own)


def _preset(chosen: Scenario) -> dict[str, Any]:
    texts = [p.text for p in chosen.prompts]
    texts += [""] * (len(_BOXES) - len(texts))
    return {"spacing": chosen.spacing, **dict(zip(_BOXES, texts, strict=True))}


_PRESETS = {name: _preset(chosen) for name, chosen in RESTORE.items()}

LESSON = Lesson(
    slug="restore",
    group="prefix",
    controls=(
        Choice("scenario", tuple(RESTORE), _FIRST, width=200),
        Choice("spacing", (64, 128, 192, 256), RESTORE[_FIRST].spacing),
        Number("tokens", MIN_NEW_TOKENS, MAX_NEW_TOKENS, 8),
        Switches("fault", ("skip_replay", "drop_conv")),
        *(Text(key, _PRESETS[_FIRST][key], limit=MAX_PROMPT_TOKENS, lines=5) for key in _BOXES),
    ),
    film=film,
    presets=_PRESETS,
    preset="scenario",
    terms=(
        ("token match", "matched prefix of `match_prefix`", "hit of the full-attention group"),
        (
            "restore point",
            "best node: the deepest with `mamba_value`",
            "hit of the Mamba group: the smallest of all groups' hits",
        ),
        ("checkpoint", "`mamba_value` of a tree node", "state block of a Mamba group"),
        ("tombstone", "node whose `mamba_value` is None", "null block in the state's table"),
        (
            "copy on write",
            "copy of the node's state into a private slot",
            "private copy of the block that was hit",
        ),
        (
            "donate",
            "the keep slot of the ping-pong enters the tree",
            "the block stays, its hash is registered",
        ),
        (
            "branching point",
            "`mamba_branching_seqlen`",
            "`shared_prefix_boundary`, a Marconi-style junction",
        ),
        (
            "checkpoint spacing",
            "`mamba_track_interval`",
            "block size in align mode, retention interval",
        ),
    ),
    code=(
        ("code-lookup", RadixStateCache.lookup),
        ("code-commit", RadixStateCache.commit),
        ("code-load", CheckpointPool.load),
        ("code-chunk", prefill.run_chunk),
    ),
    notebook="joint",
    exercises=("ex06",),
    next=("joint", "tree", "density", "sharing"),
)


def build(page: gr.Blocks | None = None) -> gr.Blocks:
    """Build the page into ``page``, or into a Blocks of its own."""
    return _page.build_lesson(LESSON, page)


if __name__ == "__main__":
    _page.launch_alone(build())
