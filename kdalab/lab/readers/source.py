"""Bytes of a trace, a line at a time: gzipped or not, bounded in every direction."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from kdalab.errors import KdalabError

MAX_LINE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 512 << 20
#: Traces pack to a third or a tenth. Something that unpacks to this many times its size is made
#: to fill a disk or a memory.
MAX_RATIO = 200
#: Below so many unpacked bytes the ratio is not looked at: they fill nothing, and a small trace of
#: like lines may well pack that tight.
RATIO_FROM = 64 << 20
#: Blank lines are passed over one by one, which takes a processor far longer than their bytes are
#: worth: a file may have so many bytes of them, and one more for every ``TEXT_PER_BLANK`` of text.
MAX_BLANK_BYTES = 1 << 20
TEXT_PER_BLANK = 32
#: What is copied of a pipe, at most.
MAX_SPOOL_BYTES = 16 << 30
#: With so much of a pipe one can tell whether it is a trace.
CHECK_BYTES = 4 << 20
_TELL_BYTES = 256 << 10
#: Four bytes before two: UTF-32's mark begins with UTF-16's.
_OTHER_TEXT = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip
_GZIP_MAGIC = b"\x1f\x8b"


def other_text(line: bytes) -> str:
    """The encoding that a file's first bytes name, where it is not UTF-8; else nothing."""
    return next((code for mark, code in _OTHER_TEXT.items() if line.startswith(mark)), "")


def lines(file: Path, on_bytes: Callable[[int], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) of ``file``.

    Args:
        on_bytes: told, every 256 KiB that were read, the position in the file (compressed bytes
            if gzipped).

    Raises:
        KdalabError: it cannot be read, a line is too long, it unpacks to far more than it is, or
            too much of it is blank lines.
    """
    try:
        with file.open("rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP_MAGIC or file.suffix == ".gz"
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            number = size = blank = 0
            tell = 1
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1 and (code := other_text(line)):
                    raise KdalabError(
                        f"{file} is {code} text; traces are UTF-8. Convert it: "
                        f"`iconv -f {code} -t UTF-8 IN > OUT`"
                    )
                if len(line) > MAX_LINE_BYTES:
                    raise KdalabError(
                        f"{file}: line {number:,} is longer than {MAX_LINE_BYTES >> 20} MiB; "
                        "is this a JSONL trace?"
                    )
                size += len(line)
                if line.isspace():
                    blank += len(line)
                    if blank > MAX_BLANK_BYTES:
                        _check_blank(file, size, blank)
                if size >= tell:
                    tell = size + _TELL_BYTES
                    if packed:
                        _check_ratio(file, size, raw)
                    if on_bytes is not None:
                        on_bytes(raw.tell())
                yield number, line
    except KdalabError:
        raise
    except (OSError, EOFError, zlib.error, ValueError) as error:
        # ValueError: a path that no file system can hold, such as one with a NUL in it.
        reason = getattr(error, "strerror", None) or str(error)
        raise KdalabError(f"cannot read the trace {str(file)!r}: {reason}") from error


def document(file: Path) -> bytes:
    """A whole file that is one JSON document.

    Raises:
        KdalabError: it cannot be read, or is too large for a document.
    """
    parts, size = [], 0
    for _, line in lines(file):
        parts.append(line)
        size += len(line)
        if size > MAX_DOCUMENT_BYTES:
            raise KdalabError(
                f"{file} is a JSON document of more than {MAX_DOCUMENT_BYTES >> 20} MiB; "
                "split it into one file a session"
            )
    return b"".join(parts)


def spooled(path: Path | str, check: Callable[[Path], object] | None = None) -> Path:
    """``path`` itself if it is a file or a folder; of a pipe (the text "-" is standard input; a
    path of that name is a file), a temporary copy: a trace is read more than once (to recognise
    it, to check a budget, to replay it).

    Args:
        check: called with the copy when it has ``CHECK_BYTES``, so that what is no trace is
            refused then, not at its end.

    Raises:
        KdalabError: it is a device, or the pipe gives more than ``MAX_SPOOL_BYTES``, or no disk
            takes it; and what ``check`` raises.
    """
    piped = path == "-"
    given, path = str(path), Path("/dev/stdin" if piped else path)
    try:
        if path.is_file() or path.is_dir() or not path.exists():
            return path.resolve() if piped else path
    except (OSError, ValueError):
        return path
    given = "standard input" if piped else given
    with path.open("rb") as source:
        if path.is_block_device() or (path.is_char_device() and not source.isatty()):
            raise KdalabError(f"{given} is a device; give a file, a folder or a pipe")
        copy, target = _nameless()
        _SPOOLS[str(target)] = (given, copy)  # lives, and is deleted, with the process
        size = 0
        while chunk := source.read(1 << 20):
            unchecked = size < CHECK_BYTES
            size += len(chunk)
            if size > MAX_SPOOL_BYTES:
                copy.close()  # and it is deleted
                raise KdalabError(
                    f"{given} gave more than {MAX_SPOOL_BYTES >> 30} GiB and has not ended; save "
                    "it as a file first"
                )
            try:
                copy.write(chunk)
                copy.flush()
            except OSError as error:
                raise KdalabError(
                    f"cannot copy {given} to {tempfile.gettempdir()}: {error.strerror}; save it as "
                    "a file first"
                ) from error
            if check is not None and unchecked and size >= CHECK_BYTES:
                check(target)
    return target


def _nameless() -> tuple[IO[bytes], Path]:
    """A temporary file and the path by which this process and its workers read it. Linux deletes
    it whatever ends the process: it has no name of its own."""
    copy = cast(IO[bytes], tempfile.TemporaryFile())  # noqa: SIM115
    target = Path(f"/proc/{os.getpid()}/fd/{copy.fileno()}")
    if target.is_file():
        return copy, target
    copy.close()
    named = tempfile.NamedTemporaryFile(prefix="kdalab-trace-")  # noqa: SIM115
    return cast(IO[bytes], named), Path(named.name)


def as_given(text: str) -> str:
    """``text`` with the pipes that were named, not the copies of them."""
    for copy, (pipe, _) in _SPOOLS.items():
        text = text.replace(copy, pipe)
    return text


_SPOOLS: dict[str, tuple[str, IO[bytes]]] = {}
"""Path of a copy -> its pipe, the open copy."""


def _check_ratio(file: Path, size: int, raw: IO[bytes]) -> None:
    if size > RATIO_FROM and size > MAX_RATIO * max(1, raw.tell()):
        raise KdalabError(
            f"{file} has unpacked to over {RATIO_FROM >> 20} MiB, more than {MAX_RATIO} times its "
            "size; no trace does. Unpack it yourself if you trust it"
        )


def _check_blank(file: Path, size: int, blank: int) -> None:
    if blank > MAX_BLANK_BYTES + (size - blank) // TEXT_PER_BLANK:
        raise KdalabError(
            f"{file} has more than {MAX_BLANK_BYTES >> 20} MiB of blank lines; no trace does. Take "
            "them out"
        )
