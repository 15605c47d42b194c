"""The hybrid network: takes states in and gives states out; keeps none."""

from kdalab.model.config import KimiLinearConfig
from kdalab.model.network import CELL, CellOutput, DecodeOutput, HybridModel
from kdalab.model.tiny import (
    TINY_MODELS,
    named_model,
    tiny_config,
    tiny_k3_config,
    tiny_k3_model,
    tiny_model,
)
from kdalab.model.tokenizer import ByteTokenizer
from kdalab.model.verify import VerifyOutput, verify_tokens
from kdalab.model.vision import (
    VisionEncoder,
    encoder_fingerprint,
    image_digest,
    n_positions,
)
from kdalab.model.weights import load_pretrained, save_pretrained

__all__ = [
    "CELL",
    "TINY_MODELS",
    "ByteTokenizer",
    "CellOutput",
    "DecodeOutput",
    "HybridModel",
    "KimiLinearConfig",
    "VerifyOutput",
    "VisionEncoder",
    "encoder_fingerprint",
    "image_digest",
    "load_pretrained",
    "n_positions",
    "named_model",
    "save_pretrained",
    "tiny_config",
    "tiny_k3_config",
    "tiny_k3_model",
    "tiny_model",
    "verify_tokens",
]
