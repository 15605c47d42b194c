"""State that moves between two engines: the second goes on as the first would have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transfer_cases import IDENTITY, PROMPT, TINY, assert_sound, engine, prefilled

from kdalab.engine import Engine
from kdalab.engine.exchange_events import Fetched, Installed, Received, Sent
from kdalab.engine.faults import Faults
from kdalab.errors import KdalabError, OutOfSlotsError
from kdalab.spec import StateIdentity
from kdalab.transfer import (
    Bundle,
    BundleRefusedError,
    export_prefix,
    export_request,
    import_prefix,
    resume_request,
)

HOW: list[dict[str, Any]] = [
    {},
    {"strategy": "extra_buffer"},
    {"memory": "unified"},
    {"page_tokens": 32, "placement": None},
]


def options(how: dict[str, Any]) -> dict[str, Any]:
    from kdalab.cache import parse_placement

    return {k: parse_placement("every:64") if k == "placement" else v for k, v in how.items()}


def of_type(e: Engine, kind: type) -> list[Any]:
    return [x for x in e.events if isinstance(x, kind)]


def moved(bundle: Bundle) -> Bundle:
    """Through its bytes, as between processes."""
    return Bundle.from_bytes(bundle.to_bytes())


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("n", [1, 63, 64, 128, 200])
def test_decoding_goes_on_elsewhere_bit_for_bit(n: int, how: dict[str, Any]) -> None:
    prefill = prefilled(PROMPT[:n], 6, **options(how))
    first = list(prefill.requests["P"].generated)
    bundle = moved(export_request(prefill, "P", target="D"))
    decode = engine(**options(how))
    request = resume_request(decode, bundle, PROMPT[:n], first, 6, source="P")
    decode.run()
    prefill.run()
    alone = prefill.requests["P"]
    assert request.generated == alone.generated
    assert len(request.logits) == 5
    for mine, theirs in zip(request.logits, alone.logits[-5:], strict=True):
        assert torch.equal(mine, theirs)
    assert not [e for e in decode.events if e.name in ("Computed", "Replayed")]
    assert of_type(prefill, Sent)[0].boundary == of_type(decode, Installed)[0].boundary == n
    assert of_type(decode, Received)[0].generated == tuple(first)
    assert_sound(decode)
    assert_sound(prefill)


def test_a_request_moves_in_the_middle_of_decoding() -> None:
    a = prefilled(PROMPT, 10)
    for _ in range(4):
        a.step()
    request = a.requests["P"]
    bundle, generated = moved(export_request(a, "P")), list(request.generated)
    assert bundle.boundary == request.computed == 204
    a.abort("P")
    b = engine()
    again = resume_request(b, bundle, PROMPT, generated, 10)
    b.run()
    assert again.generated == TINY.greedy(PROMPT, 10)
    assert_sound(a)
    assert_sound(b)


def test_prefill_goes_on_elsewhere_from_a_cached_boundary() -> None:
    a = engine()
    a.submit(PROMPT, 0)
    a.run()
    bundle = moved(export_prefix(a, PROMPT))
    assert bundle.boundary == 192
    b = engine()
    request = resume_request(b, bundle, PROMPT, (), 4)
    b.run()
    assert request.generated == TINY.greedy(PROMPT, 4)
    assert torch.equal(torch.stack(request.logits[:8]), TINY.logits(PROMPT)[192:])
    assert_sound(b)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_a_prefix_enters_another_cache_and_restores_there(how: dict[str, Any]) -> None:
    a, b = engine(**options(how)), engine(**options(how))
    a.submit(PROMPT, 1)
    a.run()
    event = import_prefix(b, moved(export_prefix(a, PROMPT, 128)), PROMPT, source="A")
    assert event is not None
    assert event.boundary == 128
    assert_sound(b)
    request = b.submit([*PROMPT[:150], 3, 1, 4], 4)
    b.run()
    assert request.restore == 128
    assert request.generated == TINY.greedy(request.tokens, 4)
    full = TINY.logits(request.tokens)[128:]
    assert torch.equal(torch.stack(request.logits[: len(full)]), full)
    assert_sound(b)


def test_what_the_tree_knows_already_is_not_kept_twice() -> None:
    a, b = engine(), engine()
    for e in (a, b):
        e.submit(PROMPT[: 192 if e is a else 100], 1)
        e.run()
    assert import_prefix(b, export_prefix(a, PROMPT, 64), PROMPT) is None
    before = b.latents.slots.n_free
    deeper = export_prefix(a, PROMPT, 192)
    event = import_prefix(b, deeper, PROMPT)
    assert event is not None
    assert before - b.latents.slots.n_free == (192 - 64) // 16
    assert import_prefix(b, deeper, PROMPT) is None
    assert_sound(b)
    # A tombstone's pages are known, and only its state is missing.
    from kdalab.cache import Bytes

    b.give_back(b.cache.evict(Bytes(state=1)), "", "a test")
    free = b.latents.slots.n_free
    event = import_prefix(b, export_prefix(a, PROMPT, 64), PROMPT)
    assert event is None or len(event.duplicate_pages) == 4
    assert b.latents.slots.n_free == free
    assert_sound(b)


def test_a_request_with_its_state_waits_for_room_and_takes_no_more_than_its_own() -> None:
    bundle = export_request(prefilled(PROMPT), "P")
    first = TINY.greedy(PROMPT, 1)
    b = engine(n_active=1)
    b.submit(PROMPT[:70], 6, name="busy")
    b.step()
    late = resume_request(b, bundle, PROMPT, first, 4, name="late")
    b.step()
    assert late.phase == "waiting"
    b.run()
    assert late.generated == TINY.greedy(PROMPT, 4)
    assert_sound(b)


def test_what_the_tree_has_of_its_prompt_is_shared_and_not_kept_locked() -> None:
    bundle = export_request(prefilled(PROMPT), "P")
    b = engine()
    b.submit(PROMPT[:130], 1)
    b.run()
    request = resume_request(b, bundle, PROMPT, TINY.greedy(PROMPT, 1), 6)
    b.step()
    assert request.phase == "decode"
    assert request.n_shared >= 128 // 16
    assert [n.state_lock for n in b.cache.nodes.values()] == [0] * len(b.cache.nodes)
    b.run()
    assert request.generated == TINY.greedy(PROMPT, 6)
    assert_sound(b)


def test_a_retracted_request_goes_on_without_the_state_it_came_with() -> None:
    bundle = export_request(prefilled(PROMPT), "P")
    b = engine()
    request = resume_request(b, bundle, PROMPT, TINY.greedy(PROMPT, 1), 6)
    b.step()
    b.step()
    b.retract(request, "a test")
    assert_sound(b)
    b.run()
    assert request.generated == TINY.greedy(PROMPT, 6)
    assert_sound(b)


def test_an_aborted_one_leaves_nothing() -> None:
    bundle = export_request(prefilled(PROMPT), "P")
    b = engine()
    resume_request(b, bundle, PROMPT, [5], 6, name="a")
    resume_request(b, bundle, PROMPT, [5], 6, name="b")
    b.abort("a")
    b.step()
    b.abort("b")
    assert b.is_idle
    assert_sound(b)


def test_int8_checkpoints_say_that_they_were_rounded() -> None:
    a = engine(checkpoint_dtype="int8")
    a.submit(PROMPT, 1)
    a.run()
    bundle = moved(export_prefix(a, PROMPT, 128))
    assert bundle.checkpoint_dtype == "int8"
    with pytest.raises(BundleRefusedError, match="checkpoint_dtype: ours native, theirs int8"):
        import_prefix(engine(), bundle, PROMPT)
    b = engine(checkpoint_dtype="int8")
    assert import_prefix(b, bundle, PROMPT) is not None
    state, conv, _ = TINY.states(PROMPT[:128])
    slot = next(n.state.slot for n in b.cache.nodes.values() if n.state is not None)
    read = b.checkpoints.read(slot)
    assert torch.equal(read[1], conv)
    step = state.abs().amax(-2, keepdim=True) / 127
    assert bool(((read[0] - state).abs() <= 0.51 * step).all())
    assert_sound(b)


def broken(e: Engine, call: Any, message: str, kind: type[Exception] = KdalabError) -> None:
    before = (len(e.events), e.latents.slots.n_free, e.active.slots.n_free, dict(e.requests))
    with pytest.raises(kind, match=message):
        call()
    assert (len(e.events), e.latents.slots.n_free, e.active.slots.n_free, e.requests) == before
    assert_sound(e)


def test_what_cannot_go_on_is_refused_and_takes_nothing() -> None:
    bundle = export_request(prefilled(PROMPT), "P")
    b = engine()

    def resume(*args: Any, **kwargs: Any) -> Any:
        return lambda: resume_request(b, bundle, *args, **kwargs)

    broken(b, resume(PROMPT, ()), "give the first token that was generated")
    broken(b, resume([*PROMPT, 1], ()), "absolute grid of 64 tokens")
    broken(b, resume(PROMPT[:-1], [5]), "prefix", BundleRefusedError)
    broken(b, resume(PROMPT[:100], [5]), "boundary: ours at most 101", BundleRefusedError)
    broken(b, resume(PROMPT, [5], 1), "nothing left to generate")
    broken(b, resume(PROMPT, [5], 9, stop_tokens=[5]), "nothing left to generate")
    broken(b, resume(PROMPT, [999]), "token id 999")
    broken(b, resume(PROMPT, None), "generated must be a list")
    broken(b, resume(None, [5]), "tokens must be a list")
    broken(b, lambda: import_prefix(b, bundle, None), "tokens must be a list")
    broken(b, lambda: import_prefix(b, bundle, PROMPT), "at a multiple of 64")
    other = bundle.changed(recurrent=bundle.recurrent * float("inf"))
    broken(b, lambda: resume_request(b, other, PROMPT, [5]), "not finite")


def test_what_a_bundle_has_beyond_the_boundary_is_not_read() -> None:
    prefill = prefilled(PROMPT, 6)
    bundle = export_request(prefill, "P")
    latent = bundle.latent.clone()
    assert len(PROMPT) % bundle.page_tokens
    tail = latent[-1, :, len(PROMPT) % bundle.page_tokens :]
    assert not tail.any()
    tail.fill_(float("nan"))
    decode = engine()
    first = list(prefill.requests["P"].generated)
    request = resume_request(decode, moved(bundle.changed(latent=latent)), PROMPT, first, 6)
    decode.run()
    prefill.run()
    assert request.generated == prefill.requests["P"].generated
    assert_sound(decode)


def test_a_cache_in_use_takes_nothing_and_loses_nothing() -> None:
    a = engine()
    a.submit(PROMPT, 1)
    a.run()
    bundle = export_prefix(a, PROMPT, 192)
    b = engine(n_pages=14)
    b.submit([7] * 150, 20)
    b.step()
    broken(b, lambda: import_prefix(b, bundle, PROMPT), "no room for 12", OutOfSlotsError)


def test_without_an_identity_or_with_a_false_one_nothing_leaves() -> None:
    with pytest.raises(KdalabError, match="has no identity"):
        export_request(prefilled(PROMPT, identity=None), "P")
    plain = StateIdentity("tiny", "seed-0", "bytes", "fp32", "bf16", "fp32")
    with pytest.raises(KdalabError, match="conv_dtype = 'bf16', but its states are 'fp32'"):
        export_request(prefilled(PROMPT, identity=plain), "P")
    spoiled = prefilled(PROMPT, faults=Faults(drop_conv=True))
    with pytest.raises(KdalabError, match="drop_conv switched on"):
        export_request(spoiled, "P")


def test_an_export_names_what_is_there_instead() -> None:
    a = engine()
    a.submit(PROMPT, 1, name="P")
    with pytest.raises(KdalabError, match="P is waiting and holds no state"):
        export_request(a, "P")
    with pytest.raises(KdalabError, match="no request 'Q'; known: P"):
        export_request(a, "Q")
    a.run()
    with pytest.raises(KdalabError, match="cannot restore this prompt at 100"):
        export_prefix(a, PROMPT, 100)
    with pytest.raises(KdalabError, match="cannot restore"):
        export_prefix(a, [9] * 100)
    assert a.identity == IDENTITY
    before = [n.state_lock for n in a.cache.nodes.values()]
    export_prefix(a, PROMPT)
    assert [n.state_lock for n in a.cache.nodes.values()] == before
    assert len(of_type(a, Fetched)) == 0
    assert_sound(a)


def test_poison_beyond_the_boundary_does_not_travel() -> None:
    bundle = export_request(prefilled(PROMPT), "P")
    assert bool(bundle.latent.isfinite().all())
    assert bool((bundle.latent[-1, :, 200 % 16 :] == 0).all())
