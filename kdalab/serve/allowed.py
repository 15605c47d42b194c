"""What a request's fields allow, in sentences: a wrong one is answered with its field's."""

from __future__ import annotations

from typing import Any

ALLOWED = {
    "prompt": "give a text that is not empty, or a list of token ids that is not empty: whole "
    "numbers from 0",
    "max_tokens": "give a whole number from 1",
    "temperature": "decoding is greedy: leave it out, or give 0",
    "n": "one answer is made of a prompt: leave it out, or give 1",
    "best_of": "one answer is made of a prompt: leave it out, or give 1",
    "top_p": "give a number from 0 to 1; decoding is greedy, so it changes nothing",
    "echo": "the prompt is not given back: leave it out, or give false",
    "logprobs": "log probabilities are not given: leave it out, or give null",
    "logit_bias": "decoding is greedy, without a bias: leave it out, or give {}",
    "frequency_penalty": "decoding is greedy, without a penalty: leave it out, or give 0",
    "presence_penalty": "decoding is greedy, without a penalty: leave it out, or give 0",
    "suffix": "text is only written on: leave it out, or give null",
    "stop": "give a string, or a list of up to 4 strings, each of 1 to 256 characters",
    "stop_token_ids": "give a list of up to 64 token ids: whole numbers from 0",
}
"""By field; other fields are answered with what the check says."""


def sentence(errors: list[Any]) -> tuple[str, str | None]:
    """(what is wrong, the field): the first error, at the innermost place that is named.

    Args:
        errors: as pydantic lists them; of a union each branch has one of its own.
    """
    first = errors[0]
    field = str(first["loc"][0]) if first["loc"] else None
    if field not in ALLOWED:
        where = ".".join(str(p) for p in first["loc"] if not _is_branch(p))
        said = "it is unknown" if first["type"] == "extra_forbidden" else first["msg"]
        return f"{where or 'body'}: {said}", field
    if first["type"] == "missing":
        return f"{field} is missing: {ALLOWED[field]}", field
    inner = [e["loc"] for e in errors if e["loc"][0] == field and isinstance(e["loc"][-1], int)]
    where = f" ({field}[{inner[0][-1]}] is not)" if inner else ""
    return f"{field}: {ALLOWED[field]}{where}", field


def _is_branch(part: object) -> bool:
    """Whether a part of a place names a branch of a union, not a field or an index."""
    return isinstance(part, str) and part.startswith(("constrained", "list[", "str"))
