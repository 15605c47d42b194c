"""The run of every rule of ``lessons.invariants``: the fault, the victim, the check that fires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from kdalab.cache.placement import Every
from kdalab.engine import Engine, EngineConfig, Faults, admission
from kdalab.engine.arrivals import Arrival
from kdalab.engine.block import BlockEngine, BlockEngineConfig
from kdalab.engine.block.schedule import plan_step
from kdalab.engine.exchange import receive
from kdalab.engine.media import Media, Span, media_ids
from kdalab.engine.receiving import expect, land_latent, land_state
from kdalab.lessons.invariants import NEW_TOKENS, Broken, Watched, alone, caught, judged
from kdalab.lessons.sharing import refused_write
from kdalab.lessons.unified import unified_model
from kdalab.lessons.verify import KnowingDrafter
from kdalab.memory import ActivePool, CheckpointPool
from kdalab.spec.checkpoint import Checkpoint

if TYPE_CHECKING:
    from kdalab.model import HybridModel
    from kdalab.spec import StateIdentity

_RULES = "You are a travel agent. Name the platform and the time, never invent a train. " * 2
A = tuple((_RULES[:128] + "To Bern, with a dog?").encode())
B = tuple((_RULES[:128] + "To Lyon tonight?").encode())
C = tuple((_RULES[:128] + "Is there a night train home?").encode())
D = tuple((_RULES[:118] + "any other question there is").encode())
LONG = tuple((b"Dear tenant, please fill a bucket and leave the machine off. " * 6)[:160])
OTHER = LONG[:150]


def config(**changes: Any) -> EngineConfig:
    """Small pools; ``poison`` is off, as in production, so that a wrong read gives numbers."""
    sizes: dict[str, Any] = {
        "page_tokens": 16, "n_pages": 40, "n_active": 3, "n_checkpoints": 6,
        "placement": Every(64), "keep_logits": True, "poison": False,
    }  # fmt: skip
    return EngineConfig(**{**sizes, **changes})


def _with(fault: str, *first: tuple[str, tuple[int, ...]], **changes: Any) -> Watched:
    """An engine that has served ``first`` as always, and now has the fault."""
    engine = Engine(unified_model(), config(**changes))
    for name, tokens in first:
        engine.submit(tokens, 1, name)
        engine.run()
    if fault:
        engine.config = replace(engine.config, faults=Faults.named([fault]))
    return Watched(engine)


def _asked(watched: Watched, *asked: tuple[str, tuple[int, ...]]) -> Watched:
    engine = watched.engine
    assert isinstance(engine, Engine)
    for name, tokens in asked:
        engine.submit(tokens, NEW_TOKENS, name)
    watched.run()
    return watched


def _told(broken: Broken, check: str, says: str) -> Broken:
    return replace(broken, check=check, says=says)


def _exact(broken: Broken) -> Broken:
    """No structure forbids it: only a comparison with a cold run does, as in ``kdalab verify``."""
    worst = max(broken.state, broken.logits)
    return _told(broken, "kdalab verify", f"max |difference| {worst:.3g}, allowed 0")


def healthy() -> Broken:
    """No fault: B restores 128 tokens of A."""
    broken = judged("healthy", _asked(_with("", ("A", A)), ("B", B)), "B")
    return _told(broken, "-", "")


def boundary() -> Broken:
    """KV of the token match, state of the restore point."""
    watched = _asked(_with("skip_replay", ("A", A)), ("D", D))

    def guard() -> None:
        engine = _with("", ("A", A)).engine
        assert isinstance(engine, Engine)
        node = next(n for n in engine.cache.nodes.values() if n.state is not None)
        assert node.state is not None
        engine.checkpoints.require(Checkpoint(node.state.slot, node.end + 64))

    return _told(judged("boundary", watched, "D"), "CheckpointPool.require", caught(guard))


def pair() -> Broken:
    """The recurrent state without the conv state."""
    watched = _asked(_with("drop_conv", ("A", A)), ("B", B))

    def guard() -> None:
        from kdalab.serve.pieces import PieceMeta, read_piece, write_piece

        meta = PieceMeta(
            transfer="0" * 32, seq=0, kind="state", identity="0" * 64, boundary=len(B), count=1
        )
        recurrent = torch.zeros(tuple(unified_model().recurrent_shape))
        read_piece(write_piece(meta, {"recurrent": recurrent}), 1 << 24)

    return _told(judged("pair", watched, "B"), "serve.pieces", caught(guard))


def cow() -> Broken:
    """B and C write into one shared state."""
    watched = _asked(_with("share_checkpoint", ("A", A)), ("B", B), ("C", C))
    return _told(judged("cow", watched, "C", "B"), "ActivePool.write", refused_write(config()))


def copy() -> Broken:
    """A's checkpoint is A's own slot."""
    watched = _with("alias_snapshot")
    _asked(watched, ("A", A))
    _asked(watched, ("B", B))

    def guard() -> None:
        pool = ActivePool(2, (1, 1, 2, 2), (1, 1, 3))
        slot = pool.allocate("A")
        pool.clear(slot, "A")
        CheckpointPool.sharing(pool).adopt(slot, 64, "A")
        pool.write(slot, torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 3), "A")

    return _told(judged("copy", watched, "B", "A"), "ActivePool.write", caught(guard))


def lock() -> Broken:
    """The checkpoint that B waits for is given to C's snapshot."""
    changes = {"n_checkpoints": 1, "placement": Every(128)}
    watched = _asked(_with("free_locked", ("A", A), **changes), ("C", OTHER), ("B", B))

    def guard() -> None:
        engine = _with("", ("A", A), **changes).engine
        assert isinstance(engine, Engine)
        request = engine.submit(B, NEW_TOKENS, "B")
        admission.admit_waiting(engine)
        assert request.lease is not None
        engine.cache.unlock_state(request.lease)
        engine.check()

    return _told(judged("lock", watched, "B", "C"), "engine.check()", caught(guard))


