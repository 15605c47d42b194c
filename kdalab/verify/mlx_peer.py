"""mlx-lm's Kimi K3 as an independent peer: it shares no code with torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kdalab.model import KimiLinearConfig


def mlx_missing() -> str:
    """Why mlx-lm's ``kimi_k3`` cannot be used; "" when it can."""
    for package in ("mlx", "mlx_lm"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (pip install 'mlx[cpu]' mlx-lm)"
    try:
        import mlx.core  # noqa: F401

        found = importlib.util.find_spec("mlx_lm.models.kimi_k3")
    except ImportError as error:  # no backend for this machine, or another transformers
        return f"mlx-lm cannot be used here: {error}"
    return "" if found else "this mlx-lm has no kimi_k3; 0.32.2 has"


class MlxPeer:
    """mlx-lm's Kimi K3 with the same weights as a model of ours, in fp32 on the CPU."""

    def __init__(self, weights: Mapping[str, torch.Tensor], config: KimiLinearConfig) -> None:
        import mlx.core as mx
        from mlx_lm.models import kimi_k3

        mx.set_default_device(mx.cpu)
        mx.disable_compile()  # on a CPU it would call a C++ compiler for every new shape
        self.mx: Any = mx
        args = kimi_k3.ModelArgs.from_dict(config.to_hf())
        network = kimi_k3.Model(args)
        arrays = {name: mx.array(t.float().numpy()) for name, t in weights.items()}
        network.load_weights(list(network.sanitize(arrays).items()), strict=True)
        mx.eval(network.parameters())
        self.network: Any = network.eval()

    def logits(self, tokens: Sequence[int], pieces: Sequence[int] | None = None) -> torch.Tensor:
        """[n_tokens, vocab]; ``pieces`` are lengths of consecutive calls through mlx-lm's caches,
        and without them the sequence is one call."""
        cache = self.network.make_cache()
        return torch.cat(self._rows(list(tokens), pieces or [len(tokens)], cache))

    def states(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(recurrent [KDA layer, head, V, K], conv [KDA layer, W-1, q|k|v], latent [MLA layer,
        n_tokens, latent|rope]) after ``tokens``, as mlx-lm keeps them."""
        cache = self.network.make_cache()
        self._rows(list(tokens), [len(tokens)], cache)
        recurrent, conv, latent = [], [], []
        for layer, kept in zip(self.network.layers, cache, strict=True):
            if layer.is_linear:
                conv.append(self._torch(kept[0])[0])
                recurrent.append(self._torch(kept[1])[0])
            else:
                parts = [self._torch(t)[0, 0, : len(tokens)] for t in (kept.keys, kept.values)]
                latent.append(torch.cat(parts, -1))
        return torch.stack(recurrent), torch.stack(conv), torch.stack(latent)

    def _rows(self, tokens: list[int], pieces: Sequence[int], cache: Any) -> list[torch.Tensor]:
        rows, at = [], 0
        for piece in pieces:
            out = self.network(self.mx.array([tokens[at : at + piece]]), cache)
            rows.append(self._torch(out)[0])
            at += piece
        return rows

    def _torch(self, array: Any) -> torch.Tensor:
        import numpy as np

        return torch.from_numpy(np.array(array, dtype=np.float32))
