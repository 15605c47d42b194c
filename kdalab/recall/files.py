"""Weights on disk: one folder a network, as ``kdalab.model.load_pretrained`` reads it.

Embedding and head hold numbers that fp16 can hold, and are saved in it; what was trained is saved
in fp32. The safetensors metadata says what made the file.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise

from kdalab.errors import KdalabError
from kdalab.model import HybridModel, load_pretrained
from kdalab.recall.networks import TITLES, config_of
from kdalab.recall.training import Trained

SHIPPED = Path(__file__).resolve().parent / "weights"
"""The weights that come with the package."""

WEIGHTS, CONFIG = "model.safetensors", "config.json"

FIXED = ("model.embed_tokens.weight", "lm_head.weight")
"""Part of the task, not trained."""

METADATA = (
    "format",
    "network",
    "command",
    "seed",
    "steps",
    "parameters",
    "seconds",
    "torch",
    "task",
)
"""Keys of the metadata; all values are text, as safetensors wants."""


def command_for(trained: Trained) -> str:
    """The command that makes these weights."""
    return (
        f"kdalab train recall --network {trained.name} "
        f"--steps {trained.plan.steps} --seed {trained.plan.seed}"
    )


def check_free(folder: Path, names: list[str], force: bool) -> None:
    """Raises KdalabError when saving would overwrite something and ``force`` is off."""
    if folder.exists() and not folder.is_dir():
        raise KdalabError(f"{folder} is a file; give a folder for the weights")
    taken = [p for n in names for p in (folder / n / WEIGHTS, folder / n / CONFIG) if p.exists()]
    if taken and not force:
        raise KdalabError(
            f"{taken[0]} exists; give another folder with --out, or --force to overwrite it"
        )


def save(trained: Trained, folder: Path, force: bool = False) -> Path:
    """Write ``folder/name/{model.safetensors, config.json}``; return the safetensors file.

    Each file appears whole or not at all.

    Raises:
        KdalabError: a file is there already, and ``force`` is off.
    """
    check_free(folder, [trained.name], force)
    target = folder / trained.name
    target.mkdir(parents=True, exist_ok=True)
    metadata = {
        "format": "pt",
        "network": trained.name,
        "command": command_for(trained),
        "seed": str(trained.plan.seed),
        "steps": str(trained.plan.steps),
        "parameters": str(trained.parameters),
        "seconds": f"{trained.seconds:.0f}",
        "torch": str(torch.__version__),
        "task": "multi-query associative recall, kdalab.recall.task",
    }
    tensors = {
        name: (x.half() if name in FIXED else x).contiguous() for name, x in trained.weights.items()
    }
    raw = config_of(trained.name).to_hf() | {"dtype": "float32"}
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=target) as scratch:
        # As bytes: the library's own writer makes files that only their owner can read.
        (Path(scratch) / WEIGHTS).write_bytes(serialise(tensors, metadata=metadata))
        (Path(scratch) / CONFIG).write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        for name in (CONFIG, WEIGHTS):
            os.replace(Path(scratch) / name, target / name)
    return target / WEIGHTS


def read_metadata(name: str, folder: Path | None = None) -> dict[str, str]:
    """What made the weights of network ``name``; the shipped ones by default.

    Raises:
        KdalabError: an unknown name, no such file, or a file of another kind.
    """
    file = _folder_of(name, folder) / WEIGHTS
    try:
        with safe_open(file, "pt") as f:
            found = f.metadata() or {}
    except SafetensorError as error:
        raise KdalabError(f"{file} cannot be read as safetensors: {error}") from error
    missing = [key for key in METADATA if key not in found]
    if missing or found["network"] != name:
        what = f"lacks {missing[0]!r}" if missing else f"is of network {found['network']!r}"
        raise KdalabError(f"{file}: its metadata {what}; write it with `kdalab train recall`")
    return dict(found)


def load(name: str, folder: Path | None = None) -> HybridModel:
    """The trained network as the project's own inference network, in fp32.

    Args:
        name: ``kda``, ``hybrid`` or ``mla``.
        folder: where ``kdalab train recall`` wrote to; None for the shipped weights.

    Raises:
        KdalabError: an unknown name, missing or damaged files, or weights of another shape.
    """
    read_metadata(name, folder)
    model = load_pretrained(_folder_of(name, folder), dtype=torch.float32)
    if model.config != config_of(name):
        raise KdalabError(f"the config in {_folder_of(name, folder)} is not that of {TITLES[name]}")
    return model


def _folder_of(name: str, folder: Path | None) -> Path:
    config_of(name)  # names the allowed ones
    found = (SHIPPED if folder is None else folder) / name
    if not (found / WEIGHTS).is_file():
        raise KdalabError(
            f"no weights in {found}; make them with "
            f"`kdalab train recall --network {name} --out {found.parent}`"
        )
    return found
