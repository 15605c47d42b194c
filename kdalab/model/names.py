"""Names of tensors: a multimodal checkpoint wraps the language model's in a prefix."""

from __future__ import annotations

WRAPPERS = (("language_model.", ""), ("model.language_model.", "model."))
"""Prefixes of the language model in a multimodal checkpoint, and what they stand for."""

NOT_TEXT = ("vision_tower.", "vision_model.", "mm_projector.", "multi_modal_projector.")
"""Prefixes of the parts of a multimodal checkpoint that see pictures."""


def text_name(name: str) -> str | None:
    """The name in the language model alone, or None for a tensor of the vision side."""
    if name.removeprefix("model.").startswith(NOT_TEXT):
        return None
    for prefix, short in WRAPPERS:
        if name.startswith(prefix):
            name = short + name.removeprefix(prefix)
    # transformers saves the dense layers' MLP under the experts' prefix as well.
    for part in ("gate_proj", "up_proj", "down_proj"):
        name = name.replace(f".block_sparse_moe.{part}.", f".mlp.{part}.")
    return name
