"""``kdalab serve``: encode, prefill and decode as processes of their own, a router in front."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from kdalab.serve.limits import Limits

app = typer.Typer(
    help="Serve a model with prefill and decode in processes of their own.",
    invoke_without_command=True,
)

Host = Annotated[str, typer.Option("--host", help="Others than loopback need a token.")]
Port = Annotated[int, typer.Option("--port", help="0 takes a free one.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="Holds the token callers send; else $KDALAB_TOKEN."),
]
Json = Annotated[bool, typer.Option("--json", help="Print where it listens as JSON.")]
Watch = Annotated[bool, typer.Option("--watch-stdin", hidden=True)]
Model = Annotated[str, typer.Option("--model", help="tiny, tiny-k3, or a checkpoint's folder.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of a tiny model's weights.")]
Dtype = Annotated[str, typer.Option("--dtype", help="fp32, bf16 or fp16.")]
Pages = Annotated[int, typer.Option("--pages", min=1, help="Latent pages of 16 tokens.")]
Slots = Annotated[int, typer.Option("--slots", min=1, help="Requests that run at once.")]
Checkpoints = Annotated[int, typer.Option("--checkpoints", min=1, help="Shared checkpoints.")]
Chunk = Annotated[int, typer.Option("--chunk", min=64, help="Prompt tokens a step.")]


def _seconds(value: float) -> float:
    """Not everything that reads as a number is a time."""
    if not 0 <= value <= MAX_SLOW_S:
        raise typer.BadParameter(f"{value} is not between 0 and {MAX_SLOW_S:.0f} seconds")
    return value


MAX_SLOW_S = 3600.0
Slow = Annotated[
    float,
    typer.Option("--slow", callback=_seconds, help="Seconds between steps, to watch it."),
]
Encoder = Annotated[
    list[str] | None, typer.Option("--encode", help="Address of an encode process; repeatable.")
]
VisionSeed = Annotated[int, typer.Option("--vision-seed", min=0, help="Of the image encoder.")]
Limit = Annotated[
    list[str] | None, typer.Option("--limit", help="NAME=NUMBER: another limit, such as queue_s=2.")
]


@app.callback()
def everything(
    context: typer.Context,
    all_: Annotated[
        bool, typer.Option("--all", help="Encode, prefill, decode and router, on this machine.")
    ] = False,
    model: Model = "tiny",
    port: Port = 8100,
    slow: Slow = 0.0,
    images: Annotated[
        bool, typer.Option(help="With --all: whether an encode process for images is started.")
    ] = True,
) -> None:
    """Serve a model with prefill and decode in processes of their own; --all starts them all."""
    if context.invoked_subcommand is not None:
        return
    if not all_:
        typer.echo(context.get_help())
        raise typer.Exit
    _all(model, port, slow, images)


@app.command()
def prefill(
    host: Host = "127.0.0.1",
    port: Port = 8101,
    token_file: TokenFile = None,
    model: Model = "tiny",
    seed: Seed = 0,
    dtype: Dtype = "fp32",
    pages: Pages = 1024,
    slots: Slots = 8,
    checkpoints: Checkpoints = 64,
    chunk: Chunk = 256,
    slow: Slow = 0.0,
    encode: Encoder = None,
    vision_seed: VisionSeed = 0,
    over_schedule: Annotated[int, typer.Option("--over-schedule", min=0, hidden=True)] = 0,
    limit: Limit = None,
    json_: Json = False,
    watch_stdin: Watch = False,
) -> None:
    """Compute prompts, and send their state to decode processes piece by piece."""
    limits = _limits(limit)
    encoders = [_address(url) for url in encode or ()]

    def build(token: str) -> FastAPI:
        from kdalab.serve.roles import ModelOptions, prefill_app

        sizes = pages, slots, checkpoints, chunk
        return prefill_app(
            ModelOptions(
                *(model, seed, dtype, *sizes, limits, token, slow, over_schedule),
                encoders=tuple(encoders),
                vision_seed=vision_seed,
            )
        )

    _serve("prefill", build, limits, host, port, token_file, json_, watch_stdin)


@app.command()
def decode(
    prefill: Annotated[
        list[str] | None,
        typer.Option("--prefill", help="Address of a prefill process; repeatable."),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8102,
    token_file: TokenFile = None,
    model: Model = "tiny",
    seed: Seed = 0,
    dtype: Dtype = "fp32",
    pages: Pages = 1024,
    slots: Slots = 8,
    checkpoints: Checkpoints = 64,
    chunk: Chunk = 256,
    slow: Slow = 0.0,
    encode: Encoder = None,
    vision_seed: VisionSeed = 0,
    fallback: Annotated[
        bool, typer.Option(help="Prefill here when a state does not come; else fail by name.")
    ] = True,
    limit: Limit = None,
    json_: Json = False,
    watch_stdin: Watch = False,
) -> None:
    """Take slots, have the prefill come in from elsewhere, and decode."""
    limits = _limits(limit)
    urls = [_address(url) for url in prefill or ()]

    def build(token: str) -> FastAPI:
        from kdalab.serve.roles import ModelOptions, decode_app

        sizes = pages, slots, checkpoints, chunk
        options = ModelOptions(
            *(model, seed, dtype, *sizes, limits, token, slow),
            encoders=tuple(_address(url) for url in encode or ()),
            vision_seed=vision_seed,
        )
        return decode_app(options, urls, fallback)

    _serve("decode", build, limits, host, port, token_file, json_, watch_stdin)


@app.command()
def encode(
    host: Host = "127.0.0.1",
    port: Port = 8103,
    token_file: TokenFile = None,
    model: Annotated[
        str, typer.Option("--model", help="Images are for: tiny, tiny-k3 or a checkpoint's folder.")
    ] = "tiny",
    dtype: Dtype = "fp32",
    vision_seed: VisionSeed = 0,
    limit: Limit = None,
    json_: Json = False,
    watch_stdin: Watch = False,
) -> None:
    """Encode images for prefill processes (random weights: it recognises nothing)."""
    limits = _limits(limit)

    def build(_: str) -> FastAPI:
        from kdalab.serve.encoding import EncodeOptions, encode_app
        from kdalab.serve.loading import dtype_of, hidden_of

        options = EncodeOptions(hidden_of(model), vision_seed, dtype_of(dtype), limits)
        return encode_app(options)

    _serve("encode", build, limits, host, port, token_file, json_, watch_stdin)


@app.command()
def router(
    decode: Annotated[
        list[str], typer.Option("--decode", help="Address of a decode process; repeatable.")
    ],
    also: Annotated[
        list[str] | None, typer.Option("--also", help="Others that /v1/conservation asks.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    token_file: TokenFile = None,
    limit: Limit = None,
    json_: Json = False,
    watch_stdin: Watch = False,
) -> None:
    """OpenAI's POST /v1/completions, over decode processes."""
    limits = _limits(limit)
    urls, others = [_address(u) for u in decode], [_address(u) for u in also or ()]

    def build(token: str) -> FastAPI:
        from kdalab.serve.router import router_app

        return router_app(urls, others, limits, token)

    _serve("router", build, limits, host, port, token_file, json_, watch_stdin)


