"""States at boundaries inside a prefill: the specification, one boundary at a time."""

from kdalab_kernels.snapshot_call import SnapshotCall


def snapshot_states_inplace(call: SnapshotCall) -> None:
    """The ``reference`` backend of :func:`kdalab_kernels.snapshot_states_inplace`."""
    W1 = call.conv_pool.shape[1]
    for row in range(len(call.slots)):
        slot = int(call.slots[row])
        if slot < 0:
            continue
        chunk, sequence = int(call.chunk[row]), int(call.sequence[row])
        S = call.h[chunk] if chunk >= 0 else call.final_state[sequence]
        call.states_pool[slot] = S
        start, boundary = int(call.first[row]), int(call.boundary[row])
        for i in range(W1):
            at = boundary - W1 + i
            if at >= 0:
                call.conv_pool[slot, i] = call.x[start + at]
            else:
                call.conv_pool[slot, i] = call.conv_initial[sequence, W1 + at]
