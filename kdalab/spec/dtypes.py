"""Element types by name and their size in bytes; no tensor library is needed to size a state."""

from __future__ import annotations

from kdalab.errors import KdalabError

_ITEMSIZE: dict[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}

# The spellings of torch, safetensors, Hugging Face configs and the engines' command lines.
_ALIASES: dict[str, str] = {
    "float64": "fp64",
    "double": "fp64",
    "f64": "fp64",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "f8_e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "f8_e5m2": "fp8_e5m2",
    "i8": "int8",
    "u8": "uint8",
}

DTYPES: tuple[str, ...] = tuple(_ITEMSIZE)


def canonical_dtype(name: object) -> str:
    """Return the short name of an element type (``"torch.bfloat16"`` -> ``"bf16"``).

    Accepts a string or anything whose ``str()`` names a type, so a ``torch.dtype`` works without
    importing torch here.

    Raises:
        KdalabError: the name is not a known element type of a whole number of bytes.
    """
    key = str(name).strip().lower().removeprefix("torch.")
    key = _ALIASES.get(key, key)
    if key not in _ITEMSIZE:
        raise KdalabError(
            f"unknown dtype {str(name)!r}; use one of {', '.join(DTYPES)} "
            "(torch and Hugging Face spellings such as bfloat16 work too)"
        )
    return key


def itemsize(name: object) -> int:
    """Bytes of one element of the named type.

    Raises:
        KdalabError: as :func:`canonical_dtype`.
    """
    return _ITEMSIZE[canonical_dtype(name)]
