"""Every page, in the order of the navigation."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

from demos._lesson import Lesson
from demos._text import t

# One module a page. A module has ``build(page)`` and either LESSON, or SLUG and GROUP.
MODULES = (
    "state",
    "chunks",
    "sizes",
    "joint",
    "restore",
    "tree",
    "density",
    "swa",
    "sharing",
    "int8",
    "unified",
    "groups",
    "partial",
    "modes",
    "retention",
    "compare",
    "transfer",
    "verify",
    "lab",
    "invariants",
    "tour",
)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the hub."""

    slug: str
    group: str
    module: ModuleType

    def title(self, lang: str) -> str:
        """Its short name."""
        return t(lang, f"{self.slug}.title")


@lru_cache(maxsize=1)
def listed() -> tuple[Page, ...]:
    """Every page, in order."""
    found = []
    for name in MODULES:
        module = importlib.import_module(f"demos.{name}")
        lesson: Lesson | None = getattr(module, "LESSON", None)
        slug = lesson.slug if lesson else module.SLUG
        found.append(Page(slug, lesson.group if lesson else module.GROUP, module))
    return tuple(found)
