"""JSON in which no object states a key twice: parsers keep the last one, and say nothing."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from kdalab.errors import KdalabError


def parse_json(text: str, source: object) -> Any:
    """The parsed text; ``source`` is named in the message.

    Raises:
        KdalabError: an object has a key twice.
        json.JSONDecodeError, RecursionError, ValueError: as :func:`json.loads`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise KdalabError(
                f"{source} states {twice!r} twice in one object; keep one, as it is not said "
                "which of them counts"
            )
        return found

    return json.loads(text, object_pairs_hook=unique)
