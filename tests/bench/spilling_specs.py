"""Kernels that must fail the check: too many live values, too much shared memory, and an error."""

import triton
import triton.language as tl

from kdalab_kernels.triton_path.compile_specs import source, spec

__all__ = ["nothing", "source", "specs"]


@triton.jit
def _spills(x, y, N: tl.constexpr):
    # One warp keeps a matrix of N x N in registers and needs all of it twice.
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    a = tl.load(x + at)
    b = tl.load(y + at)
    for _ in range(2):
        a, b = a * tl.sum(b, 0)[None, :] + b, b * tl.sum(a, 1)[:, None] + a
    tl.store(x + at, a)
    tl.store(y + at, b)


@triton.jit
def _too_much_shared(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at), input_precision="tf32"))


@triton.jit
def _wrong(x):
    tl.store(x, no_such_name)  # noqa: F821


def specs():
    pointers = {"x": "*fp32", "y": "*fp32"}
    return [
        spec("spills", _spills, pointers, {"N": 64}, num_warps=1),
        spec("shared", _too_much_shared, {**pointers, "z": "*fp32"}, {"N": 256}, num_warps=8),
        spec("wrong", _wrong, {"x": "*fp32"}, {}),
    ]


def nothing():
    return []
