"""Views of one buffer: they alias what they must, and nothing else."""

from __future__ import annotations

import pytest
import torch

from kdalab.errors import KdalabError
from kdalab.memory import BlockBuffer

TOKENS, LATENT, RECURRENT, CONV = 8, 20, (2, 3, 4), (5, 3)
KV_BYTES, STATE_BYTES = TOKENS * LATENT * 4, 96 + 32  # 640; conv in bf16, with 2 bytes to spare


def layers(kind: str) -> tuple[BlockBuffer, list[torch.Tensor], list[list[torch.Tensor]]]:
    """Two attention layers, two KDA layers; in the padded layout all pages have one size."""
    page = KV_BYTES if kind == "padded" else None
    buffer = BlockBuffer(6, 2 * KV_BYTES, page)
    step = KV_BYTES if kind == "padded" else STATE_BYTES
    kv = [buffer.kv(i * KV_BYTES, TOKENS, LATENT, torch.float32) for i in range(2)]
    state = [
        list(buffer.state(i * step, RECURRENT, CONV, torch.float32, torch.bfloat16))
        for i in range(2)
    ]
    return buffer, kv, state


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_what_is_written_to_one_block_is_read_there_and_nowhere_else(kind: str) -> None:
    _, kv, state = layers(kind)
    want: list[tuple[torch.Tensor, int, torch.Tensor]] = []
    for b in range(6):
        for view in kv if b % 2 else [x for pair in state for x in pair]:
            value = torch.randn(view.shape[1:]).to(view.dtype)
            view[b] = value
            want.append((view, b, value))
    for view, b, value in want:
        assert torch.equal(view[b], value)


def test_a_layer_s_pages_are_in_a_row_when_padded_and_a_stride_apart_when_packed() -> None:
    padded, packed = layers("padded")[1][1], layers("packed")[1][1]
    assert padded.is_contiguous()
    assert not packed.is_contiguous()
    assert packed.stride(0) * 4 == 2 * KV_BYTES


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_a_copy_moves_the_real_bytes_of_one_layer_only(kind: str) -> None:
    buffer, _, state = layers(kind)
    before = buffer.bytes.clone()
    recurrent, conv = state[1]
    recurrent[2], conv[2] = torch.randn(RECURRENT), torch.randn(CONV).bfloat16()
    offset = KV_BYTES if kind == "padded" else STATE_BYTES
    changed = buffer.bytes.clone()
    buffer.copy(2, 4, offset, 96 + 30)
    assert torch.equal(recurrent[4], recurrent[2])
    assert torch.equal(conv[4], conv[2])
    assert int((buffer.bytes != changed).sum()) <= 126
    assert int((buffer.bytes != before).sum()) <= 252


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_both_layouts_hold_the_same_values_bit_for_bit(kind: str) -> None:
    torch.manual_seed(0)
    _, kv, _ = layers(kind)
    plain = [torch.full(v.shape, float("nan")) for v in kv]
    for b in (1, 3):
        for view, copy in zip(kv, plain, strict=True):
            value = torch.randn(view.shape[1:])
            view[b], copy[b] = value, value
    for view, copy in zip(kv, plain, strict=True):
        assert torch.equal(view[[1, 3]] @ view[[1, 3]].mT, copy[[1, 3]] @ copy[[1, 3]].mT)


def test_unwritten_bytes_are_no_numbers() -> None:
    _, kv, state = layers("packed")
    for view in (kv[0], *state[0]):
        assert torch.isnan(view).all()


def test_pages_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KdalabError, match="bytes are there"):
        BlockBuffer(2, 64).kv(32, 3, 3, torch.float32)
    with pytest.raises(KdalabError, match="do not fill a block"):
        BlockBuffer(2, 64, 48)
    with pytest.raises(KdalabError, match="inside a page"):
        BlockBuffer(2, 64, 32).kv(16, 1, 1, torch.float32)
    with pytest.raises(KdalabError, match="no whole elements"):
        BlockBuffer(2, 64).kv(2, 1, 1, torch.float32)
