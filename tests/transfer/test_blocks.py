"""Bundles between a radix engine and blocks: bit for bit the same, whichever way they go."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdalab.engine import BlockEngine, BlockEngineConfig, Engine, EngineConfig
from kdalab.engine.block import events as bl
from kdalab.engine.block.view import fold
from kdalab.errors import KdalabError, OutOfSlotsError
from kdalab.model import HybridModel, tiny_model
from kdalab.transfer import (
    Bundle,
    BundleRefusedError,
    export_prefix,
    export_request,
    identity_of,
    import_prefix,
    repage,
    resume_request,
)

MODEL = tiny_model()
PROMPT = [(7 * i + i * i // 5) % 256 for i in range(330)]
NEW = 9
SHAPES = [
    {},
    {"layout": "packed"},
    {"kernel_grid": 64, "unit": 64, "attention_block": 128},
    {"mode": "none"},
    {"cache_decoded": False},
    {"draft_tokens": 2},
]


def identity(model: HybridModel = MODEL, version: str = "seed-0") -> Any:
    return identity_of(model, name="tiny", model_version=version, tokenizer="bytes")


def tree(**changes: Any) -> Engine:
    config = EngineConfig(keep_logits=True, check_every_step=True, **changes)
    return Engine(MODEL, config, identity())


def blocks(version: str = "seed-0", **changes: Any) -> BlockEngine:
    config = BlockEngineConfig(keep_logits=True, check_every_step=True, **changes)
    return BlockEngine(MODEL, config, identity(version=version))


def alone() -> Any:
    engine = tree(reuse=False)
    request = engine.submit(PROMPT, NEW)
    engine.run()
    return request


ALONE = alone()


def same_end(request: Any, engine: Any) -> None:
    """The tokens of one engine, the last logits to the bit, and nothing held."""
    engine.run()
    assert request.generated == ALONE.generated
    assert torch.equal(request.logits[-1], ALONE.logits[-1])
    engine.check()
    if isinstance(engine, BlockEngine):
        assert fold(engine.events, engine.empty_view()) == engine.view()


def half_way(engine: Any, decoded: int) -> Any:
    """A request that has generated ``decoded`` tokens, or has prefilled a part (0)."""
    request = engine.submit(PROMPT, NEW)
    while len(request.generated) < decoded or not request.computed:
        engine.step()
    return request


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("decoded", [0, 5])
def test_a_request_goes_on_in_blocks_that_a_tree_began(shape: Any, decoded: int) -> None:
    source, target = tree(chunk_tokens=128), blocks(**shape)
    request = half_way(source, decoded)
    bundle = Bundle.from_bytes(export_request(source, request.name).to_bytes())
    came = resume_request(target, bundle, PROMPT, request.generated, NEW)
    same_end(came, target)
    installed = [e for e in target.events if isinstance(e, bl.Installed)]
    assert [e.boundary for e in installed] == [bundle.boundary]
    assert not any(
        getattr(e, "start", bundle.boundary) < bundle.boundary
        for e in target.events
        if type(e).__name__ == "Computed"
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_request_goes_on_in_a_tree_that_blocks_began(shape: Any) -> None:
    source, target = blocks(**shape), tree()
    request = half_way(source, 1)
    bundle = export_request(source, request.name)
    same_end(resume_request(target, bundle, PROMPT, request.generated, NEW), target)


@pytest.mark.parametrize("shape", [{}, {"layout": "packed", "attention_block": 128}], ids=str)
def test_what_blocks_know_already_is_shared_and_only_the_rest_is_written(shape: Any) -> None:
    source, target = tree(), blocks(**shape)
    target.submit(PROMPT[:300], 1)
    target.run()
    request = half_way(source, 2)
    came = resume_request(
        target, export_request(source, request.name), PROMPT, request.generated, NEW
    )
    same_end(came, target)
    assert came.restore >= 192
    again = export_prefix(target, PROMPT)
    assert again.to_bytes() == export_prefix(source, PROMPT, again.boundary).to_bytes()


def test_the_bundles_of_both_engines_are_equal_to_the_byte() -> None:
    ours, theirs = tree(), blocks(mode="all")
    for engine in (ours, theirs):
        engine.submit(PROMPT, 1)
        engine.run()
    a, b = export_prefix(ours, PROMPT[:256]), export_prefix(theirs, PROMPT, 256)
    assert a.boundary == b.boundary == 256
    assert a.to_bytes() == b.to_bytes()


@pytest.mark.parametrize(
    "shape", [{}, {"layout": "packed"}, {"draft_tokens": 2, "eagle": False}], ids=str
)
def test_a_prefix_of_a_tree_is_found_in_blocks(shape: Any) -> None:
    source, target = tree(), blocks(**shape)
    source.submit(PROMPT, 1)
    source.run()
    unit = target.cache.sizes.unit
    boundary = 256 // unit * unit
    bundle = export_prefix(source, PROMPT, boundary)
    event = import_prefix(target, bundle, PROMPT, source="tree")
    assert event is not None
    assert import_prefix(target, bundle, PROMPT) is None  # it is there now
    target.check()
    assert fold(target.events, target.empty_view()) == target.view()
    again = export_prefix(target, PROMPT, boundary)
    assert again.to_bytes() == bundle.to_bytes()
    request = target.submit(PROMPT, NEW)
    same_end(request, target)
    assert request.restore == boundary


def test_a_prefix_of_blocks_is_found_in_a_tree_of_other_pages() -> None:
    source, target = blocks(), tree(page_tokens=32)
    source.submit(PROMPT, 1)
    source.run()
    bundle = export_prefix(source, PROMPT)
    with pytest.raises(BundleRefusedError, match="page_tokens"):
        import_prefix(target, bundle, PROMPT)
    other = repage(bundle, 32)
    assert other.page_tokens == 32
    assert torch.equal(other.latent_tokens(), bundle.latent_tokens())
    assert repage(other, 16).to_bytes() == bundle.to_bytes()
    import_prefix(target, other, PROMPT)
    request = target.submit(PROMPT, NEW)
    same_end(request, target)
    assert request.restore == bundle.boundary


def test_what_blocks_cannot_take_is_refused_and_leaves_nothing() -> None:
    source = tree()
    source.submit(PROMPT, 1)
    source.run()
    bundle = export_prefix(source, PROMPT, 256)
    for target, why in (
        (blocks(mode="all"), "mode all"),
        (blocks(mode="none"), "mode none"),
        (blocks(reuse=False), "no reuse"),
        (blocks(draft_tokens=2), "eagle"),
        (blocks(attention_block=512), "multiple of the hash unit"),
        (blocks(version="seed-1"), "model_version"),
    ):
        before = target.view()
        with pytest.raises(KdalabError, match=why):
            import_prefix(target, bundle, PROMPT)
        assert target.view() == before
        target.check()
    running = half_way(source, 1)
    whole = export_request(source, running.name)
    with pytest.raises(KdalabError, match="mode all"):
        resume_request(blocks(mode="all"), whole, PROMPT, running.generated, NEW)
    with pytest.raises(BundleRefusedError, match="prefix"):
        resume_request(blocks(), whole, PROMPT[::-1], running.generated, NEW)
    with pytest.raises(KdalabError, match="blocks"):
        resume_request(blocks(n_blocks=4), whole, PROMPT, running.generated, NEW)
    spoiled = whole.changed(recurrent=torch.full_like(whole.recurrent, float("nan")))
    with pytest.raises(KdalabError, match="recurrent state that has arrived is not finite"):
        resume_request(blocks(), spoiled, PROMPT, running.generated, NEW)


def test_a_prefix_that_finds_no_free_block_is_refused_and_nothing_leaks() -> None:
    source = tree()
    source.submit(PROMPT, 1)
    source.run()
    bundle = export_prefix(source, PROMPT)
    assert bundle.boundary == 320  # five blocks of KV, and one for each of three state groups
    target = blocks(layout="packed", attention_block=64, n_blocks=17)
    other = [(t + 1) % 256 for t in PROMPT]
    held = target.submit(other, 40)
    while not held.generated:
        target.step()
    assert target.cache.pool.n_free < 8
    with pytest.raises(OutOfSlotsError):
        import_prefix(target, bundle, PROMPT)
    target.check()
    assert fold(target.events, target.empty_view()) == target.view()
    target.run()
    assert import_prefix(target, bundle, PROMPT) is not None


def test_a_request_that_brings_its_state_waits_its_turn_and_survives_a_preemption() -> None:
    source, target = tree(), blocks(max_running=1)
    request = half_way(source, 3)
    bundle = export_request(source, request.name)
    first = target.submit(PROMPT[:100], 4)
    came = resume_request(target, bundle, PROMPT, request.generated, NEW)
    while came.computed < bundle.boundary:
        target.step()
    assert first.finish_reason == "length"
    target.preempt(came, "a test")
    same_end(came, target)
    source.abort(request.name)
    waiting = resume_request(target, bundle, PROMPT, request.generated, NEW)
    target.abort(waiting.name)
    target.check()
    assert target.is_idle