def _serve(
    role: str,
    build: Callable[[str], FastAPI],
    limits: Limits,
    host: str,
    port: int,
    token_file: Path | None,
    as_json: bool,
    watch_stdin: bool,
) -> None:
    from kdalab.serve.run import Place, read_token, serve

    token = read_token(token_file)
    place = Place(host, port, token)

    def made() -> FastAPI:
        if role != "router":
            from kdalab.threads import use_one_thread

            use_one_thread()
        return build(token)

    serve(made, place, role, limits, as_json, watch_stdin)


def _all(model: str, port: int, slow: float, images: bool) -> None:
    import signal

    from kdalab.errors import KdalabError
    from kdalab.serve.processes import start_cluster
    from kdalab.serve.run import Place, listen

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    listen(Place(port=port)).close()  # a taken port is known before anything is started
    of = ["--model", model, "--port", "0"]
    encode, more = (of if images else None), [*of, "--slow", str(slow)]
    try:
        typer.echo(f"Starting {'encode, ' if images else ''}prefill, decode and router ...")
        with start_cluster(more, router=["--port", str(port)], encode=encode) as cluster:
            for child in cluster.children.values():
                typer.echo(f"{child.role:8} {child.url}  (process {child.process.pid})")
            typer.echo("Try it:")
            typer.echo(f"  {curl_line(cluster.url)}")
            if images:
                typer.echo("With an image, a red square:")
                typer.echo(f"  {image_line(cluster.url)}")
            typer.echo("Ctrl-C ends them all.")
            while not (ended := cluster.ended()):
                time.sleep(0.3)
            raise KdalabError(f"{ended} has ended of itself")
    except KeyboardInterrupt:
        typer.echo("Stopped.")


def curl_line(url: str) -> str:
    """A request that can be typed."""
    body = '{"prompt": "The tree knows the first tokens.", "max_tokens": 8, "stream": true}'
    return f"curl -N {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"


def image_line(url: str) -> str:
    """The same with an image of 32 x 32 pixels, which the shell makes."""
    red = r"""'"$(printf '\377\000\000%.0s' $(seq 1024) | base64 | tr -d '\n')"'"""
    image = f'{{"height": 32, "width": 32, "data": "{red}"}}'
    body = f'{{"prompt": "Look: <image> What is it?", "images": [{image}], "max_tokens": 8}}'
    return f"curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'"


def _limits(changes: list[str] | None) -> Limits:
    from dataclasses import fields

    from kdalab.errors import KdalabError
    from kdalab.serve.limits import Limits

    known = {f.name: f for f in fields(Limits)}
    found: dict[str, float] = {}
    for change in changes or ():
        name, _, value = change.partition("=")
        try:
            found[name] = float(value) if name.endswith("_s") else int(value)
        except ValueError:
            raise KdalabError(f"--limit {change!r}; write NAME=NUMBER") from None
        if name not in known:
            raise KdalabError(f"--limit {name!r}; known: {', '.join(known)}")
    return Limits(**found)  # type: ignore[arg-type]


def _address(url: str) -> str:
    """A peer's address, without a path.

    Raises:
        KdalabError: it is none.
    """
    from urllib.parse import urlsplit

    from kdalab.errors import KdalabError

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise KdalabError(f"{url!r} is no address; write http://HOST:PORT")
    return url.rstrip("/")
