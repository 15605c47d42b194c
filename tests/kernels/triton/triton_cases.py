"""Where the Triton tests run: on a GPU if there is one, else in Triton's interpreter."""

import torch

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
