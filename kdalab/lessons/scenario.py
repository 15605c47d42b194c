"""A scenario is data: who asks what, and in which engine. Pages, notebooks and tests share it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kdalab.cache.placement import Every
from kdalab.engine.config import EngineConfig
from kdalab.engine.faults import Faults
from kdalab.errors import KdalabError

MAX_PROMPT_TOKENS = 768
"""Longest prompt of a lesson, in tokens (bytes of its UTF-8 text): 12 prefill cells."""

MIN_NEW_TOKENS = 1
"""The first token comes from the prefill itself, and its logits are what is compared."""

MAX_NEW_TOKENS = 32

MAX_PROMPTS = 8

LESSON_CONFIG = EngineConfig(
    page_tokens=16,
    n_pages=144,
    n_active=4,
    n_checkpoints=12,
    chunk_tokens=256,
    placement=Every(192),
    keep_logits=True,
    check_every_step=True,
)
"""Pools small enough to be drawn slot by slot, with every rule checked after every step."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of a scenario.

    ``together`` lets it arrive in the same moment as the one before it; otherwise it arrives
    when everything before it has ended.
    """

    name: str
    text: str
    max_new_tokens: int = 8
    together: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named example: its question, its prompts and the engine that runs them.

    Raises:
        KdalabError: no prompt, too many, one that is empty or too long, or a number of generated
            tokens outside 1..32.
    """

    name: str
    title: str
    question: str
    lead: str
    prompts: tuple[Prompt, ...]
    config: EngineConfig = field(default=LESSON_CONFIG)

    def __post_init__(self) -> None:
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise KdalabError(
                f"scenario {self.name!r} has {len(self.prompts)} prompts; use 1 to {MAX_PROMPTS}"
            )
        for prompt in self.prompts:
            check_prompt(prompt)

    @property
    def spacing(self) -> int:
        """Tokens between checkpoints."""
        placement = self.config.placement
        return placement.interval if isinstance(placement, Every) else self.config.grid

    def changed(
        self,
        *,
        texts: tuple[str, ...] | None = None,
        spacing: int | None = None,
        new_tokens: int | None = None,
        faults: Faults | None = None,
    ) -> Scenario:
        """The same example with other texts, spacing (tokens), output length or faults.

        Texts replace the prompts' in order; a missing or empty text drops that prompt, and a text
        beyond them arrives together with the prompt before it.

        Raises:
            KdalabError: as the constructor, or a spacing off the grid of the kernels.
        """
        prompts = self.prompts
        if texts is not None:
            kept: list[Prompt] = []
            for index, text in enumerate(texts):
                name = chr(ord("A") + index)
                if text and index < len(self.prompts):
                    kept.append(replace(self.prompts[index], text=text))
                elif text or index < 2:
                    kept.append(Prompt(name, text, self.prompts[-1].max_new_tokens, index > 1))
            prompts = tuple(kept)
        if new_tokens is not None:
            prompts = tuple(replace(p, max_new_tokens=new_tokens) for p in prompts)
        config = self.config
        if spacing is not None:
            config = replace(config, placement=Every(spacing))
        if faults is not None:
            config = replace(config, faults=faults)
        return replace(self, prompts=prompts, config=config)


def check_prompt(prompt: Prompt) -> None:
    """Refuse a prompt that a lesson cannot show; the message says by how much.

    Raises:
        KdalabError: an empty or too long text, or too few or too many generated tokens.
    """
    size = len(prompt.text.encode("utf-8", "surrogatepass"))
    if size == 0:
        raise KdalabError(f"prompt {prompt.name} is empty; type at least one character")
    if size > MAX_PROMPT_TOKENS:
        raise KdalabError(
            f"prompt {prompt.name} has {size:,} bytes and one byte is one token here; "
            f"the limit is {MAX_PROMPT_TOKENS:,}. Shorten it by {size - MAX_PROMPT_TOKENS:,}"
        )
    if not MIN_NEW_TOKENS <= prompt.max_new_tokens <= MAX_NEW_TOKENS:
        raise KdalabError(
            f"{prompt.max_new_tokens} generated tokens; use {MIN_NEW_TOKENS} to {MAX_NEW_TOKENS}"
        )
