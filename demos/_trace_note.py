"""What was read of a visitor's trace, as a page says it."""

from __future__ import annotations

from demos._text import t
from kdalab.lessons.uploads import UploadedTrace
from kdalab.phrases import say
from kdalab.viz.svg import esc


def trace_note(read: UploadedTrace, lang: str) -> str:
    """Format, size, what was skipped, and what the format cannot say, as HTML."""
    trace, report = read.trace, read.report
    more = "-more" if read.more else ""
    lines = [
        t(
            lang, f"common.trace-read{more}", name=read.name, format=report.format,
            requests=len(trace.requests), tokens=trace.input_tokens, block=report.block_tokens,
        )
    ]  # fmt: skip
    if read.back:
        lines.append(t(lang, "common.trace-sorted", back=read.back))
    if report.skipped:
        first = "; ".join(report.first)
        lines.append(t(lang, "common.trace-skipped", skipped=report.skipped, first=first))
    lines += [say(lang, note) for note in report.notes]
    lines.append(t(lang, "common.trace-own"))
    return "".join(f'<p class="kd-note">{esc(line)}</p>' for line in lines)
