"""transformers' Kimi-Linear as an independent peer."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


@contextmanager
def _without_flas_warning() -> Iterator[None]:
    """transformers imports fla where it is installed, and fla warns that a CPU is no GPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"fla\.")
        yield


def transformers_missing() -> str:
    """Why transformers' ``KimiLinearForCausalLM`` cannot be used; "" when it can."""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed (pip install 'kdalab[bench]')"
    import transformers

    with _without_flas_warning():
        found = hasattr(transformers, "KimiLinearForCausalLM")  # imported when it is looked up
    if not found:
        return f"transformers {transformers.__version__} has no KimiLinear; 5.7 or newer has"
    return ""


@contextmanager
def torch_path() -> Iterator[None]:
    """Have transformers run its own torch implementation of KDA.

    Where the ``fla`` package is installed transformers prefers its Triton kernels, and those
    need a GPU. The functions it replaced stay reachable behind its wrappers.
    """
    from transformers.models.kimi_linear import modeling_kimi_linear as module

    names = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")
    kept = {name: getattr(module, name) for name in names}
    try:
        for name, function in kept.items():
            setattr(module, name, getattr(function, "__wrapped__", function))
        yield
    finally:
        for name, function in kept.items():
            setattr(module, name, function)


class TransformersPeer:
    """A ``KimiLinearForCausalLM`` loaded from a checkpoint folder, in fp32 on the CPU."""

    def __init__(self, path: str | Path) -> None:
        with _without_flas_warning():
            from transformers import KimiLinearForCausalLM
            from transformers.utils import logging as hf_logging

            hf_logging.set_verbosity_error()
            hf_logging.disable_progress_bar()
        with torch_path():
            self.network: Any = KimiLinearForCausalLM.from_pretrained(path).eval()

    @classmethod
    def of_weights(cls, weights: dict[str, torch.Tensor], config: Any) -> TransformersPeer:
        """The same weights as a model of ours, through a checkpoint on disk."""
        from kdalab.model import save_pretrained

        with tempfile.TemporaryDirectory() as folder:
            save_pretrained(weights, config, folder)
            return cls(folder)

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n_tokens, vocab]."""
        with torch_path():
            out: torch.Tensor = self.network(torch.as_tensor(tokens)[None]).logits[0]
        return out

    @torch.no_grad()
    def greedy(self, tokens: Sequence[int], n: int) -> list[int]:
        """The ``n`` most likely tokens after a prompt, by transformers' own ``generate``."""
        prompt = torch.as_tensor(tokens)[None]
        with torch_path():
            out = self.network.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=n,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        new: list[int] = out[0, prompt.shape[1] :].tolist()
        return new
