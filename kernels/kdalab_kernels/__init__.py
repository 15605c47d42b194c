"""The operations of Kimi Delta Attention: a specification and fast paths behind one name each.

    from kdalab_kernels import chunk_kda
    o, state = chunk_kda(q, k, v, g, beta, output_final_state=True)

Every op takes ``backend="auto" | "torch" | "triton" | "reference"``; see :mod:`.dispatch`.
"""

from kdalab_kernels.activations import sigmoid, silu, tanh
from kdalab_kernels.decode_ops import (
    causal_conv1d_update_inplace,
    causal_conv1d_verify,
    commit_verified_inplace,
    fused_recurrent_kda_inplace,
    fused_recurrent_kda_verify,
)
from kdalab_kernels.dispatch import backends_of, has_triton
from kdalab_kernels.layer_ops import (
    causal_conv1d,
    causal_conv1d_update,
    fused_kda_gate,
    kda_gate_chunk_cumsum,
    l2norm,
)
from kdalab_kernels.mla_ops import mla_decode_paged, mla_prefill_paged
from kdalab_kernels.ops import chunk_kda, fused_recurrent_kda
from kdalab_kernels.page_ops import (
    gather_pages,
    gather_shard,
    scatter_pages_inplace,
    scatter_shard_inplace,
)
from kdalab_kernels.quantized import CheckpointBuffers, QuantizedStates
from kdalab_kernels.reference import (
    naive_causal_conv1d,
    naive_chunk_kda,
    naive_kda_gate,
    naive_kda_lowerbound_gate,
    naive_recurrent_kda,
)
from kdalab_kernels.snapshot_ops import snapshot_states_inplace
from kdalab_kernels.state_ops import (
    dequantize_states,
    load_checkpoints_inplace,
    quantize_states,
    store_checkpoints_inplace,
)
from kdalab_kernels.summary_ops import AffineSummary, apply, chunk_summary, compose
from kdalab_kernels.tp import ShardPiece, TpRank, reslice_conv, reslice_states

__all__ = [
    "AffineSummary",
    "CheckpointBuffers",
    "QuantizedStates",
    "ShardPiece",
    "TpRank",
    "apply",
    "backends_of",
    "causal_conv1d",
    "causal_conv1d_update",
    "causal_conv1d_update_inplace",
    "causal_conv1d_verify",
    "chunk_kda",
    "chunk_summary",
    "commit_verified_inplace",
    "compose",
    "dequantize_states",
    "fused_kda_gate",
    "fused_recurrent_kda",
    "fused_recurrent_kda_inplace",
    "fused_recurrent_kda_verify",
    "gather_pages",
    "gather_shard",
    "has_triton",
    "kda_gate_chunk_cumsum",
    "l2norm",
    "load_checkpoints_inplace",
    "mla_decode_paged",
    "mla_prefill_paged",
    "naive_causal_conv1d",
    "naive_chunk_kda",
    "naive_kda_gate",
    "naive_kda_lowerbound_gate",
    "naive_recurrent_kda",
    "quantize_states",
    "reslice_conv",
    "reslice_states",
    "scatter_pages_inplace",
    "scatter_shard_inplace",
    "sigmoid",
    "silu",
    "snapshot_states_inplace",
    "store_checkpoints_inplace",
    "tanh",
]
