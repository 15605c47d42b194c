"""What one KDA call asks for, after the checks and before a backend: shared by every backend."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from kdalab_kernels.dispatch import implementation

L2NORM_EPS = 1e-6  # inside the square root, as in FLA and FlashKDA


class KdaResult(NamedTuple):
    """``o [B, T, HV, V]``; final state and intermediate states, or None where not asked for."""

    o: torch.Tensor
    final_state: torch.Tensor | None
    intermediate_states: torch.Tensor | None


class Activated(NamedTuple):
    """Inputs after the optional l2 norm, gate and sigmoid: what the recurrence itself eats."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


@dataclass(frozen=True, slots=True)
class KdaCall:
    """Checked arguments of ``chunk_kda`` / ``fused_recurrent_kda``; names as in the signatures."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    scale: float
    initial_state: torch.Tensor | None
    output_final_state: bool
    use_qk_l2norm_in_kernel: bool
    use_gate_in_kernel: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool
    lower_bound: float | None
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    state_v_first: bool
    cu_seqlens: list[int] | None  # on the host: the grids are laid out in Python
    return_intermediate_states: bool = False
    chunk_size: int = 64

    @property
    def dtype(self) -> torch.dtype:
        """Of the arithmetic and of the states: float64 for float64 q, else float32."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def N(self) -> int:
        """Number of sequences."""
        return self.q.shape[0] if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def HV(self) -> int:
        return self.v.shape[2]

    @property
    def K(self) -> int:
        return self.q.shape[3]

    @property
    def V(self) -> int:
        return self.v.shape[3]

    def activated(self, backend: str) -> Activated:
        """Inputs after l2 norm, gate and beta's sigmoid, each where asked for, as backend does."""
        q, k, g, beta = self.q, self.k, self.g, self.beta
        if self.use_qk_l2norm_in_kernel:
            norm = implementation("l2norm", backend, q.device)
            q, k = norm(q.to(self.dtype), L2NORM_EPS), norm(k.to(self.dtype), L2NORM_EPS)
        if self.use_gate_in_kernel:
            gate = implementation("fused_kda_gate", backend, g.device)
            g = gate(g, self.A_log, self.dt_bias, self.lower_bound, self.dtype)
        if self.use_beta_sigmoid_in_kernel:
            sigmoid = implementation("beta_sigmoid", backend, beta.device)
            beta = sigmoid(beta.to(self.dtype))
            beta = 2 * beta if self.allow_neg_eigval else beta
        return Activated(q, k, self.v, g, beta)

    def initial_states_k_first(self) -> torch.Tensor:
        """A fresh, contiguous ``[N, HV, K, V]`` copy to write into; zeros without initial state."""
        shape = (self.N, self.HV, self.K, self.V)
        if self.initial_state is None:
            return torch.zeros(shape, dtype=self.dtype, device=self.q.device)
        S = self.initial_state.transpose(-1, -2) if self.state_v_first else self.initial_state
        fresh = torch.empty(shape, dtype=self.dtype, device=self.q.device)
        return fresh.copy_(S)

    def sequences(self) -> Iterator[tuple[slice, slice]]:
        """(batch slice, token slice) of every sequence, in order."""
        if self.cu_seqlens is None:
            for n in range(self.q.shape[0]):
                yield slice(n, n + 1), slice(None)
        else:
            for start, end in pairwise(self.cu_seqlens):
                yield slice(0, 1), slice(start, end)

    def join(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """Outputs of :meth:`sequences`, back in the shape of v."""
        if not outputs:
            return torch.zeros_like(self.v)
        return torch.cat(outputs, dim=0 if self.cu_seqlens is None else 1)

    def result(
        self, o: torch.Tensor, final_k_first: torch.Tensor, starts: torch.Tensor | None = None
    ) -> KdaResult:
        """Put the states into the layout that was asked for and drop what was not."""
        final = final_k_first if self.output_final_state else None
        h = starts if self.return_intermediate_states else None
        if self.state_v_first:
            final = None if final is None else final.transpose(-1, -2).contiguous()
            h = None if h is None else h.transpose(-1, -2).contiguous()
        return KdaResult(o, final, h)


def summary_call(k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> KdaCall:
    """The call whose final state ``[B, HV, K, V + K]`` is ``[b | M]`` of the span.

    The state is widened by K columns that start as the identity and are written with v = 0. They
    come out as M; the V columns that start at 0 come out as b. What it is made of is at least
    float32: a product of many maps M magnifies the rounding of each.
    """
    B, _, _, K = k.shape
    HV, V = v.shape[2:]
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    start = torch.zeros(B, HV, K, V + K, dtype=dtype, device=k.device)
    start[..., V:].diagonal(dim1=-2, dim2=-1).fill_(1.0)
    k = k.to(dtype)
    return KdaCall(
        q=k,
        k=k,
        v=torch.nn.functional.pad(v.to(dtype), (0, K)),
        g=g,
        beta=beta,
        scale=1.0,
        initial_state=start,
        output_final_state=True,
        use_qk_l2norm_in_kernel=False,
        use_gate_in_kernel=False,
        use_beta_sigmoid_in_kernel=False,
        allow_neg_eigval=False,
        lower_bound=None,
        A_log=None,
        dt_bias=None,
        state_v_first=False,
        cu_seqlens=None,
    )
