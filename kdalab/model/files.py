"""The files of a checkpoint folder: JSON, and tensors from safetensors.

Only safetensors are read; nothing is ever unpickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kdalab.errors import KdalabError
from kdalab.model.names import text_name
from kdalab.spec.strict_json import parse_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

KEPT_WIDE = ("A_log", "dt_bias", ".gate.weight", "e_score_correction_bias")
"""Ends of the names that stay in fp32 in a model of lower precision, as in transformers: decay
rates and the router's scores are sensitive to rounding."""

PACKED = ("_packed", "weight_scale", "_blocks", "_scales")
"""Ends of the names under which quantised weights are stored (mxfp4 and the like)."""


def dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """What a tensor of a model of ``dtype`` is kept in."""
    return torch.promote_types(dtype, torch.float32) if name.endswith(KEPT_WIDE) else dtype


def read_json(file: Path) -> Any:
    """The parsed content.

    Raises:
        KdalabError: it cannot be read, is not JSON, or states a key twice.
    """
    try:
        return parse_json(file.read_text(encoding="utf-8"), file)
    except KdalabError:
        raise
    except OSError as error:
        raise KdalabError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested without end
        raise KdalabError(f"{file} is not JSON: {error}") from error


def read_tensors(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every tensor of the language model, in the dtype that the network keeps it in.

    A multimodal checkpoint's vision tower and projector are left in their files.

    Raises:
        KdalabError: a file is missing, outside the folder or unreadable, holds other tensors than
            the index says, or a tensor is packed, not of floating-point numbers or not finite in
            its dtype; the message names it.
    """
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, torch.Tensor] = {}
    for file, indexed in _files(folder).items():
        if file.parent != folder:
            raise KdalabError(f"the index names {file}, outside the checkpoint's folder")
        if not file.is_file():
            raise KdalabError(f"{file.name} is missing from {folder}")
        try:
            with safe_open(file, "pt") as f:
                held = f.keys()
                if indexed is not None:
                    _refuse_other_content(file.name, set(held), indexed)
                names = [name for name in held if text_name(name) is not None]
                for name in names:
                    _refuse_packed(name)
                    if name in tensors:
                        raise KdalabError(f"{name} is in {file.name} and in another file as well")
                for name in names:
                    tensor = f.get_tensor(name)
                    if not tensor.is_floating_point():
                        raise KdalabError(
                            f"{name} is stored as {tensor.dtype}; only floating-point weights are "
                            "read here"
                        )
                    # A copy: views of the file start at any address, and products over weights
                    # that are not aligned may give a row other last bits at another place.
                    tensors[name] = tensor.to(dtype_of(name, dtype), copy=True)
                    _refuse_not_finite(name, file.name, tensors[name])
        except (SafetensorError, OSError) as error:
            raise KdalabError(f"{file} cannot be read as safetensors: {error}") from error
    return tensors


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """The files with weights, each with the names that the index gives it (None: no index)."""
    if not (folder / INDEX).is_file():
        return {folder / SINGLE: None}
    index = read_json(folder / INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise KdalabError(f"{INDEX} has no weight_map from tensors to file names")
    files: dict[Path, set[str] | None] = {}
    for place in sorted(set(places.values())):
        files[folder / place] = {name for name, where in places.items() if where == place}
    return files


def _refuse_other_content(file: str, held: set[str], indexed: set[str]) -> None:
    """An index and a shard that disagree come from two models, or from half a download."""
    absent, unknown = sorted(indexed - held), sorted(held - indexed)
    if absent:
        raise KdalabError(
            f"{INDEX} places {len(absent)} tensors in {file} that it does not hold, the first: "
            f"{absent[0]}; give the index that was saved with these files"
        )
    if unknown:
        raise KdalabError(
            f"{file} holds {len(unknown)} tensors that {INDEX} does not place there, the first: "
            f"{unknown[0]}; give the index that was saved with these files"
        )


def _refuse_packed(name: str) -> None:
    if name.endswith(PACKED):
        raise KdalabError(
            f"{name} is a packed, quantised weight (as Kimi K3's mxfp4 experts); this network "
            "reads bf16, fp16 or fp32 weights: give a checkpoint that was unpacked"
        )


def _refuse_not_finite(name: str, file: str, tensor: torch.Tensor) -> None:
    """One pass that makes no copy; where the value stands is looked for only if there is one."""
    if not tensor.numel() or all(bool(x.isfinite()) for x in torch.aminmax(tensor)):
        return
    wrong = (~tensor.isfinite()).nonzero()
    first = wrong[0].tolist()
    raise KdalabError(
        f"{name} in {file} has {len(wrong):,} values that are NaN or infinite in {tensor.dtype}, "
        f"the first {tensor[tuple(first)].item()} at {first}: the file is damaged, or the dtype "
        "too narrow for it"
    )
