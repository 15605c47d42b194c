"""The model of a process, its tokenizer, and the identity of the states that it makes.

Each process computes its identity from what it has loaded: the weights' bytes, the tokenizer's
rules, dtypes and layouts. Two processes exchange states only if all of it is equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kdalab.errors import KdalabError
from kdalab.model import (
    TINY_MODELS,
    ByteTokenizer,
    HybridModel,
    KimiLinearConfig,
    load_pretrained,
    named_model,
    tiny_config,
    tiny_k3_config,
)
from kdalab.model.files import read_json
from kdalab.spec import StateIdentity
from kdalab.transfer.container import bytes_of
from kdalab.transfer.instance import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

TINY_CONFIGS = {"tiny": tiny_config, "tiny-k3": tiny_k3_config}
"""Configs of ``TINY_MODELS``, under the same names."""

TOKENIZER_FILES = ("tokenizer.json", "tiktoken.model", "tokenizer_config.json", "vocab.json")


class Tokenizer(Protocol):
    """Text to ids and back."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A model that can be served. ``tokenizer`` is None where a folder has none that can be read
    here: prompts are then token ids."""

    name: str
    model: HybridModel
    identity: StateIdentity
    tokenizer: Tokenizer | None

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt.

        Raises:
            KdalabError: there is no tokenizer.
        """
        if self.tokenizer is None:
            raise KdalabError(
                f"{self.name} has no tokenizer that can be read here; give the prompt as token ids"
            )
        return self.tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; empty without a tokenizer."""
        return self.tokenizer.decode(ids) if self.tokenizer is not None else ""


def dtype_of(name: str) -> torch.dtype:
    """A dtype by its name.

    Raises:
        KdalabError: another name.
    """
    if name not in DTYPES:
        raise KdalabError(f"dtype {name!r}; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def load(name: str, seed: int = 0, dtype: str = "fp32", decode_rows: int = 8) -> Loaded:
    """A tiny model by its name, or the folder of a Kimi Linear or Kimi K3 checkpoint.

    Raises:
        KdalabError: no such name or folder, or a checkpoint that cannot be read.
    """
    kind = dtype_of(dtype)
    folder = Path(name)
    if name in TINY_MODELS:
        model = named_model(name, seed, kind, decode_rows)
        tokenizer: Tokenizer | None = ByteTokenizer()
        fingerprint, shown, known = ByteTokenizer().fingerprint, name, name
    elif folder.is_dir():
        model = load_pretrained(folder, kind, decode_rows)
        tokenizer, fingerprint, shown = *_tokenizer_of(folder), folder.resolve().name
        # Not the folder's name: two machines may keep the same files under two names.
        known = "kimi-k3" if model.config.k3_switches else "kimi-linear"
    else:
        raise KdalabError(
            f"no model {name!r}: use {', '.join(TINY_MODELS)}, or the folder of a checkpoint"
        )
    identity = identity_of(
        model, name=known, model_version=weights_hash(model), tokenizer=fingerprint
    )
    return Loaded(shown, model, identity, tokenizer)


def hidden_of(name: str) -> int:
    """Width of a model that ``load`` would load, from its config alone.

    Raises:
        KdalabError: no such name or folder, or a config that cannot be read.
    """
    if name in TINY_CONFIGS:
        return TINY_CONFIGS[name]().hidden_size
    file = Path(name) / "config.json"
    if not file.is_file():
        raise KdalabError(
            f"no model {name!r}: use {', '.join(TINY_CONFIGS)}, or the folder of a checkpoint"
        )
    return KimiLinearConfig.from_hf(read_json(file)).hidden_size


def weights_hash(model: HybridModel) -> str:
    """SHA-256 over the config and every weight's name, shape, dtype and bytes, in hex.

    The config belongs to it: the same weights under another epsilon or scale compute other states.
    """
    running = hashlib.sha256(f"{model.config};".encode())
    for where, tensor in _tensors(model, "", set()):
        plain = tensor.detach().cpu().contiguous()
        running.update(f"{where} {list(plain.shape)} {plain.dtype};".encode())
        running.update(bytes_of(plain))
    return running.hexdigest()


def _tensors(part: Any, where: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that hangs on an object, with its path, in a fixed order."""
    if isinstance(part, torch.Tensor):
        yield where, part
        return
    if isinstance(part, list | tuple):
        for i, item in enumerate(part):
            yield from _tensors(item, f"{where}.{i}", seen)
        return
    if isinstance(part, dict):
        for key in sorted(part, key=str):
            yield from _tensors(part[key], f"{where}.{key}", seen)
        return
    if not type(part).__module__.startswith("kdalab") or id(part) in seen:
        return
    seen.add(id(part))
    names = list(getattr(part, "__dict__", {}))
    for kind in type(part).__mro__:
        slots = getattr(kind, "__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    for name in sorted(set(names)):
        if hasattr(part, name):
            yield from _tensors(getattr(part, name), f"{where}.{name}", seen)


def _tokenizer_of(folder: Path) -> tuple[Tokenizer | None, str]:
    """The tokenizer of a checkpoint folder, and the hash of its files."""
    running, found = hashlib.sha256(), False
    for name in TOKENIZER_FILES:
        file = folder / name
        if file.is_file():
            running.update(f"{name} ".encode() + file.read_bytes())
            found = True
    fingerprint = running.hexdigest() if found else "none"
    if not (folder / "tokenizer.json").is_file():
        return None, fingerprint
    try:
        from tokenizers import Tokenizer as Fast
    except ImportError:
        return None, fingerprint
    return _FastTokenizer(Fast.from_file(str(folder / "tokenizer.json"))), fingerprint


class _FastTokenizer:
    """A ``tokenizer.json`` through the tokenizers library."""

    def __init__(self, fast: Any) -> None:
        self.fast = fast

    def encode(self, text: str) -> list[int]:
        return list(self.fast.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.fast.decode(list(ids), skip_special_tokens=False))
