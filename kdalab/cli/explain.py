"""``kdalab explain``: why a prompt restarts where it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli.refuse import refuse
from kdalab.errors import KdalabError

if TYPE_CHECKING:
    from kdalab.cache import Lookup, RadixStateCache
    from kdalab.engine import Engine

MAX_FILE_BYTES = 64 << 20


def command(
    prompt: Annotated[
        str | None, typer.Argument(help="A prompt as text, one byte one token.", show_default=False)
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="Token ids instead: a JSON list, or numbers apart.", show_default=False),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="A cache snapshot (JSON).", show_default=False)
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help="Run this lesson and ask its cache; no prompt: its own prompts."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Also write the scenario's cache.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Say how far a prompt is known, where it can restart, and which constraint binds."""
    try:
        found = _found(prompt, tokens, cache, scenario, save)
    except KdalabError as error:
        refuse(error)
    if as_json:
        typer.echo(json.dumps({name: _plain(lookup) for name, lookup in found.items()}, indent=2))
        return
    for name, lookup in found.items():
        if len(found) > 1:
            typer.echo(f"{name}:")
        for line in lookup.why:
            typer.echo(f"  {line}" if len(found) > 1 else line)


def _found(
    prompt: str | None,
    tokens: Path | None,
    snapshot: Path | None,
    scenario: str | None,
    save: Path | None,
) -> dict[str, Lookup]:
    from rich.console import Console

    from kdalab.cache import load_cache, save_cache

    if snapshot is None and scenario is None:
        raise KdalabError("give a cache: --cache FILE, or --scenario NAME" + _also(tokens))
    if snapshot is not None and scenario is not None:
        raise KdalabError("--cache and --scenario are two caches; give one of them")
    if prompt is not None and tokens is not None:
        raise KdalabError("give a prompt as text or --tokens FILE, not both")
    ids = _read_ids(tokens) if tokens is not None else None
    if prompt is not None:
        ids = list(prompt.encode(errors="surrogateescape"))
    if snapshot is not None:
        if save is not None:
            raise KdalabError("--save writes the cache of a --scenario")
        if ids is None:
            raise KdalabError("give a prompt as text, or --tokens FILE")
        _require_some(ids)
        cache = load_cache(snapshot)
        if prompt is not None and _by_blocks(cache):
            raise KdalabError(
                f"this cache knows prompts by the ids of blocks of {cache.page_tokens:,} tokens, "
                "not by text; give the ids with --tokens FILE"
            )
        return {"prompt": _lookup(cache, ids)}
    assert scenario is not None
    with Console(stderr=True).status("running the scenario", refresh_per_second=1):
        engine = _run(scenario)
    if save is not None:
        save_cache(engine.cache, save)
    if ids is not None:
        _require_some(ids)
        return {"prompt": _lookup(engine.cache, ids)}
    return {r.name: r.lookup for r in engine.requests.values() if r.lookup is not None}


def _also(tokens: Path | None) -> str:
    """What is wrong with the file of tokens as well, for a message about something else."""
    if tokens is None:
        return ""
    try:
        _require_some(_read_ids(tokens))
    except KdalabError as error:
        return f". Also: {error}"
    return ""


def _require_some(ids: list[int]) -> None:
    if not ids:
        raise KdalabError("an empty prompt; give at least one token")


def _by_blocks(cache: RadixStateCache) -> bool:
    """The cache is a trace's: its keys are block ids."""
    return cache.key_width is not None and cache.key_width != 4 * cache.page_tokens


def _lookup(cache: RadixStateCache, ids: list[int]) -> Lookup:
    from kdalab.cache import PrefixKey

    if _by_blocks(cache):
        n = len(ids) * cache.page_tokens
        return cache.lookup(PrefixKey.from_blocks(ids, cache.page_tokens, n))
    return cache.lookup(PrefixKey.from_tokens(ids, cache.page_tokens))


def _run(name: str) -> Engine:
    """The lesson's prompts through the real engine, in their order of arrival."""
    from kdalab.engine import Engine
    from kdalab.lessons import lesson_model, scenario

    lesson = scenario(name)
    engine = Engine(lesson_model(), lesson.config)
    for prompt in lesson.prompts:
        if not prompt.together:
            engine.run()
        engine.submit(list(prompt.text.encode()), prompt.max_new_tokens, prompt.name)
    engine.run()
    return engine


def _read_ids(path: Path) -> list[int]:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise KdalabError(f"{path} has {size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
        text = path.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except OSError as error:
        raise KdalabError(f"cannot read the tokens {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KdalabError(f"{path} is not text; give token ids as a JSON list") from None
    try:
        if not text.strip():
            raise KdalabError(f"{path} is empty; give token ids as a JSON list, or numbers apart")
        if not text.lstrip().startswith("["):
            return [int(word) for word in text.replace(",", " ").split()]
        ids = json.loads(text)
        if all(type(i) is int for i in ids):
            return list(ids)
    except KdalabError:
        raise
    except (ValueError, RecursionError):
        pass
    raise KdalabError(f"{path} must hold whole numbers: a JSON list, or numbers apart")


def _plain(lookup: Lookup) -> dict[str, Any]:
    return {
        "n_tokens": lookup.n_tokens,
        "token_match": lookup.token_match,
        "restore": lookup.restore,
        "replay": lookup.replay,
        "new": lookup.new,
        "reach": {str(kind): at for kind, at in lookup.reach.items()},
        "branching": lookup.branching,
        "host_restore": lookup.host_restore,
        "binding": lookup.binding,
        "why": list(lookup.why),
    }
