"""The hybrid network: takes states in and gives states out; keeps none."""

from kdalab.model.config import KimiLinearConfig
from kdalab.model.network import CELL, CellOutput, DecodeOutput, HybridModel
from kdalab.model.tiny import tiny_config, tiny_model
from kdalab.model.tokenizer import ByteTokenizer
from kdalab.model.weights import load_pretrained, save_pretrained

__all__ = [
    "CELL",
    "ByteTokenizer",
    "CellOutput",
    "DecodeOutput",
    "HybridModel",
    "KimiLinearConfig",
    "load_pretrained",
    "save_pretrained",
    "tiny_config",
    "tiny_model",
]
