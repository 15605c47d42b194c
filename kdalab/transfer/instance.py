"""An engine and bundles: what leaves one engine goes on in another, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kdalab.cache import Image
from kdalab.engine import BlockEngine, Engine, Request, exchange
from kdalab.engine.admission import as_ids
from kdalab.engine.arrivals import Arrival
from kdalab.engine.block import exchange as block_exchange
from kdalab.errors import KdalabError
from kdalab.spec import ParallelLayout, StateIdentity
from kdalab.transfer.bundle import Bundle
from kdalab.transfer.geometry import Geometry
from kdalab.transfer.prefix import PrefixHash
from kdalab.transfer.refusal import Refusal, require

if TYPE_CHECKING:
    from kdalab.engine.block.events import Installed
    from kdalab.engine.exchange import Exported
    from kdalab.engine.exchange_events import Fetched
    from kdalab.model import HybridModel

AnyEngine = Engine | BlockEngine
"""Bundles pass between both: what leaves one goes on in the other, bit for bit."""

LAYOUT = ("v_first", "time_first")
"""(recurrent, conv) layout of the engine's pools."""


def identity_of(
    model: HybridModel,
    *,
    name: str,
    model_version: str,
    tokenizer: str,
    extra: tuple[tuple[str, str], ...] = (),
) -> StateIdentity:
    """The identity of states that an engine with this model makes: its dtypes, its layouts.

    Args:
        name: of the model.
        model_version: of the exact weights, such as a revision or their hash.
        tokenizer: its fingerprint, such as ``ByteTokenizer().fingerprint``.
        extra: what else must be equal: an adapter, a salt.
    """
    return StateIdentity(
        name,
        model_version,
        tokenizer,
        state_dtype=str(model.state_dtype),
        conv_dtype=str(model.dtype),
        kv_dtype=str(model.dtype),
        recurrent_layout=LAYOUT[0],
        conv_layout=LAYOUT[1],
        parallel=ParallelLayout(),
        extra=extra,
    )


def export_request(
    engine: AnyEngine, name: str, images: Sequence[Image] = (), target: str = ""
) -> Bundle:
    """The whole state of a running request, after the tokens that it has computed.

    After its prefill that is the whole prompt; the token chosen then travels beside the bundle
    (``request.generated``). The request goes on; end it with ``engine.abort``.

    Args:
        images: of the prompt, if any: they are part of what the prefix is.
        target: whom it is for, as the event says.

    Raises:
        KdalabError: the engine has no identity, or the request holds no state now.
    """
    identity = checked_identity(engine)
    if isinstance(engine, BlockEngine):
        sent = block_exchange.export_running(engine, name, target)
    else:
        sent = exchange.export_running(engine, name, target)
    return _bundle(engine, identity, sent, images)


def export_prefix(
    engine: AnyEngine,
    tokens: Sequence[int],
    boundary: int | None = None,
    images: Sequence[Image] = (),
    target: str = "",
) -> Bundle:
    """What the engine's cache holds of a prompt: at ``boundary``, or as far as it can restore.

    Raises:
        KdalabError: the engine has no identity, or no checkpoint stands there.
    """
    identity = checked_identity(engine)
    if isinstance(engine, BlockEngine):
        sent = block_exchange.export_cached(engine, tokens, boundary, target)
    else:
        sent = exchange.export_cached(engine, tokens, boundary, target)
    return _bundle(engine, identity, sent, images)


def import_prefix(
    engine: AnyEngine,
    bundle: Bundle,
    tokens: Sequence[int],
    images: Sequence[Image] = (),
    source: str = "",
) -> Fetched | Installed | None:
    """Enter a bundle into the engine's cache; None when that prefix is cached already.

    Args:
        tokens: a prompt that begins with the bundle's prefix. The bundle has only its hash.

    Raises:
        BundleRefusedError: another identity, prefix, boundary or page size; nothing has changed.
        KdalabError: it does not fit, or its boundary is none of the cache's.
    """
    came = arrival(engine, bundle, as_ids(tokens), images, source)
    if isinstance(engine, BlockEngine):
        return block_exchange.install(engine, tokens, came)
    return exchange.install(engine, tokens, came)


