"""Where the Triton tests run: on a GPU if there is one, else in Triton's interpreter.

The variable must be set before a kernel's file is imported; the ops import those when first asked
for a Triton backend, so setting it while tests are collected is early enough.
"""

import os

import torch

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
if INTERPRETED:
    os.environ.setdefault("TRITON_INTERPRET", "1")
