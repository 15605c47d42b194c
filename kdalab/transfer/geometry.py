"""The sizes of one model's states, which a bundle's own header cannot talk a receiver out of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdalab.transfer.bundle import Bundle
from kdalab.transfer.refusal import Refusal

if TYPE_CHECKING:
    from kdalab.model import HybridModel


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of the whole model.

    Args:
        recurrent: [KDA layer, value head, V, K].
        conv_inputs: W-1, the inputs that a conv state keeps.
        channels: conv channels of q, of k and of v.
        latent: (MLA layers, latent | rope channels).
    """

    recurrent: tuple[int, int, int, int]
    conv_inputs: int
    channels: tuple[int, int, int]
    latent: tuple[int, int]

    @classmethod
    def of(cls, model: HybridModel) -> Geometry:
        """Those of a model."""
        config, width = model.config, model.config.kda_width
        heads, size = config.linear_num_heads, config.linear_head_dim
        return cls(
            (model.n_kda_layers, heads, size, size),
            config.linear_conv_kernel_dim - 1,
            (width, width, width),
            (model.n_mla_layers, model.latent_dim),
        )

    def refusals(self, bundle: Bundle) -> list[Refusal]:
        """Sizes that are not this model's, in the bundle's own layout and for its own rank."""
        tp, identity = bundle.parallel.tp_size, bundle.identity
        layers, heads, v, k = self.recurrent
        inner = (v, k) if identity.recurrent_layout == "v_first" else (k, v)
        rows, width = self.conv_inputs, sum(self.channels) // tp
        conv = (rows, width) if identity.conv_layout == "time_first" else (width, rows)
        pages, _, tokens, _ = bundle.latent.shape
        found = []
        for name, ours, theirs in (
            ("channels", self.channels, bundle.channels),
            ("recurrent.shape", (layers, heads // tp, *inner), tuple(bundle.recurrent.shape)),
            ("conv.shape", (layers, *conv), tuple(bundle.conv.shape)),
            (
                "latent.shape",
                (pages, self.latent[0], tokens, self.latent[1]),
                tuple(bundle.latent.shape),
            ),
        ):
            if ours != theirs:
                found.append(Refusal(name, str(list(ours)), str(list(theirs))))
        return found
