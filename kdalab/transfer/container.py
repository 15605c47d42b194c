"""The safetensors container: 8 bytes of length, a JSON header, then the tensors' bytes.

Read and written here without a copy of the tensors, and with every number checked first: where a
tensor lies, that it ends inside the file, that nothing overlaps or is left over. The library's own
reader and writer understand the same bytes (a test holds them side by side).
Source of the format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kdalab.spec import canonical_dtype
from kdalab.transfer.refusal import BundleFormatError

MAX_HEADER = 1 << 20
"""Bytes that a header may have. The library allows 100 MB; a bundle's header has about 2 KB."""

META_KEY = "kdalab.bundle"
ALIGN = 8

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SHORT = {canonical_dtype(d): d for d in _DTYPES.values()}

MAX_AXES = 8


class Entry(NamedTuple):
    """One tensor of a container: its type, shape, and bytes [begin, end) after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Container(NamedTuple):
    """A header that has been checked: ``start`` is where the tensors' bytes begin."""

    metadata: str
    entries: dict[str, Entry]
    start: int


def torch_dtype(name: str) -> torch.dtype:
    """The element type of a canonical name of ``kdalab.spec`` ("bf16")."""
    return _SHORT[canonical_dtype(name)]


def dtype_name(dtype: torch.dtype) -> str:
    """The format's name of an element type ("BF16")."""
    return _NAMES[dtype]


def entries_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Entry]:
    """The table of tensors that are written one after another."""
    entries, at = {}, 0
    for name, tensor in tensors.items():
        entries[name] = Entry(tensor.dtype, tuple(tensor.shape), at, at + tensor.nbytes)
        at += tensor.nbytes
    return entries


def header_bytes(metadata: str, tensors: Mapping[str, torch.Tensor], size: int = 0) -> bytes:
    """Everything that comes before the tensors' bytes, filled up with spaces to ``size`` bytes."""
    header: dict[str, Any] = {"__metadata__": {META_KEY: metadata}}
    for name, entry in entries_of(tensors).items():
        header[name] = {
            "dtype": dtype_name(entry.dtype),
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * max(size - 8 - len(text), -len(text) % ALIGN)
    if len(text) > MAX_HEADER:
        raise BundleFormatError(f"a header of {len(text):,} bytes; at most {MAX_HEADER:,}")
    return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's own bytes, without a copy; it must be contiguous and on the CPU."""
    raw = tensor.detach().view(-1).view(torch.uint8).numpy()
    return memoryview(raw)  # type: ignore[arg-type]


def read_header(data: memoryview, total: int | None = None) -> Container:
    """Check the header of a container.

    Args:
        data: at least the header.
        total: bytes of the whole file; by default those of ``data``.

    Raises:
        BundleFormatError: too short, a header that is too long or malformed, an unknown type, or
            tensors that do not tile the rest of the file exactly.
    """
    total = len(data) if total is None else total
    if len(data) < 8:
        raise BundleFormatError(f"{len(data)} bytes; a bundle begins with 8 bytes of length")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER:
        raise BundleFormatError(f"a header of {length:,} bytes; at most {MAX_HEADER:,} are read")
    if 8 + length > min(len(data), total):
        raise BundleFormatError(f"cut off: {total:,} bytes, and the header alone has {length:,}")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise BundleFormatError(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise BundleFormatError("the header is no JSON object")
    meta = header.pop("__metadata__", None)
    if not isinstance(meta, dict) or not isinstance(meta.get(META_KEY), str):
        raise BundleFormatError(f"safetensors without {META_KEY!r} in its metadata")
    entries = {name: _entry(name, raw) for name, raw in header.items()}
    _check_tiles(entries, total - 8 - length)
    return Container(meta[META_KEY], entries, 8 + length)


def read_tensor(data: memoryview, container: Container, name: str) -> torch.Tensor:
    """One tensor as a view of ``data``: no copy, and read-only where ``data`` is."""
    entry = container.entries[name]
    begin, end = container.start + entry.begin, container.start + entry.end
    if begin == end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    piece = data[begin:end]
    # A header of any length is valid in the format, and then the bytes are not aligned.
    with warnings.catch_warnings():  # nobody writes a shared state, so it may be read-only
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        raw = torch.frombuffer(piece, dtype=torch.uint8)
    if raw.data_ptr() % entry.dtype.itemsize:
        raw = raw.clone()
    return raw.view(entry.dtype).view(entry.shape)


def _entry(name: str, raw: Any) -> Entry:
    if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
        raise BundleFormatError(f"{name[:40]!r}: a tensor has dtype, shape and data_offsets")
    dtype = _DTYPES.get(raw["dtype"]) if isinstance(raw["dtype"], str) else None
    if dtype is None:
        raise BundleFormatError(
            f"{name[:40]!r}: dtype {str(raw['dtype'])[:20]!r}; use one of {', '.join(_DTYPES)}"
        )
    shape, offsets = raw["shape"], raw["data_offsets"]
    if not _naturals(shape) or len(shape) > MAX_AXES:
        raise BundleFormatError(f"{name[:40]!r}: shape {str(shape)[:60]}; up to {MAX_AXES} sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise BundleFormatError(f"{name[:40]!r}: data_offsets {str(offsets)[:60]}; [begin, end]")
    size = math.prod(shape) * dtype.itemsize
    if size != offsets[1] - offsets[0]:
        raise BundleFormatError(
            f"{name[:40]!r}: {raw['dtype']} of shape {shape} takes {size:,} bytes, "
            f"its data_offsets have {offsets[1] - offsets[0]:,}"
        )
    return Entry(dtype, tuple(shape), *offsets)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _check_tiles(entries: Mapping[str, Entry], room: int) -> None:
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.begin != at:
            raise BundleFormatError(
                f"{name[:40]!r} begins at byte {entry.begin:,}, not at {at:,}: tensors must follow "
                "one another without gaps"
            )
        at = entry.end
    if at != room:
        raise BundleFormatError(
            f"the tensors take {at:,} bytes, the file has {room:,} after its header: cut off, or "
            "something was appended"
        )
