"""Readers of traces, one file a format; the right one is found by what a file contains."""

from __future__ import annotations

import json
from pathlib import Path

from kdalab.errors import KdalabError
from kdalab.lab.readers import source
from kdalab.lab.readers.agentic import AgenticReader
from kdalab.lab.readers.bailian import BailianReader
from kdalab.lab.readers.base import Head, Reader, ReadOptions
from kdalab.lab.readers.kvcache import KvCacheReader
from kdalab.lab.readers.marconi import MarconiReader
from kdalab.lab.readers.mooncake import MooncakeReader
from kdalab.lab.readers.tables import AzureReader, BurstGptReader

__all__ = ["READERS", "Head", "ReadOptions", "Reader", "open_trace", "sniff"]

READERS: dict[str, type[Reader]] = {
    r.format: r
    for r in (
        MooncakeReader,
        KvCacheReader,
        BailianReader,
        MarconiReader,
        AgenticReader,
        AzureReader,
        BurstGptReader,
    )
}
"""Format -> its reader."""

HEAD_LINES = 20


def open_trace(
    path: str | Path, format: str | None = None, options: ReadOptions | None = None
) -> Reader:
    """The reader of a trace; nothing but its beginning has been read.

    Args:
        path: a file (gzipped or not), a folder of sessions, or a pipe (which is copied first); the
            text "-" for standard input.
        format: a name of ``READERS``; None to tell it by the content.

    Raises:
        KdalabError: no such file or format, or a content that no reader claims.
    """
    if format is not None and format not in READERS:
        raise KdalabError(f"unknown format {format!r}; allowed: {', '.join(READERS)}")
    file = source.spooled(path, None if format else _could_be_a_trace)
    reader = (READERS[format] if format else sniff(file))(file, options)
    name = "stdin" if path == "-" else Path(path).name
    reader.name = name.encode(errors="backslashreplace").decode() or reader.name
    return reader


def sniff(path: Path) -> type[Reader]:
    """The reader that claims a file.

    Raises:
        KdalabError: it is empty, or nobody does.
    """
    head = read_head(path)
    for reader in READERS.values():
        if reader.claims(head):
            return reader
    if not head.header:
        what = "holds nothing but blanks" if head.blank else "is empty"
        raise KdalabError(f"{path} {what}; give a trace with at least one request")
    begin = head.header if len(head.header) <= 40 else head.header[:37] + "..."
    raise KdalabError(
        f"{path} begins {begin!r}, which is no format known here. Known are {', '.join(READERS)}; "
        "`kdalab lab formats` says what they are. Where it is one of them all the same, the "
        "commands of `kdalab lab` take its name with --format"
    )


def _could_be_a_trace(path: Path) -> None:
    """Refuse the beginning of a pipe that no reader would claim, however it goes on."""
    head = read_head(path, whole=False)
    if not head.header.startswith("{"):  # or it may be a document over many lines
        sniff(path)


def read_head(path: Path, *, whole: bool = True) -> Head:
    """The first lines of a file that are not blank, and those of them that are JSON objects; with
    ``whole``, a file that is one JSON object over many lines counts as one."""
    try:
        if path.is_dir():
            return Head(path, is_folder=True)
    except (OSError, ValueError):
        pass  # reading it will say why
    head, number = Head(path), 0
    for _, raw in source.lines(path):
        text = raw.decode("utf-8-sig", errors="replace").strip()
        if not text:
            head.blank = True
            continue
        number += 1
        head.header = head.header or text
        row = _object(text)
        if row is not None:
            head.rows.append(row)
        if number >= HEAD_LINES:
            break
    if whole and not head.rows and head.header.startswith("{"):
        row = _object(source.document(path).decode(errors="replace"))  # over several lines
        if row is not None:
            head.rows.append(row)
    return head


def _object(text: str) -> dict[str, object] | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