def clear() -> Broken:
    """The slot of the last owner, as it left it."""
    watched = _asked(_with("skip_clear", ("A", A), n_active=1), ("E", OTHER))
    poisoned = _asked(_with("skip_clear", ("A", A), n_active=1, poison=True), ("E", OTHER))
    says = poisoned.engine.requests["E"].finish_reason
    return _told(judged("clear", watched, "E", "A"), "poison", says)


def int8() -> Broken:
    """Rounded at every step."""
    return _exact(judged("int8", _asked(_with("quantise_in_recurrence", ("A", A)), ("B", B)), "B"))


def draft() -> Broken:
    """The state has seen rejected drafts."""
    drafter = KnowingDrafter((*B, *alone(B)[0]), 100)
    watched = _with("keep_rejected", ("A", A), draft_tokens=2, drafter=drafter)
    return _exact(judged("draft", _asked(watched, ("B", B)), "B"))


def image() -> Broken:
    """Two images, one key."""
    watched = _with("ignore_images")
    engine = watched.engine
    assert isinstance(engine, Engine)
    one, two = _pictured(1), _pictured(2)
    engine.config = replace(engine.config, faults=Faults())
    engine.submit(one[0], 1, "A", media=one[1])
    engine.run()
    engine.config = replace(engine.config, faults=Faults(ignore_images=True))
    engine.submit(two[0], NEW_TOKENS, "B", media=two[1])
    watched.run()
    guard = lambda: engine.submit(one[0], 1, "X", media=two[1])  # noqa: E731
    broken = judged("image", watched, "B", "A", media=two[1])
    return _told(broken, "Media.check", caught(guard))


def _pictured(seed: int) -> tuple[tuple[int, ...], Media]:
    model = unified_model()
    digest = bytes([seed]) * 16
    ids = (*A[:20], *media_ids(digest, 16, model.vocab_size), *A[20:])
    shape = 16, model.config.hidden_size
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3
    return ids, Media((Span(20, 16, digest, values),))


def step() -> Broken:
    """B hits blocks that A's row of the same batch is to write."""

    settings = BlockEngineConfig(
        n_blocks=16, layout="packed", retention=None, poison=False, keep_logits=True,
        attention_block=64, state_block=64, unit=64,
    )  # fmt: skip
    engine = BlockEngine(unified_model(), settings)

    def guard() -> None:
        other = BlockEngine(unified_model(), settings)
        first, second = other.submit(A, 1, "A"), other.submit(B, 1, "B")
        plan_step(other)  # A's blocks have names now, and no numbers
        assert first.is_running
        other.cache.acquire(other.cache.lookup(other.chain_of(second)))

    says = caught(guard)
    engine.config = replace(settings, faults=Faults(read_unwritten=True))
    watched = Watched(engine)
    engine.submit(A, 1, "A")
    engine.submit(B, NEW_TOKENS, "B")
    watched.run()
    return _told(judged("step", watched, "B"), "BlockStateCache.acquire", says)


