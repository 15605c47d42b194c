"""What the restore page can be set to: checked on the server, and the same thing as a link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlencode

from kdalab.engine.faults import Faults
from kdalab.errors import KdalabError
from kdalab.lessons import (
    Recording,
    Scenario,
    play,
    scenario,
)

SPACINGS = (64, 128, 192, 256)
DEFAULT_NEW_TOKENS = 8
DEFAULT_SCENARIO = "fan-out"
_LETTERS = "abc"
MAX_PROMPTS = len(_LETTERS)  # boxes on the page


@dataclass(frozen=True, slots=True)
class Settings:
    """One setting of every control. Small and picklable: this is all that an open page keeps.

    ``texts`` is empty while the prompts are the preset's own; ``spacing`` is in tokens.
    """

    scenario: str
    spacing: int
    texts: tuple[str, ...] = ()
    new_tokens: int = DEFAULT_NEW_TOKENS
    faults: tuple[str, ...] = ()

    def query(self, step: int) -> str:
        """The page's address at ``step``, without what is the default."""
        pairs: list[tuple[str, str]] = [("scenario", self.scenario), ("spacing", str(self.spacing))]
        if self.new_tokens != DEFAULT_NEW_TOKENS:
            pairs.append(("tokens", str(self.new_tokens)))
        pairs += [("fault", name) for name in self.faults]
        # An empty text is written too: it says that the example's third prompt is left out.
        pairs += zip(_LETTERS, self.texts, strict=False)
        return urlencode([*pairs, ("step", str(step))])


def checked(
    name: str,
    texts: Sequence[str | None] = (),
    spacing: int | float | None = None,
    new_tokens: int | float | None = None,
    faults: Sequence[str] = (),
) -> Settings:
    """Settings from what a browser or a script sent, every value checked again.

    Raises:
        KdalabError: an unknown scenario or fault, a spacing that is not offered, a number of
            tokens or a text outside its limits.
    """
    preset = scenario(str(name))
    chosen = preset.spacing if spacing is None else _whole(spacing, "checkpoint spacing")
    if chosen not in SPACINGS:
        raise KdalabError(
            f"checkpoint spacing {chosen:,} tokens; use one of {', '.join(map(str, SPACINGS))}"
        )
    count = DEFAULT_NEW_TOKENS if new_tokens is None else _whole(new_tokens, "generated tokens")
    if not isinstance(faults, list | tuple):
        raise KdalabError("faults must be a list of names")
    known = Faults.named([str(f) for f in faults]).active
    clean = tuple(_text(t) for t in list(texts)[:MAX_PROMPTS])
    own = tuple(p.text for p in preset.prompts)
    padded = clean + ("",) * (MAX_PROMPTS - len(clean))
    if padded == own + ("",) * (MAX_PROMPTS - len(own)) or not any(clean):
        clean = ()
    settings = Settings(preset.name, chosen, clean, count, known)
    scenario_of(settings)  # refuses what is empty, too long or too many, with the reason
    return settings


def from_query(params: Mapping[str, str], faults: Sequence[str]) -> tuple[Settings, int | None]:
    """Settings and step of a link. ``faults`` are all the values of ``fault``.

    Texts that the link leaves out are the preset's.

    Raises:
        KdalabError: as :func:`checked`, or a number that is none.
    """
    preset = scenario(params.get("scenario", DEFAULT_SCENARIO))
    texts: list[str] = []
    if any(key in params for key in _LETTERS):
        own = [p.text for p in preset.prompts]
        for index, key in enumerate(_LETTERS):
            texts.append(params.get(key, own[index] if index < len(own) else ""))
    numbers = {k: int_or_none(params.get(k), k) for k in ("spacing", "tokens", "step")}
    settings = checked(preset.name, texts, numbers["spacing"], numbers["tokens"], faults)
    return settings, numbers["step"]


def scenario_of(settings: Settings) -> Scenario:
    """The scenario that the settings describe."""
    return scenario(settings.scenario).changed(
        texts=settings.texts or None,
        spacing=settings.spacing,
        new_tokens=settings.new_tokens,
        faults=Faults.named(list(settings.faults)),
    )


@lru_cache(maxsize=64)
def recording(settings: Settings) -> Recording:
    """The run of these settings; the same settings give the same run, so it is kept."""
    return play(scenario_of(settings))


def opening_step(run: Recording, settings: Settings) -> int:
    """Where a finished run is best looked at first: its replay; with a fault, the damage."""
    if settings.faults:
        return len(run.steps) - 1
    last = run.scenario.prompts[-1].name
    for kinds in (("Replayed",), ("CopiedOnWrite", "Cleared", "Matched")):
        for index, step in enumerate(run.steps):
            if step.kind in kinds and step.request == last:
                return index
    return len(run.steps) - 1


def clipped(step: int | float | None, run: Recording) -> int:
    """A step that exists."""
    value = 0 if step is None or step != step else int(max(-1, min(step, 10_000)))
    return min(max(value, 0), len(run.steps) - 1)


def int_or_none(text: str | None, what: str) -> int | None:
    """A whole number from a link.

    Raises:
        KdalabError: anything else.
    """
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise KdalabError(f"{what}={text[:20]!r} in the link is not a whole number")
    return int(text)


def _whole(value: int | float, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise KdalabError(f"{what}: {value!r} is not a number")
    if abs(value) > 1e6 or int(value) != value:
        raise KdalabError(f"{what}: {value} is not a whole number in range")
    return int(value)


def _text(text: str | None) -> str:
    # A browser may send half a surrogate pair; it has no bytes, so it becomes a question mark.
    return str(text or "").encode("utf-8", "replace").decode().replace("\r\n", "\n")
