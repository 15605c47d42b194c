"""The executable specification: slow, differentiable, float64-capable, written to be read."""

from kdalab_kernels.reference.chunk import naive_chunk_kda
from kdalab_kernels.reference.conv import naive_causal_conv1d
from kdalab_kernels.reference.gate import naive_kda_gate, naive_kda_lowerbound_gate
from kdalab_kernels.reference.recurrent import naive_recurrent_kda

__all__ = [
    "naive_causal_conv1d",
    "naive_chunk_kda",
    "naive_kda_gate",
    "naive_kda_lowerbound_gate",
    "naive_recurrent_kda",
]
