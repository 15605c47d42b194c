"""The *why* panel: what happened in this step, what binds, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from kdalab.engine.events import Matched
from kdalab.viz.css import hue_class
from kdalab.viz.svg import esc


class Comparison(Protocol):
    """One request against a run from zero (``lessons.Measured`` is one)."""

    @property
    def request(self) -> str: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def restore(self) -> int: ...
    @property
    def compared_logits(self) -> int: ...
    @property
    def generated(self) -> tuple[int, ...]: ...
    @property
    def first_difference(self) -> int | None: ...
    @property
    def is_exact(self) -> bool: ...
    def rows(self) -> list[tuple[str, float]]: ...


def why_html(
    sentence: str,
    match: Matched | None,
    n_tokens: int,
    *,
    index: int = 0,
    measured: Sequence[Comparison] = (),
) -> str:
    """The panel as HTML.

    Args:
        sentence: what this step does.
        match: the look-up that the step's request got, or None before the first.
        n_tokens: length of that request's prompt.
        index: the request's place in the order of arrival, for its hue.
        measured: comparisons to show, at the end of a run.
    """
    parts = ["<h3>In this step</h3>", f'<p class="now {hue_class(index)}">{esc(sentence)}</p>']
    if match is not None:
        parts.append(_match(match, n_tokens, index))
    parts += [difference_html(m) for m in measured]
    return f'<div class="kd-why">{"".join(parts)}</div>'


def _match(match: Matched, n_tokens: int, index: int) -> str:
    if match.token_match == 0:
        title = "Why nothing is restored"
    elif match.restore == match.token_match:
        title = f"Why {match.restore:,} can be restored"
    else:
        title = f"Why {match.restore:,} and not {match.token_match:,}"
    rows = [
        ("txt", "text", "text known", match.token_match),
        ("kv", "KV", "latent KV", match.kv_reach),
        ("s", "S", "recurrent state", match.state_reach),
        ("c", "C", "conv state", match.state_reach),
    ]
    state_binds = match.token_match > 0 and match.state_reach <= match.restore < match.token_match
    bars = []
    for css, tag, label, reach in rows:
        binds = state_binds and css in ("s", "c")
        share = 100 * reach / max(1, n_tokens)
        bars.append(
            f'<span class="{"binds" if binds else ""}"><span class="kd-tag {css}">{tag}</span> '
            f"{label}</span>"
            '<span class="bar" role="img" '
            f'aria-label="{label} to {reach:,} of {n_tokens:,} tokens">'
            f'<span class="fill kd-fill-{css}" style="width:{share:.1f}%"></span></span>'
            f'<span class="num">{reach:,}</span>'
        )
    lines = "".join(
        f'<li class="{"binds" if line.startswith("binding") else ""}">{esc(line)}</li>'
        for line in match.why
    )
    letter = f'<span class="kd-letter {hue_class(index)}">{esc(match.request)}</span>'
    return f'<h3>{letter} {title}</h3><div class="kd-reach">{"".join(bars)}</div><ul>{lines}</ul>'


def difference_html(measured: Comparison) -> str:
    """Max |difference| of each kind against the cold run, as a table with its verdict."""
    rows = "".join(
        f'<tr><td>{esc(name)}</td><td class="num {"kd-good" if value == 0 else "kd-bad"}">'
        f"{format_difference(value)}</td></tr>"
        for name, value in measured.rows()
    )
    count = len(measured.generated)
    if measured.first_difference is None:
        choice = f"All {count:,} generated tokens are the same."
    else:
        choice = (
            f"The greedy choice differs first at generated token {measured.first_difference + 1:,} "
            f"of {count:,}."
        )
    saved = measured.restore
    computed = measured.n_tokens - measured.restore
    verdict = (
        '<span class="kd-good">Bit for bit the same.</span>'
        if measured.is_exact
        else '<span class="kd-bad">Not the same numbers.</span>'
    )
    return (
        f"<h3>{esc(measured.request)} against a run from zero</h3>"
        f"<p>{verdict} {esc(choice)} {computed:,} prompt tokens computed instead of "
        f"{measured.n_tokens:,}; {saved:,} saved.</p>"
        '<table class="kd-table"><thead><tr>'
        "<th>at the end of the prompt; logits of generated tokens too</th>"
        f'<th class="num">max |difference|</th></tr></thead><tbody>{rows}</tbody></table>'
        '<p class="muted">Tiny model with random weights, fp32 on CPU; logits of '
        f"{measured.compared_logits:,} tokens compared.</p>"
    )


def format_difference(value: float) -> str:
    """``0`` for exactly zero, otherwise three significant digits; ``NaN`` is said, not hidden."""
    if math.isnan(value):
        return "NaN"
    return "0" if value == 0 else f"{value:.3g}"
