"""Bit-exact copies of rows from any slots to any slots: all layers, two tensors, one launch.

Rows are copied as integers of the element's size, so that no NaN and no last bit can change on the
way. The second tensor lets recurrent and conv state travel in the same launch.
"""

import torch
import triton
import triton.language as tl

from kdalab_kernels.triton_path.compile_specs import CompileSpec, spec

BLOCK = 8192  # elements of a program
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def row_strides(name: str, x: torch.Tensor, lead: int) -> tuple[int, ...]:
    """Strides of the first ``lead`` axes, in elements; what lies behind them must be packed.

    Raises:
        ValueError: a row is not contiguous. Triton kernels address a row by its first element.
    """
    expected = 1
    for size, stride in reversed(list(zip(x.shape[lead:], x.stride()[lead:], strict=True))):
        if size > 1 and stride != expected:
            raise ValueError(
                f"{name}: backend='triton' expects the axes from {lead} on to be contiguous, "
                f"given strides {list(x.stride())} of shape {list(x.shape)}"
            )
        expected *= size
    return x.stride()[:lead]


@triton.jit
def copy_block(
    src, dst, src_row, dst_row, layer, block, size, src_strides, dst_strides, BLOCK: tl.constexpr
):
    """Block ``block`` of one (row, layer); strides are pairs (row, layer)."""
    offset = block * BLOCK + tl.arange(0, BLOCK)
    inside = offset < size
    source = src + src_row * src_strides[0] + layer * src_strides[1]
    target = dst + dst_row * dst_strides[0] + layer * dst_strides[1]
    tl.store(target + offset, tl.load(source + offset, mask=inside), mask=inside)


@triton.jit
def copy_rows_kernel(
    a_src,  # [rows, layers, a_size] by strides
    a_dst,
    b_src,  # [rows, layers, b_size] by strides
    b_dst,
    src_rows,  # [pairs]
    dst_rows,  # [pairs]
    n_src,  # rows there are: any other number skips the pair
    n_dst,
    a_size,
    b_size,
    a_src_row,
    a_src_layer,
    a_dst_row,
    a_dst_layer,
    b_src_row,
    b_src_layer,
    b_dst_row,
    b_dst_layer,
    BLOCK: tl.constexpr,
):
    a_blocks = tl.cdiv(a_size, BLOCK)
    blocks = a_blocks + tl.cdiv(b_size, BLOCK)
    pair, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    layer = tl.program_id(1).to(tl.int64)
    source, target = tl.load(src_rows + pair), tl.load(dst_rows + pair)
    live = (source >= 0) & (source < n_src) & (target >= 0) & (target < n_dst)
    if live:
        if block < a_blocks:
            copy_block(
                a_src,
                a_dst,
                source,
                target,
                layer,
                block,
                a_size,
                (a_src_row, a_src_layer),
                (a_dst_row, a_dst_layer),
                BLOCK,
            )
        else:
            copy_block(
                b_src,
                b_dst,
                source,
                target,
                layer,
                block - a_blocks,
                b_size,
                (b_src_row, b_src_layer),
                (b_dst_row, b_dst_layer),
                BLOCK,
            )


def copy_rows(
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor] | None,
    src_rows: torch.Tensor,
    dst_rows: torch.Tensor,
    names: tuple[str, str] = ("source", "target"),
) -> None:
    """``dst[dst_rows[i]] = src[src_rows[i]]`` for tensors ``[rows, layers, ..]``.

    Args:
        a, b: (source, target), equal in dtype and from axis 1 on; b may be None.
        src_rows, dst_rows: ``[pairs]`` int64; a pair with a number out of range is skipped.
    """
    L = a[0].shape[1]
    strides: list[int] = []
    flat: list[torch.Tensor] = []
    sizes: list[int] = []
    for pair in (a, b or (a[0][:, :, :0], a[1][:, :, :0])):
        for name, x in zip(names, pair, strict=True):
            strides += row_strides(name, x, 2)
            flat.append(x.view(BITS[x.element_size()]))
        sizes.append(pair[0][0, 0].numel() if pair[0].numel() else 0)
    block = min(BLOCK, triton.next_power_of_2(max(sizes[0], sizes[1], 1)))
    programs = len(src_rows) * sum(triton.cdiv(size, block) for size in sizes)
    if programs and L:
        copy_rows_kernel[(programs, L)](
            *flat,
            src_rows,
            dst_rows,
            a[0].shape[0],
            a[1].shape[0],
            *sizes,
            *strides,
            BLOCK=block,
            num_warps=8 if block >= 4096 else 4,
            num_stages=2,
        )


def SPECS() -> list[CompileSpec]:
    """float32 states beside bfloat16 conv windows."""
    types = {"a_src": "*i32", "a_dst": "*i32", "b_src": "*i16", "b_dst": "*i16"}
    types |= {"src_rows": "*i64", "dst_rows": "*i64", "n_src": "i32", "n_dst": "i32"}
    types |= {"a_size": "i32", "b_size": "i32"}
    for x in ("a", "b"):
        for side in ("src", "dst"):
            types |= {f"{x}_{side}_row": "i64", f"{x}_{side}_layer": "i64"}
    return [spec("copy_rows", copy_rows_kernel, types, {"BLOCK": BLOCK}, 8)]
