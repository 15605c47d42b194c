"""A checksum that keeps up with memory: CRC-32 by blocks, in two threads.

CRC-32 finds every burst of up to 32 bits and is in every standard library, where it runs at about
half the speed of a copy on one core. So a buffer is cut into blocks, the blocks are dealt to
threads (zlib lets others run meanwhile), and the checksum is the CRC-32 of the blocks' own.
It finds accidents. Nobody is authenticated by it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from mmap import mmap

import numpy as np

BLOCK = 1 << 20
"""Bytes of one block: part of the format."""

PARALLEL_FROM = 4 << 20
"""Bytes from which threads are worth their start."""

THREADS = 2

Buffer = bytes | bytearray | memoryview | mmap


def checksum(data: Buffer) -> int:
    """CRC-32 of the little-endian CRC-32s of each ``BLOCK`` bytes of ``data``."""
    view = memoryview(data).cast("B")
    return _of_blocks(len(view), lambda at: zlib.crc32(view[at : at + BLOCK]))


def copy_and_sum(data: Buffer, target: memoryview) -> int:
    """As :func:`checksum`, copying ``data`` to the front of ``target`` on the way.

    A block is copied right after it was summed, while it lies in the processor's cache.
    """
    view = memoryview(data).cast("B")
    source, there = np.frombuffer(view, np.uint8), np.frombuffer(target, np.uint8)

    def move(at: int) -> int:
        end = min(at + BLOCK, len(view))
        crc = zlib.crc32(view[at:end])
        np.copyto(there[at:end], source[at:end])
        return crc

    return _of_blocks(len(view), move)


def _of_blocks(size: int, of_block: Callable[[int], int]) -> int:
    starts = range(0, size, BLOCK)
    run = map if size < PARALLEL_FROM else _threads().map
    parts: Sequence[int] = list(run(of_block, starts))
    return zlib.crc32(b"".join(p.to_bytes(4, "little") for p in parts))


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="kdalab-crc")
