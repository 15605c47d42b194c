"""Where files lie between their upload and their reading."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gradio import route_utils
from gradio.utils import get_upload_folder

UNREAD_S = 600.0
UNREAD_BYTES = 1 << 30
"""How long a file that nobody has read may lie here, and how much all of them together."""


class _ApartFile(route_utils.GradioUploadFile):
    """An upload whose folder no other upload shares.

    Gradio names the folder by the hash of the content, so that two visitors who send the same file
    under the same name are answered one path, and whoever's is read and deleted first takes it from
    the other. A hash that began with something random is as good a name.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        forget_unread()
        super().__init__(*args, **options)
        self.sha.update(secrets.token_bytes(32))


def keep_apart() -> None:
    """From now on every upload of this process has a path of its own."""
    route_utils.GradioUploadFile = _ApartFile  # type: ignore[misc]


def forget_unread(now: float | None = None) -> None:
    """Delete uploads that were sent and never read: those older than ``UNREAD_S``, and the oldest
    beyond ``UNREAD_BYTES``. Runs as the next one comes, so that what lies here is bounded."""
    if _own is None:
        return
    files = []
    for path in Path(_own[0]).rglob("*"):
        with contextlib.suppress(OSError):  # read and gone meanwhile
            if path.is_file():
                files.append((path.stat().st_mtime, path.stat().st_size, path))
    kept, oldest = 0, (time.time() if now is None else now) - UNREAD_S
    for written, size, path in sorted(files, key=lambda file: file[0], reverse=True):
        kept += size
        if written < oldest or kept > UNREAD_BYTES:
            delete(path)


_own: tuple[str, int] | None = None  # the folder made here, and the process that made it


def open_folder() -> None:
    """Give this process a folder of its own for uploads, which goes when the process ends; a
    folder that the user named in GRADIO_TEMP_DIR is used, and left, as it is."""
    global _own
    if os.environ.get("GRADIO_TEMP_DIR"):
        return
    _own = tempfile.mkdtemp(prefix="kdalab-demo-"), os.getpid()
    os.environ["GRADIO_TEMP_DIR"] = _own[0]
    atexit.register(_remove_folder)


def _remove_folder() -> None:
    if _own is not None and os.getpid() == _own[1]:  # a forked process has no say in it
        shutil.rmtree(_own[0], ignore_errors=True)


def end_in_order() -> None:
    """Let the folder go at SIGTERM too, in a process that does nothing but serve.

    Others are left alone: a fork keeps the handler, and Python forgets a signal that reaches the
    child before it runs, so a pool that ends its workers by SIGTERM would wait for one for ever.
    """

    def terminated(number: int, frame: Any) -> None:
        _remove_folder()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    # Whoever handles the signal already ends the process in order, and atexit comes to its turn.
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminated)


def delete(file: Path) -> None:
    """Delete an upload, and the folder that was made for it; gone already is fine, and what is a
    folder itself stays."""
    if file.is_dir():
        return
    file.unlink(missing_ok=True)
    if file.parent != Path(get_upload_folder()):
        with contextlib.suppress(OSError):  # gone, or another file is in it
            file.parent.rmdir()
