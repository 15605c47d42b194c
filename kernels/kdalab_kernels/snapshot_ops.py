"""Snapshots inside a prefill: recurrent and conv state of any chunk boundary, into pool slots."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from kdalab_kernels import checks, slot_checks
from kdalab_kernels.aliasing import apart
from kdalab_kernels.dispatch import implementation
from kdalab_kernels.slot_checks import Slots
from kdalab_kernels.snapshot_call import SnapshotCall


def snapshot_states_inplace(
    states_pool: torch.Tensor,
    conv_pool: torch.Tensor,
    h: torch.Tensor,
    final_state: torch.Tensor,
    conv_inputs: torch.Tensor,
    conv_initial: torch.Tensor | None,
    sequences: Sequence[int],
    boundaries: Sequence[int],
    slots: Slots,
    cu_seqlens: torch.Tensor | None = None,
    chunk_size: int = 64,
    *,
    backend: str = "auto",
) -> None:
    """Keep the states that a prefill passed through: the two kinds together, at M boundaries.

    A boundary at the end of its sequence takes the final state. One inside takes ``h`` of the chunk
    that starts there, so it must lie on the chunk grid. The conv window at boundary b is the raw
    inputs ``b - (W - 1) .. b - 1``; before token 0 it reaches into conv_initial.

    Args:
        states_pool: ``[slots, HV, V, K]``, a pool or one layer of it.
        conv_pool: ``[slots, W - 1, D]``, W at least 1. Neither pool may share memory with another
            argument.
        h: ``[B, chunks, HV, V, K]`` from ``chunk_kda(.., return_intermediate_states=True,
            state_v_first=True)``, in the pool's dtype.
        final_state: ``[N, HV, V, K]`` of the same call.
        conv_inputs: ``[B, T, D]``, what the short convolution was given.
        conv_initial: ``[N, W - 1, D]``, its initial state; zeros when None.
        sequences, boundaries: M integers: which sequence, and how many of its tokens (0 .. its
            length) lie before the boundary.
        slots: ``[M]``, each at most once, or -1 to skip the boundary.
        cu_seqlens, chunk_size: as given to ``chunk_kda``.

    Raises:
        ValueError: naming the argument; nothing has been written then.
    """
    S = slot_checks.pool("states_pool", states_pool, "[slots, HV, V, K]", (None,) * 4)
    C = slot_checks.pool("conv_pool", conv_pool, "[slots, W - 1, D]", (len(S), None, None))
    checks.integer("chunk_size", chunk_size, 1)
    x = checks.floating("conv_inputs", conv_inputs)
    if x.ndim != 3 or x.shape[2] != C.shape[2]:
        raise ValueError(
            f"conv_inputs: expected shape [B, T, D] = [B, T, {C.shape[2]}], given {list(x.shape)}"
        )
    B, T, D = x.shape
    offsets = checks.sequence_offsets(cu_seqlens, B, T) or [n * T for n in range(B + 1)]
    N = len(offsets) - 1
    lengths = [end - start for start, end in pairwise(offsets)]
    chunks = [0]
    for length in lengths:
        chunks.append(chunks[-1] - (-length // chunk_size))
    rest = tuple(S.shape[1:])
    shape = (B, chunks[-1] // B if B else 0, *rest)
    checks.shaped("h", h, "[B, chunks, HV, V, K]", shape)
    checks.shaped("final_state", final_state, "[N, HV, V, K]", (N, *rest))
    if conv_initial is None:
        conv_initial = C.new_zeros(N, *C.shape[1:])
    checks.shaped("conv_initial", conv_initial, "[N, W - 1, D]", (N, *C.shape[1:]))
    same = (("h", h, S), ("final_state", final_state, S), ("conv_inputs", x, C))
    for name, given, pool in (*same, ("conv_initial", conv_initial, C)):
        if given.dtype != pool.dtype:
            raise ValueError(f"{name}: expected the pool's dtype {pool.dtype}, given {given.dtype}")
        checks.same_place(("states_pool", S), ("conv_pool", C), (name, given))
    at = slot_checks.integers("boundaries", boundaries, "[M]", (None,)).tolist()
    M = len(at)
    index = slot_checks.slots("slots", slots, len(S), S.device, M, distinct=True)
    owner = slot_checks.integers("sequences", sequences, "[M]", (M,)).tolist()
    sources = []
    for n, boundary in zip(owner, at, strict=True):
        if not 0 <= n < N:
            raise ValueError(f"sequences: expected numbers from 0 to {N - 1}, given {n}")
        length = lengths[n]
        if not 0 <= boundary <= length or (boundary % chunk_size and boundary != length):
            raise ValueError(
                f"boundaries: expected multiples of {chunk_size} up to the {length} tokens of "
                f"sequence {n}, or their end, given {boundary}"
            )
        sources.append(-1 if boundary == length else chunks[n] + boundary // chunk_size)

    apart(
        (("states_pool", S), ("conv_pool", C)),
        (
            ("h", h),
            ("final_state", final_state),
            ("conv_inputs", x),
            ("conv_initial", conv_initial),
        ),
    )

    def row(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=S.device)

    run = implementation("snapshot_states_inplace", backend, S.device, S.dtype)
    run(
        SnapshotCall(
            S,
            C,
            h.flatten(0, 1),
            final_state,
            x.reshape(B * T, D),
            conv_initial,
            index,
            row(owner),
            row(sources),
            row([offsets[n] for n in owner]),
            row(at),
        )
    )
