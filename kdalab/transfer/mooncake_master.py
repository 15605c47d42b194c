"""A Mooncake master of one's own: two servers on this machine that end with who started them."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from kdalab.errors import KdalabError
from kdalab.transfer.mooncake import HOW_TO_INSTALL, MooncakeStore

HOST = "127.0.0.1"
START_SECONDS = 20.0
STOP_SECONDS = 5.0
ATTEMPTS = 3
PR_SET_PDEATHSIG = 1
"""Of ``prctl``: the signal that a process gets when its parent ends (linux/prctl.h)."""


def find_binary() -> Path:
    """The master's program, from the package or from the PATH.

    Raises:
        KdalabError: neither has it; the message says how to get it.
    """
    spec = importlib.util.find_spec("mooncake")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        file = Path(folder) / "mooncake_master"
        if file.is_file() and os.access(file, os.X_OK):
            return file
    found = shutil.which("mooncake_master")
    if found is None:
        raise KdalabError(HOW_TO_INSTALL)
    return Path(found)


class MooncakeMaster:
    """A running ``mooncake_master`` with its HTTP metadata server, on loopback only.

    Use it as a context, or call ``stop``; at the latest it is stopped when the interpreter ends.
    One that was started on the main thread, on Linux, ends even when the interpreter is killed.

    Args:
        port, metadata_port: 0 for free ones.

    Raises:
        KdalabError: the package is missing, the ports are equal, a port is taken, or it does not
            come up; the last lines of its log are shown.
    """

    def __init__(self, port: int = 0, metadata_port: int = 0) -> None:
        if port and port == metadata_port:
            raise KdalabError(
                f"port {port} for both the master and its metadata server; choose two, or 0 for "
                "free ones"
            )
        binary = find_binary()
        self.port, self.metadata_port = port, metadata_port
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        atexit.register(self.stop)
        # Between choosing a free port and taking it somebody else may have it.
        for attempt in range(ATTEMPTS):
            self.port = port or _free_port(metadata_port)
            self.metadata_port = metadata_port or _free_port(self.port)
            try:
                self._start(binary, _free_port(self.port, self.metadata_port))
                return
            except KdalabError:
                self._end()
                if attempt == ATTEMPTS - 1 or (port and metadata_port):
                    self.stop()
                    raise
            except BaseException:
                self.stop()
                raise

    @property
    def address(self) -> str:
        """``host:port`` of the master."""
        return f"{HOST}:{self.port}"

    @property
    def metadata_server(self) -> str:
        """URL of the metadata server."""
        return f"http://{HOST}:{self.metadata_port}/metadata"

    @property
    def pid(self) -> int:
        """Process id; 0 when it is stopped."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        """True until it has ended, of itself or by ``stop``."""
        return self._process is not None and self._process.poll() is None

    def client(self, segment_bytes: int = 64 << 20, buffer_bytes: int = 64 << 20) -> MooncakeStore:
        """A client in this process."""
        return MooncakeStore(self.metadata_server, self.address, segment_bytes, buffer_bytes)

    def stop(self) -> None:
        """End it and wait until it has ended. Harmless if repeated."""
        atexit.unregister(self.stop)
        self._end()
        self._log.close()

    def __enter__(self) -> MooncakeMaster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, binary: Path, metrics_port: int) -> None:
        taken = [p for p in (self.port, self.metadata_port) if _answers(p)]
        if taken:
            raise KdalabError(
                f"port {taken[0]} of {HOST} is taken; choose another, or 0 for a free one"
            )
        self._process = subprocess.Popen(
            [
                str(binary),
                f"--rpc_address={HOST}",
                f"--rpc_port={self.port}",
                "--enable_http_metadata_server=true",
                f"--http_metadata_server_host={HOST}",
                f"--http_metadata_server_port={self.metadata_port}",
                f"--metrics_host={HOST}",
                f"--metrics_port={metrics_port}",
                "--enable_metric_reporting=false",
                "--logtostderr=1",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            preexec_fn=_ends_with_us(),
        )
        end = time.monotonic() + START_SECONDS
        while not (_answers(self.port) and _answers(self.metadata_port)):
            if self._process.poll() is not None:
                raise KdalabError(
                    f"mooncake_master ended with code {self._process.returncode}: {self._tail()}"
                )
            if time.monotonic() > end:
                raise KdalabError(
                    f"mooncake_master did not answer within {START_SECONDS:.0f} s: {self._tail()}"
                )
            time.sleep(0.02)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read()[-4000:].decode(errors="replace").splitlines()
        return " | ".join(lines[-3:]) or "no output"


def _ends_with_us() -> Callable[[], None] | None:
    """What the new process does first, so that the kernel ends it when this one is killed.

    The kernel's parent is the thread that forked, so a thread that ends early would take the
    server with it: only the main thread asks for this.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was killed before it could be asked
            os._exit(1)

    return ask


def _free_port(*unlike: int) -> int:
    """A port that nobody listens on, and none of ``unlike``."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in unlike:
            return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=0.5):
            return True
    except OSError:
        return False
