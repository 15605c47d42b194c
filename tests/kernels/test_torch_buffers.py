"""Working memory that the chunk form keeps between calls: it must leave no trace in a result."""

from concurrent.futures import ThreadPoolExecutor

import torch
from kernel_cases import inputs

from kdalab_kernels import chunk_kda
from kdalab_kernels.torch_path import chunk


def fresh(x):
    chunk._KEPT.buffers = None
    return chunk_kda(*x, output_final_state=True)


def test_what_an_earlier_call_left_changes_no_bit():
    small, large = (inputs(1, T, 2, 2, 32, 48, dtype=torch.float32) for T in (40, 300))
    expected = [fresh(x) for x in (small, large)]
    fresh(large)
    kept = chunk._KEPT.buffers
    squares = (kept.all.Aqk, kept.all.T)
    for t in kept.all:
        if not any(t is square for square in squares):
            t.fill_(torch.nan)
    for square, above in zip(squares, (1, 0), strict=True):  # the rest is as it was made
        square.masked_fill_(torch.ones(square.shape[1:]).tril(above - 1).bool(), torch.nan)
    for _, pairs in kept._parts.values():
        for level in pairs:
            for t in (level.products, level.half, level.whole):
                t.fill_(torch.nan)
    for x, (o, S) in zip((small, large), expected, strict=True):
        again = chunk_kda(*x, output_final_state=True)
        assert torch.equal(again[0], o)
        assert torch.equal(again[1], S)
    assert chunk._KEPT.buffers is kept


def test_a_result_is_not_overwritten_by_the_next_call():
    x, y = (inputs(1, 64, 2, 2, 32, 48, dtype=torch.float32, seed=s) for s in (0, 1))
    o, S = chunk_kda(*x, output_final_state=True)
    copies = o.clone(), S.clone()
    chunk_kda(*y, output_final_state=True)
    assert torch.equal(o, copies[0])
    assert torch.equal(S, copies[1])


def test_buffers_made_in_inference_mode_serve_outside_it_and_back():
    x = inputs(1, 64, 2, 2, 32, 48, dtype=torch.float32)
    with torch.inference_mode():
        inside = fresh(x)[0]
    outside = chunk_kda(*x)[0]
    with torch.inference_mode():
        again = chunk_kda(*x)[0]
    assert torch.equal(inside.clone(), outside)
    assert torch.equal(again.clone(), outside)


def test_threads_do_not_share_buffers():
    xs = [inputs(1, 128, 2, 2, 32, 48, dtype=torch.float32, seed=s) for s in range(4)]
    expected = [chunk_kda(*x)[0] for x in xs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for o, right in zip(pool.map(lambda x: chunk_kda(*x)[0], xs), expected, strict=True):
                assert torch.equal(o, right)


def test_a_large_call_keeps_no_memory():
    x = inputs(1, 32, 1, 1, 8, 8, dtype=torch.float32)
    fresh(x)
    kept = chunk._KEPT.buffers
    chunk_kda(*inputs(1, 32, 1, 1, 8, 40000, dtype=torch.float32))
    assert chunk._KEPT.buffers is kept
