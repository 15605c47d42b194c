"""The pages' words: ``t(lang, "chunks.title")``, from ``demos/text/*.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from kdalab.words import LANGUAGES, best_language, catalogue


class _Text:
    """The catalogue of the pages, with the forms that pages need."""

    def __init__(self, folder: Path) -> None:
        self.words = catalogue(folder)

    def __call__(self, lang: str, key: str, **values: Any) -> str:
        return self.words(lang, key, **values)

    def __contains__(self, key: str) -> bool:
        return key in self.words

    def option(self, lang: str, page: str, control: str, value: object) -> str:
        """The text of one option of a control; numbers may go without."""
        key = f"{page}.{control}-{value}"
        if key in self.words:
            return self.words(lang, key)
        return f"{value:,}" if isinstance(value, int) else str(value)


t = _Text(Path(__file__).parent / "text")

_first: list[str] = []  # the language set with speak_first


def speak_first(lang: str | None) -> None:
    """Open every page in ``lang``, whatever a browser asks for; None undoes it.

    ``?lang=`` and the page's own chooser still say otherwise.
    """
    _first[:] = [lang] if lang in LANGUAGES else []


def language_of(request: gr.Request | None) -> str:
    """The language of a visit: ``?lang=``, else ``speak_first``, else what the browser asks for."""
    if request is None:
        return "en"
    asked = str(request.query_params.get("lang", ""))
    if asked in LANGUAGES:
        return asked
    if _first:
        return _first[0]
    return best_language(request.headers.get("accept-language"))