def whole() -> Broken:
    """Decode begins before the last latent KV."""
    engine = Engine(unified_model(), config(n_pages=10))
    engine.submit(LONG, 1, "other")
    engine.run()
    recurrent, conv, latent = unified_model().states(B)
    first = alone(B)[0][0]
    request = expect(engine, B, NEW_TOKENS, "B", source="prefill")
    land_latent(engine, request, 0, latent[:, :64])
    says = caught(lambda: land_state(engine, request, recurrent, conv, first))
    engine.config = replace(engine.config, faults=Faults(start_early=True))
    land_state(engine, request, recurrent, conv, first)
    watched = Watched(engine)
    watched.run()
    return _told(judged("whole", watched, "B", "other"), "receiving.land_state", says)


def gate() -> Broken:
    """A transfer reads an address that compaction has left."""
    engine = Engine(unified_model(), config(memory="unified", placement=Every(512)))
    buffer = engine.buffer
    assert buffer is not None
    x, y = engine.submit(A, NEW_TOKENS + 9, "X"), engine.submit(B, NEW_TOKENS + 9, "B")
    while y.phase != "decode" or x.phase != "decode":
        engine.step()
    hold = engine.hold_moves("transfer")
    says = caught(lambda: buffer.states._move(buffer.states.span - 1, 0))
    hold.release()
    engine.config = replace(engine.config, faults=Faults(move_held=True))
    engine.step()
    boundary, known = y.computed, list(y.generated)
    row = buffer.states.place(y.active_slot)
    with engine.hold_moves("transfer"):
        engine.abort("X")  # a hole, and the slot at the frontier moves into it
        engine.submit(OTHER, 1, "Z")
        engine.step()  # Z gets the place that B has left
    latent = engine.latents.gather(y.pages, boundary)
    there = Engine(unified_model(), config())
    came = Arrival(
        boundary, latent, engine.active.recurrent[row].clone(), engine.active.conv[row].clone()
    )
    if not (came.recurrent.isfinite().all() and came.conv.isfinite().all()):
        came = replace(came, recurrent=came.recurrent.nan_to_num(), conv=came.conv.nan_to_num())
    receive(there, B, came, known, NEW_TOKENS, "B")
    watched = Watched(there)
    watched.run()
    events = [*engine.events[-14:], *there.events]
    return _told(judged("gate", watched, "B", "Z", events), "UnifiedSlots._move", says)


def identity() -> Broken:
    """The state of other weights: the same shapes, taken without asking."""
    from kdalab.transfer import export_request, identity_of, resume_request

    def who(model: HybridModel, version: str) -> StateIdentity:
        return identity_of(model, name="tiny", model_version=version, tokenizer="bytes")

    there = Engine(_other_weights(), config(), who(_other_weights(), "seed-1"))
    request = there.submit(B, NEW_TOKENS, "B")
    while request.phase != "decode":
        there.step()
    bundle = export_request(there, "B")
    here = Engine(unified_model(), config(), who(unified_model(), "seed-0"))
    first = alone(B)[0][:1]
    says = caught(lambda: resume_request(here, bundle, B, first, NEW_TOKENS, "B"))
    came = Arrival(len(B), bundle.latent_tokens(), bundle.recurrent, bundle.conv, "other weights")
    receive(here, B, came, first, NEW_TOKENS, "B")
    watched = Watched(here)
    watched.run()
    return _told(judged("identity", watched, "B", "seed-1"), "BundleRefusedError", says)


@lru_cache(maxsize=1)
def _other_weights() -> HybridModel:
    from kdalab.model.tiny import tiny_weights
    from kdalab.model.weights import build

    settings = unified_model().config
    return build(settings, tiny_weights(1, settings))


RUNS: dict[str, Callable[[], Broken]] = {
    "healthy": healthy, "boundary": boundary, "pair": pair, "cow": cow, "copy": copy,
    "lock": lock, "clear": clear, "int8": int8, "draft": draft, "image": image, "step": step,
    "whole": whole, "gate": gate, "identity": identity,
}  # fmt: skip