def resume_request(
    engine: AnyEngine,
    bundle: Bundle,
    tokens: Sequence[int],
    generated: Sequence[int] = (),
    max_new_tokens: int = 16,
    name: str | None = None,
    stop_tokens: Iterable[int] = (),
    images: Sequence[Image] = (),
    source: str = "",
) -> Request:
    """Queue a request that goes on from a bundle: what the state has seen is not computed again.

    Args:
        tokens: the prompt.
        generated: what was generated elsewhere; after a whole prefill, its first token.
        max_new_tokens: new tokens in all, those in ``generated`` included.

    Raises:
        BundleRefusedError: another identity, prefix or page size; nothing has changed.
        KdalabError: as ``Engine.submit``.
    """
    known = (*as_ids(tokens), *as_ids(generated, "generated"))
    came = arrival(engine, bundle, known, images, source)
    more = generated, max_new_tokens, name, stop_tokens
    if isinstance(engine, BlockEngine):
        return block_exchange.receive(engine, tokens, came, *more)
    return exchange.receive(engine, tokens, came, *more)


def import_bundle(
    engine: AnyEngine,
    bundle: Bundle,
    tokens: Sequence[int],
    generated: Sequence[int] | None = None,
    *,
    max_new_tokens: int = 16,
    name: str | None = None,
    source: str = "",
) -> Fetched | Installed | Request | None:
    """Into the cache (without ``generated``), or as a request that goes on (with it).

    See :func:`import_prefix` and :func:`resume_request`.
    """
    if generated is None:
        return import_prefix(engine, bundle, tokens, source=source)
    return resume_request(engine, bundle, tokens, generated, max_new_tokens, name, source=source)


def arrival(
    engine: AnyEngine,
    bundle: Bundle,
    tokens: Sequence[int],
    images: Sequence[Image] = (),
    source: str = "",
) -> Arrival:
    """A bundle as the engine takes it, once nothing is left to refuse.

    Raises:
        BundleRefusedError: every field that differs is named.
    """
    require(refusals(engine, bundle, tokens, images))
    latent, recurrent, conv = bundle.latent_tokens(), bundle.recurrent, bundle.conv
    return Arrival(bundle.boundary, latent, recurrent, conv, source)


def refusals(
    engine: AnyEngine, bundle: Bundle, tokens: Sequence[int], images: Sequence[Image] = ()
) -> tuple[Refusal, ...]:
    """Why this engine does not take this bundle for this prompt; empty when it does.

    A state that was rounded to INT8 is taken by an engine whose own checkpoints are. A block engine
    writes token by token, so pages of any size will do; a radix engine's are its own
    (``kdalab.transfer.pages.repage`` gives a bundle others).
    """
    pages = None if isinstance(engine, BlockEngine) else engine.config.page_tokens
    found = list(bundle.refusals(checked_identity(engine), None, pages))
    found += Geometry.of(engine.model).refusals(bundle)
    ours = _checkpoint_dtype(engine)
    if bundle.checkpoint_dtype == "int8" and ours == "native":
        found.append(Refusal("checkpoint_dtype", ours, bundle.checkpoint_dtype))
    if bundle.boundary > len(tokens):
        at = f"at most {len(tokens):,}"
        return (*found, Refusal("boundary", at, f"{bundle.boundary:,}"))
    prefix = PrefixHash.of(tokens, bundle.boundary, images)
    return (*found, *bundle.refusals(prefix=prefix))


def checked_identity(engine: AnyEngine) -> StateIdentity:
    """The engine's identity, if it is true of the engine's tensors.

    Raises:
        KdalabError: it has none, or one of another dtype, layout or number of ranks.
    """
    identity, model = engine.identity, engine.model
    if identity is None:
        raise KdalabError(
            "this engine has no identity, so nobody could tell whose state it is; give one to "
            "Engine(model, config, identity_of(model, ...))"
        )
    true = identity_of(
        model,
        name=identity.model,
        model_version=identity.model_version,
        tokenizer=identity.tokenizer,
        extra=identity.extra,
    )
    wrong = true.difference(identity)
    if wrong:
        raise KdalabError(
            f"the engine's identity says {wrong[0]} = {identity.to_dict()[wrong[0]]!r}, but its "
            f"states are {true.to_dict()[wrong[0]]!r}; build it with identity_of(model, ...)"
        )
    return identity


def _bundle(
    engine: AnyEngine, identity: StateIdentity, sent: Exported, images: Sequence[Image]
) -> Bundle:
    width = engine.model.config.kda_width
    return Bundle(
        identity,
        PrefixHash.of(sent.tokens, None, images),
        sent.latent,
        sent.recurrent,
        sent.conv,
        (width, width, width),
        checkpoint_dtype=_checkpoint_dtype(engine),
    )


def _checkpoint_dtype(engine: AnyEngine) -> str:
    """How checkpoints are kept; blocks keep states as they are computed."""
    return "int8" if isinstance(engine, Engine) and engine.config.int8 else "native"
