"""What a page can be set to. A control knows its limits, its component, and its place in a link.

A browser's limits are a courtesy: whatever arrives is checked here again.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from demos._text import t
from demos._uploads import Ticket, Upload
from kdalab.errors import KdalabError
from kdalab.words import LANGUAGES

Value = str | int | float | bool | tuple[str, ...]


def room_for(names: Iterable[str]) -> int:
    """Pixels that a dropdown needs for the longest of these options, its padding and its arrow."""
    wide = (sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in n) for n in names)
    return min(420, round(7.6 * max(wide, default=0)) + 84)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values. Its text is ``<page>.<key>``, an option's ``<page>.<key>-<value>``
    where the catalogue has it, and the value itself where not.

    ``own`` is one more option, there once its visitor has uploaded a file, and in no address.
    """

    key: str
    options: tuple[str | int, ...]
    default: str | int
    width: int = 160
    own: str = ""

    def check(self, value: Any) -> str | int:
        """The option meant.

        Raises:
            KdalabError: none of them.
        """
        options = (*self.options, self.own) if self.own else self.options
        for option in () if isinstance(value, bool) else options:
            if value == option or (isinstance(value, str) and value == str(option)):
                return option
        shown = ", ".join(map(str, self.options))
        raise KdalabError(f"{self.key} = {str(value)[:40]!r}; use one of {shown}")

    def _choices(self, page: str, lang: str, own: bool = False) -> list[tuple[str, str | int]]:
        options = (*self.options, self.own) if own and self.own else self.options
        return [(t.option(lang, page, self.key, o), o) for o in options]

    def component(self, page: str, changes: bool = False) -> Any:
        """The component, in English, at its default; ``changes``: its names may say "changed"."""
        return gr.Dropdown(
            self._choices(page, "en"),
            value=self.default,
            label=t("en", f"{page}.{self.key}"),
            min_width=max(self.width, self._room(page, changes)),
            elem_id=f"kd-{self.key}",
        )

    def _room(self, page: str, changes: bool) -> int:
        """Pixels for the longest option in any language, so that none is cut by the arrow."""
        return room_for(
            t(lang, "common.changed", name=name) if changes else name
            for lang in LANGUAGES
            for name, _ in self._choices(page, lang, own=True)
        )

    def update(
        self, page: str, lang: str, value: Value, *, changed: bool = False, own: bool = False
    ) -> Any:
        """The component in another language, at ``value``.

        ``changed``: the value is a preset whose own values hold no more, and its name says so.
        ``own``: there is an uploaded file.
        """
        label = t(lang, f"{page}.{self.key}")
        choices = self._choices(page, lang, own or value == self.own)
        if changed:
            choices = [
                (t(lang, "common.changed", name=name) if option == value else name, option)
                for name, option in choices
            ]
        return gr.Dropdown(choices, value=value, label=label)


@dataclass(frozen=True, slots=True)
class Number:
    """A number on a slider; its unit stands in the label ``<page>.<key>``."""

    key: str
    low: float
    high: float
    default: float
    step: float = 1
    width: int = 180

    def check(self, value: Any) -> int | float:
        """The number, on the slider's own grid; None is a box that was emptied.

        Raises:
            KdalabError: no number, or one outside the limits.
        """
        if value is None:
            raise KdalabError(f"{self.key} has no value; use {self.low:g} to {self.high:g}")
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                raise KdalabError(f"{self.key} = {value[:40]!r} is not a number") from None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and isinstance(value, int) and abs(value) > 10**308:  # more than a float holds
            raise KdalabError(f"{self.key} is too large; use {self.low:g} to {self.high:g}")
        if not number or not math.isfinite(value):
            raise KdalabError(f"{self.key} = {str(value)[:40]!r} is not a number")
        if not self.low <= value <= self.high:
            raise KdalabError(f"{self.key} = {value:g}; use {self.low:g} to {self.high:g}")
        ticks = round((value - self.low) / self.step)
        found = self.low + ticks * self.step
        whole = all(float(x).is_integer() for x in (self.low, self.step))
        return int(found) if whole else round(found, 9)

    def component(self, page: str) -> Any:
        """The component, in English, at its default."""
        return gr.Slider(
            self.low,
            self.high,
            self.default,
            step=self.step,
            label=t("en", f"{page}.{self.key}"),
            min_width=max(self.width, 230),  # both ends and the box fit
            buttons=[],
            elem_id=f"kd-{self.key}",
        )

    def update(self, page: str, lang: str, value: Value) -> Any:
        """The component in another language, at ``value``."""
        assert isinstance(value, int | float)
        return gr.Slider(value=value, label=t(lang, f"{page}.{self.key}"))


