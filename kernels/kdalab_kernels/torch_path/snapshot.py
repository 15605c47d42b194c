"""States at boundaries inside a prefill: one gather for the states, one for the windows."""

import torch

from kdalab_kernels.snapshot_call import SnapshotCall


def snapshot_states_inplace(call: SnapshotCall) -> None:
    """As :func:`kdalab_kernels.snapshot_states_inplace`, for checked arguments."""
    used = (call.slots >= 0).nonzero()[:, 0]
    inner = used[call.chunk[used] >= 0]
    ends = used[call.chunk[used] < 0]
    call.states_pool[call.slots[inner]] = call.h[call.chunk[inner]]
    call.states_pool[call.slots[ends]] = call.final_state[call.sequence[ends]]

    W1 = call.conv_pool.shape[1]
    at = call.boundary[used, None] + torch.arange(-W1, 0, device=used.device)  # [M, W - 1]
    for i in range(W1):
        new = at[:, i] >= 0
        rows, old = used[new], used[~new]
        call.conv_pool[call.slots[rows], i] = call.x[call.first[rows] + at[new, i]]
        call.conv_pool[call.slots[old], i] = call.conv_initial[call.sequence[old], W1 + at[~new, i]]
