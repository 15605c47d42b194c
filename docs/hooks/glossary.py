"""The glossary, from ``docs/glossary.toml``: one entry a term, in three languages.

``sglang`` and ``vllm`` are lists of symbols as they stand in the versions that the file names;
``other`` lists names that other versions use. ``kdalab`` names what this project calls it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

FILE = Path(__file__).resolve().parents[1] / "glossary.toml"
FIELDS = {"en", "zh", "ko", "meaning", "sglang", "vllm", "other", "kdalab", "see"}
NEEDED = {"en", "zh", "ko", "meaning"}


def entries() -> list[dict[str, Any]]:
    """Every term, in the file's order.

    Raises:
        PluginError: an entry without a needed field, or with one that is not known.
    """
    data = tomllib.loads(FILE.read_text("utf-8"))
    for entry in data["term"]:
        wrong = (NEEDED - set(entry)) | (set(entry) - FIELDS)
        if wrong:
            raise PluginError(
                f"glossary.toml: {entry.get('en', entry)}: {', '.join(sorted(wrong))}"
            )
    return list(data["term"])


def versions() -> dict[str, str]:
    """The version of each system in which its symbols were looked up."""
    return dict(tomllib.loads(FILE.read_text("utf-8"))["versions"])


def table() -> str:
    """The glossary as Markdown: a heading a term, so that it can be linked to."""
    seen = versions()
    lines = []
    for entry in entries():
        lines += [f"### {entry['en']}", "", f"{entry['zh']} · {entry['ko']}", "", entry["meaning"]]
        rows = []
        for key, title in (("sglang", "SGLang"), ("vllm", "vLLM"), ("kdalab", "here")):
            if entry.get(key):
                rows.append(f"{title}: {_codes(entry[key])}")
        if entry.get("other"):
            rows.append(f"other versions: {_codes(entry['other'])}")
        if entry.get("see"):
            rows.append(f"more: [{_title(entry['see'])}](mechanisms/{entry['see']}.md)")
        if rows:
            lines += ["", " · ".join(rows)]
        lines.append("")
    head = ", ".join(f"{name} {version}" for name, version in seen.items())
    return f"Symbols are those of {head}; names that stand in other versions are marked.\n\n" + (
        "\n".join(lines)
    )


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _title(slug: str) -> str:
    text = (FILE.parent / "mechanisms" / f"{slug}.md").read_text("utf-8")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise PluginError(f"glossary.toml: mechanisms/{slug}.md has no title")
    return found[1]
