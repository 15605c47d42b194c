"""Public activations whose bits do not depend on an element's place in its tensor.

A network that must give a token the same bits alone and in a batch uses these in place of
``torch.sigmoid`` and ``torch.nn.functional.silu``, which do not;
:mod:`kdalab_kernels.torch_path.elementwise` says why.
"""

from kdalab_kernels.torch_path.elementwise import sigmoid, silu, tanh

__all__ = ["sigmoid", "silu", "tanh"]
