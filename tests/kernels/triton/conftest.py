"""Triton kernels are tested on a GPU where there is one, else in Triton's interpreter.

The interpreter must be chosen before triton is imported, for the whole process, and other tests
import libraries with kernels of their own. So without a GPU the files of this folder are collected
only in a process that was started for them: ``test_in_interpreter.py`` starts one for each file. By
hand: ``TRITON_INTERPRET=1 pytest tests/kernels/triton``.
"""

import importlib.util
import os

import torch

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
installed = importlib.util.find_spec("triton")
if installed is None or installed.origin is None:
    collect_ignore_glob = ["test_*.py"]
elif interpreted or torch.cuda.is_available():
    collect_ignore_glob = ["test_in_interpreter.py"]
else:
    collect_ignore_glob = [
        name
        for name in os.listdir(os.path.dirname(__file__))
        if name.startswith("test_") and name != "test_in_interpreter.py"
    ]
