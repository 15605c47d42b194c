"""The way from page to page: groups of pages as menus, in the reader's language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from demos._text import t
from kdalab.viz.svg import esc


class Listed(Protocol):
    """What the navigation needs of a page."""

    @property
    def slug(self) -> str: ...
    @property
    def group(self) -> str: ...
    def title(self, lang: str) -> str: ...


def grouped(pages: Sequence[Listed]) -> dict[str, list[Listed]]:
    """Pages by group, both in order."""
    groups: dict[str, list[Listed]] = {}
    for page in pages:
        groups.setdefault(page.group, []).append(page)
    return groups


def nav_html(pages: Sequence[Listed], here: str, lang: str, chosen: str) -> str:
    """One menu a group; ``here`` is the slug of the open page, ``chosen`` a language to keep.

    Its ``lang`` becomes that of the whole document (nav.js).
    """
    keep = f"?lang={chosen}" if chosen else ""
    menus = []
    for name, members in grouped(pages).items():
        links = "".join(
            f'<a href="./{esc(p.slug)}{keep}"{_current(p.slug == here)}>{esc(p.title(lang))}</a>'
            for p in members
        )
        inside = any(p.slug == here for p in members)
        title = esc(t(lang, f"common.group-{name}"))
        menus.append(
            f'<details name="kd-menu" class="kd-menu{" here" if inside else ""}">'
            f"<summary>{title}</summary><div>{links}</div></details>"
        )
    label = esc(t(lang, "common.pages"))
    home = f'<a class="kd-home" href="./{keep}"{_current(not here)}>KDALab</a>'
    groups = f'<div class="kd-groups">{"".join(menus)}</div>'
    tag = "zh-CN" if lang == "zh" else lang
    return f'<nav class="kd-nav" lang="{tag}" aria-label="{label}">{home}{groups}</nav>'


def first_html(lang: str, chosen: str) -> str:
    """Where a newcomer starts: the tour, as a card above all others."""
    keep = f"?lang={chosen}" if chosen else ""
    return (
        f'<div class="kd-cards kd-first"><a href="./tour{keep}"><h3>{esc(t(lang, "home.new"))}</h3>'
        f"<p>{esc(t(lang, 'home.new-about'))}</p></a></div>"
    )


def cards_html(pages: Sequence[Listed], lang: str, chosen: str) -> str:
    """A card for each page but the tour, under its group and what that group is about."""
    keep = f"?lang={chosen}" if chosen else ""
    parts = [f'<p class="kd-choose">{esc(t(lang, "home.choose"))}</p>']
    for name, members in grouped([p for p in pages if p.slug != "tour"]).items():
        cards = "".join(
            f'<a href="./{esc(p.slug)}{keep}"><h3>{esc(p.title(lang))}</h3>'
            f"<p>{esc(t(lang, f'{p.slug}.question'))}</p></a>"
            for p in members
        )
        parts.append(
            f'<h2 class="kd-group">{esc(t(lang, f"common.group-{name}"))} '
            f"<small>{esc(t(lang, f'home.about-{name}'))}</small></h2>"
            f'<div class="kd-cards">{cards}</div>'
        )
    return f'<nav aria-label="{esc(t(lang, "common.pages"))}">{"".join(parts)}</nav>'


def _current(yes: bool) -> str:
    return ' aria-current="page"' if yes else ""
