"""Decode and speculative verify against pools of states, by slot.

Axes: N rows (sequences) of T tokens, H query/key heads, HV value heads, K and V head dimensions,
W conv width, D conv channels. Pools are V-first and may be views of a pool with a layer axis:
``pool[:, layer]``. A row of slot -1 is padding: its outputs are 0 and no state is touched.
"""

import torch

from kdalab_kernels import checks, slot_checks
from kdalab_kernels.aliasing import apart
from kdalab_kernels.call import KdaCall
from kdalab_kernels.dispatch import implementation
from kdalab_kernels.ops import checked_call
from kdalab_kernels.slot_checks import Slots


def fused_recurrent_kda_inplace(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    slots: Slots,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> torch.Tensor:
    """A decode step: every row advances the state in its slot, in place.

    Args:
        q, k: ``[N, T, H, K]``, T at least 1 (1 in plain decode).
        v: ``[N, T, HV, V]``.
        g: ``[N, T, HV, K]``; beta: ``[N, T, HV]``.
        states: pool ``[slots, HV, V, K]``, V-first, any floating dtype. The arithmetic is float32
            (float64 for float64 inputs); a narrower pool is rounded once a call. No other
            argument may share memory with it.
        slots: ``[N]`` integers: the slot of each row, each at most once, or -1 for padding.
        A_log .. lower_bound: as in :func:`kdalab_kernels.fused_recurrent_kda`.
        check_slots: False skips the check of the numbers, which on an accelerator makes the host
            wait (and cannot be made while a graph is captured). Slots out of range are then treated
            as -1 by the triton kernel, and two rows of one slot race.

    Returns:
        o ``[N, T, HV, V]`` in v's dtype. The bits of a row do not depend on the other rows.

    Raises:
        ValueError: naming the argument; no state has been touched then.
    """
    call, index = _checked_decode(
        (q, k, v, g, beta),
        states,
        slots,
        (A_log, dt_bias, scale, lower_bound),
        (use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        check_slots,
        distinct=True,
    )
    tokens = (("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta))
    apart((("states", states),), (*tokens, ("A_log", A_log), ("dt_bias", dt_bias)))
    run = implementation("fused_recurrent_kda_inplace", backend, q.device, q.dtype)
    o: torch.Tensor = run(call, states, index)
    return o


def fused_recurrent_kda_verify(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    states: torch.Tensor,
    slots: Slots,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """T drafted tokens a row against the state in its slot, which is only read.

    Arguments as :func:`fused_recurrent_kda_inplace`; several rows may read one slot (branches of a
    draft).

    Returns:
        o ``[N, T, HV, V]``, and the state after every token ``[N, T, HV, V, K]`` in the pool's
        dtype: for :func:`commit_verified_inplace`, once it is known how many were accepted.
    """
    call, index = _checked_decode(
        (q, k, v, g, beta),
        states,
        slots,
        (A_log, dt_bias, scale, lower_bound),
        (use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
        check_slots,
        distinct=False,
    )
    run = implementation("fused_recurrent_kda_verify", backend, q.device, q.dtype)
    o, kept = run(call, states, index)
    return o, kept


def commit_verified_inplace(
    states: torch.Tensor,
    conv_states: torch.Tensor,
    slots: Slots,
    intermediate: torch.Tensor,
    conv_windows: torch.Tensor,
    accepted: Slots,
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> None:
    """Move every slot to the state after its last accepted token, recurrent and conv together.

    Args:
        states: pool ``[slots, HV, V, K]``; with ``[slots, L, HV, V, K]`` all layers move at once.
        conv_states: pool ``[slots, W - 1, D]`` (``[slots, L, W - 1, D]``). Neither pool may share
            memory with another argument.
        slots: ``[N]``, each at most once, or -1.
        intermediate: ``[N, T, ..]`` of states' dtype, from :func:`fused_recurrent_kda_verify`.
        conv_windows: ``[N, T, ..]`` of conv_states' dtype, from :func:`causal_conv1d_verify`.
        accepted: ``[N]`` integers in 0..T: 0 leaves both as they are, j takes the state after
            token j.

    Raises:
        ValueError: naming the argument; nothing has been written then.
    """
    checks.flag("check_slots", check_slots)
    for name, x in (("states", states), ("conv_states", conv_states)):
        if checks.floating(name, x).ndim < 3:
            raise ValueError(f"{name}: expected shape [slots, ..], given {list(x.shape)}")
    N, T = (
        intermediate.shape[:2] if checks.floating("intermediate", intermediate).ndim > 1 else (0, 0)
    )
    index = slot_checks.slots(
        "slots", slots, len(states), states.device, N, distinct=True, host=check_slots
    )
    pairs = (
        ("states", states, "intermediate", intermediate),
        ("conv_states", conv_states, "conv_windows", conv_windows),
    )
    if conv_states.ndim != states.ndim - 1 or len(conv_states) != len(states):
        raise ValueError(
            f"conv_states: expected as many slots and layers as states {list(states.shape)}, "
            f"given {list(conv_states.shape)}"
        )
    for pool_name, pool, name, kept in pairs:
        slot_checks.pool(pool_name, pool, "[slots, ..]", tuple(pool.shape))
        checks.shaped(name, kept, "[N, T, ..]", (N, T, *pool.shape[1:]))
        if kept.dtype != pool.dtype:
            raise ValueError(f"{name}: expected dtype {pool.dtype}, given {kept.dtype}")
        checks.same_place(("states", states), (pool_name, pool), (name, kept))
    count = slot_checks.integers("accepted", accepted, "[N]", (N,)).to(states.device)
    if check_slots and N and not bool(((count >= 0) & (count <= T)).all()):
        raise ValueError(f"accepted: expected numbers from 0 to T={T}, given {count.tolist()}")
    apart(
        (("states", states), ("conv_states", conv_states)),
        (("intermediate", intermediate), ("conv_windows", conv_windows)),
    )
    run = implementation("commit_verified_inplace", backend, states.device, states.dtype)
    run(states, conv_states, index, intermediate, conv_windows, count.contiguous())


def causal_conv1d_update_inplace(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = "silu",
    slots: Slots = (),
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> torch.Tensor:
    """A decode step of the short convolution: every row advances the window in its slot, in place.

    Args:
        x: ``[N, D]`` for one token a row, or ``[N, T, D]``.
        states: pool ``[slots, W - 1, D]`` of raw inputs, oldest first; it shares no memory with
            another argument.
        weight, bias, activation: as in :func:`kdalab_kernels.causal_conv1d`.
        slots, check_slots: as in :func:`fused_recurrent_kda_inplace`.

    Returns:
        y in x's shape and dtype; 0 in rows of slot -1.
    """
    x3, index = _checked_conv(x, states, weight, bias, activation, slots, check_slots, True)
    apart((("states", states),), (("x", x), ("weight", weight), ("bias", bias)))
    run = implementation("causal_conv1d_update_inplace", backend, x.device, x.dtype)
    y: torch.Tensor = run(x3, states, weight, bias, activation, index)
    return y[:, 0] if x.ndim == 2 else y


def causal_conv1d_verify(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = "silu",
    slots: Slots = (),
    *,
    check_slots: bool = True,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The short convolution of drafted tokens ``[N, T, D]``; the pool is only read.

    Returns:
        y ``[N, T, D]`` and the window after every token ``[N, T, W - 1, D]`` in the pool's dtype.
    """
    x3, index = _checked_conv(x, states, weight, bias, activation, slots, check_slots, False)
    run = implementation("causal_conv1d_verify", backend, x.device, x.dtype)
    y, windows = run(x3, states, weight, bias, activation, index)
    return y, windows


def _checked_decode(
    tokens: tuple[torch.Tensor, ...],
    states: torch.Tensor,
    slots: Slots,
    gate: tuple[torch.Tensor | None, torch.Tensor | None, float | None, float | None],
    flags: tuple[bool, bool, bool, bool],
    check_slots: bool,
    distinct: bool,
) -> tuple[KdaCall, torch.Tensor]:
    q, k, v, g, beta = tokens
    checks.flag("check_slots", check_slots)
    checks.qkvgb(q, k, v, g, beta)
    (N, _, HV, V), K = v.shape, k.shape[3]
    slot_checks.pool("states", states, "[slots, HV, V, K]", (None, HV, V, K))
    checks.same_place(("k", k), ("states", states))
    index = slot_checks.slots(
        "slots", slots, len(states), states.device, N, distinct=distinct, host=check_slots
    )
    A_log, dt_bias, scale, lower_bound = gate
    l2norm, gate_in_kernel, sigmoid, negative = flags
    call = checked_call(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        scale=scale,
        initial_state=None,
        output_final_state=False,
        use_qk_l2norm_in_kernel=l2norm,
        use_gate_in_kernel=gate_in_kernel,
        use_beta_sigmoid_in_kernel=sigmoid,
        allow_neg_eigval=negative,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        state_v_first=True,
        cu_seqlens=None,
        state_dtypes=checks.FLOATS,
    )
    return call, index


def _checked_conv(
    x: torch.Tensor,
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    slots: Slots,
    check_slots: bool,
    distinct: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    checks.flag("check_slots", check_slots)
    x3 = x[:, None] if checks.floating("x", x).ndim == 2 else x
    checks.conv_inputs(x3, weight, bias, activation, None)
    D, W = weight.shape
    slot_checks.pool("states", states, "[slots, W - 1, D]", (None, W - 1, D))
    checks.same_place(("x", x), ("states", states), ("weight", weight), ("bias", bias))
    index = slot_checks.slots(
        "slots", slots, len(states), x.device, x3.shape[0], distinct=distinct, host=check_slots
    )
    return x3, index