@dataclass(frozen=True, slots=True)
class Switches:
    """ "What breaks if ...": any of several names; texts as those of a ``Choice``."""

    key: str
    options: tuple[str, ...]
    default: tuple[str, ...] = ()
    width: int = 300

    def check(self, value: Any) -> tuple[str, ...]:
        """The names, in the control's own order.

        Raises:
            KdalabError: no list of names, or one that is not offered.
        """
        if isinstance(value, str):
            value = [part for part in value.split(".") if part]
        if not isinstance(value, list | tuple):
            raise KdalabError(f"{self.key}: a list of names, not {type(value).__name__}")
        names = [str(v) for v in value]
        for name in names:
            if name not in self.options:
                shown = ", ".join(self.options)
                raise KdalabError(f"{self.key}: {name[:40]!r}; use some of {shown}")
        return tuple(o for o in self.options if o in names)

    def _choices(self, page: str, lang: str) -> list[tuple[str, str]]:
        return [(t.option(lang, page, self.key, o), o) for o in self.options]

    def component(self, page: str) -> Any:
        """The component, in English, at its default."""
        return gr.CheckboxGroup(
            self._choices(page, "en"),
            value=list(self.default),
            label=t("en", f"{page}.{self.key}"),
            info=t("en", "common.breaks-opens"),
            min_width=self.width,
            elem_id=f"kd-{self.key}",
        )

    def update(self, page: str, lang: str, value: Value) -> Any:
        """The component in another language, at ``value``."""
        assert isinstance(value, tuple)
        return gr.CheckboxGroup(
            self._choices(page, lang),
            value=list(value),
            label=t(lang, f"{page}.{self.key}"),
            info=t(lang, "common.breaks-opens"),
        )


@dataclass(frozen=True, slots=True)
class Text:
    """A box to type into; what is typed runs with the page's run button."""

    key: str
    default: str = ""
    limit: int = 768
    lines: int = 4
    width: int = 260

    def check(self, value: Any) -> str:
        """The text, its line ends made plain.

        Raises:
            KdalabError: no text, or one longer than the limit (in bytes of UTF-8).
        """
        if not isinstance(value, str):
            raise KdalabError(f"{self.key}: a text, not {type(value).__name__}")
        clean = value.encode("utf-8", "replace").decode().replace("\r\n", "\n")
        size = len(clean.encode())
        if size > self.limit:
            raise KdalabError(f"{self.key}: {size:,} bytes; the limit is {self.limit:,}")
        return clean

    def component(self, page: str) -> Any:
        """The component, in English, with its default."""
        return gr.Textbox(
            self.default,
            label=t("en", f"{page}.{self.key}"),
            lines=self.lines,
            max_lines=14,
            max_length=self.limit,
            min_width=self.width,
            elem_id=f"kd-{self.key}",
        )

    def update(self, page: str, lang: str, value: Value) -> Any:
        """The component in another language, with ``value``."""
        assert isinstance(value, str)
        return gr.Textbox(value=value, label=t(lang, f"{page}.{self.key}"))


Control = Choice | Number | Switches | Text | Upload


@dataclass(frozen=True, slots=True)
class Settings:
    """One value of every control: small, hashable, picklable. All that an open page keeps."""

    values: tuple[tuple[str, Value], ...]

    def __getitem__(self, key: str) -> Any:
        return dict(self.values)[key]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; a ticket stays here."""
        plain = {k: "" if isinstance(v, Ticket) else v for k, v in self.values}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def changed(self, **values: Value) -> Settings:
        """The same with other values, which are not checked again."""
        return Settings(tuple((k, values.get(k, v)) for k, v in self.values))


def checked(controls: Sequence[Control], given: Mapping[str, Any]) -> Settings:
    """Settings from what a browser, a link or a script sent; what is missing is the default.

    Raises:
        KdalabError: a name that no control has, or a value that its control refuses.
    """
    known = {c.key for c in controls}
    for key in given:
        if key not in known:
            raise KdalabError(f"no setting named {str(key)[:40]!r}; use {', '.join(sorted(known))}")
    pairs = [(c.key, c.check(given[c.key]) if c.key in given else c.default) for c in controls]
    return Settings(tuple(pairs))


def query_of(
    controls: Sequence[Control],
    settings: Settings,
    step: int | None,
    lang: str,
    base: Mapping[str, Value] | None = None,
) -> str:
    """The page's address: what differs from the defaults, the step, and a chosen language.

    ``base`` is what the address sets without naming it, a preset's values: what differs from those
    is named as well, and a text that is the preset's own is not repeated.
    """
    pairs: list[tuple[str, str]] = []
    for control in controls:
        value = settings[control.key]
        if isinstance(control, Upload) or (isinstance(control, Choice) and value == control.own):
            continue
        own = (base or {}).get(control.key, control.default)
        if value != own or (value != control.default and not isinstance(control, Text)):
            text = ".".join(value) if isinstance(value, tuple) else str(value)
            pairs.append((control.key, text))
    if step is not None:
        pairs.append(("step", str(step)))
    if lang:
        pairs.append(("lang", lang))
    return urlencode(pairs)


def step_of_link(text: str | None) -> int | None:
    """The step that a link names, or None.

    Raises:
        KdalabError: anything but a whole number.
    """
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise KdalabError(f"step={text[:20]!r} in the link is not a whole number")
    return int(text)
