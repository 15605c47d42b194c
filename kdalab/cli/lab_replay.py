"""``kdalab lab replay`` and ``settings``: one trace, one setup, one account."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source

if TYPE_CHECKING:
    from kdalab.lab import Account


def replay(
    source: Source,
    settings: o.SetOpt = None,
    model: o.ModelOpt = None,
    memory: o.MemoryOpt = None,
    policy: o.PolicyOpt = None,
    as_json: o.JsonOpt = False,
) -> None:
    """Replay a trace under one setup: hits, work saved, bytes, evictions, time to first token."""
    from kdalab.errors import KdalabError
    from kdalab.lab import replay_setup

    with o.known_errors():
        setup = o.build_setup(settings, model, memory, policy)
        asked = set(o.set_values(settings))
        o.check_policy(setup, asked)
        if "write_through" in asked and not setup.host:
            raise KdalabError("write_through is of a host tier; give host=SIZE too")
        requests = source.read()
        total = len(requests.requests) if hasattr(requests, "requests") else None
        with o.progress("replaying", quiet=as_json) as show:
            account = replay_setup(requests, setup, on_request=lambda n: show(n, total))
    if as_json:
        typer.echo(json.dumps(account.as_dict(), indent=2))
    else:
        print_account(account)


# What each setting takes and means, in the words that ``Setup.parse`` reads.
_MEANINGS = (
    ("model", "a preset or a config.json."),
    ("state_dtype, kv_dtype", "model (what the model says), bfloat16, float32 and so on."),
    ("memory", "bytes for latent KV and states together: 80GiB; unlimited."),
    ("cache", "radix (SGLang's way) or block (vLLM's way)."),
    (
        "checkpoints",
        "radix: where they are taken: leaf+branch, leaf, every:4096, all, and those named below.",
    ),
    (
        "retention",
        "lru, marconi (alpha tuned on the trace), marconi:ALPHA; radix also lru-path, and each "
        "with +cap:N.",
    ),
    (
        "split",
        "radix: states to KV in fixed pools, 0.9 (SGLang's mamba_full_memory_ratio); off: one "
        "pool that both share.",
    ),
    ("int8", "radix: on keeps checkpoints in INT8; active states stay as they are. Or off."),
    ("host", "radix: bytes of a host tier: 512GiB; 0 or off for none."),
    ("write_through", "radix: so many uses make a node due for the host."),
    ("decoded", "radix: on lets the output enter the cache too, where the trace knows its ids."),
    ("block", "block: tokens of the attention block; auto: the smallest that holds a state."),
    ("unit", "block: tokens of a hash (prefix_match_unit); auto: the block."),
    (
        "interval",
        "block: tokens between the states that are kept; 0 or reachable: at reachable "
        "boundaries only; dense: at every block.",
    ),
    ("mode", "block: align, all or none."),
    ("layout", "block: how pages are laid out, padded or packed."),
    (
        "kernel_grid",
        "block: the grid, in tokens from a chunk's start, on which the kernel stores states "
        "inside it; 0: none.",
    ),
    ("chunk", "block: tokens of a prefill chunk."),
    (
        "pd",
        "off; ship: a decode side that gets KV and state; recompute: one that gets no state and "
        "computes from its own.",
    ),
    (
        "arrivals",
        "on takes the trace's arrival times: requests overlap, hold locks and memory while they "
        "run, and wait for each other. off: one after the other.",
    ),
    ("speed", "the trace's clock runs so many times faster; 1e-06 or more."),
    ("hardware", "a preset of rates, see below."),
    (
        "prefill_flops, restore_bandwidth, host_bandwidth, network_bandwidth, decode_seconds",
        "replace one rate of it, of all devices together: FLOP/s, three in bytes/s (2TB), and "
        "seconds a step of decode; preset: as the hardware has it.",
    ),
    ("policy", "FILE.py:Class, a placement or an eviction order of one's own; none."),
)


def settings() -> None:
    """All settings with their defaults, and what they mean."""
    from shutil import get_terminal_size
    from textwrap import fill

    from kdalab.cache.placement import FORMS
    from kdalab.lab import Setup
    from kdalab.lab.hardware import HARDWARE
    from kdalab.lab.setup import shown

    width = max(40, get_terminal_size().columns)

    def say(text: str) -> None:
        typer.echo(fill(text, width, subsequent_indent="    ", break_on_hyphens=False))

    default = Setup()
    say(
        "KEY=VALUE as they are by default, and what they mean; give what differs with -s, as "
        '-s "arrivals=on int8=on". radix: and block: stand for settings of one cache only.'
    )
    typer.echo("")
    for names, text in _MEANINGS:
        values = [f"{n}={shown(n, getattr(default, n))}" for n in names.split(", ")]
        say(f"{' '.join(values)}: {text}")
    typer.echo("")
    say(f"checkpoints, all of them: {FORMS} (N in tokens).")
    typer.echo("\nhardware presets:")
    for h in HARDWARE.values():
        say(f"    {h.name}: {h.prefill_flops / 1e15:.3g} PFLOP/s of prefill. {h.source}")
    say(f"    Assumed: {h.assumed}.")


def print_account(a: Account) -> None:
    """An account as a table, and what it rests on."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"{a.trace}: {a.setup}"), show_header=False, min_width=64)
    table.add_column()
    table.add_column(justify="right")
    for name, value in account_rows(a):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    console.print(f"Assumed: {'; '.join(a.assumptions)}.", style="dim", markup=False)
    o.print_report(a.report)


def account_rows(a: Account) -> list[tuple[str, str]]:
    """(what, value) of an account, for people."""
    from kdalab.units import format_bytes, format_seconds

    def share(tokens: int) -> str:
        return f"{tokens:,} ({tokens / max(1, a.input_tokens):.1%})"

    rows = [
        ("requests", f"{a.requests:,}"),
        ("prompt tokens", f"{a.input_tokens:,}"),
        ("restored (honest hit rate)", share(a.hit_tokens)),
        ("latent KV known (KV-only hit rate)", share(a.known_tokens)),
        ("known text replayed", share(a.replayed_tokens)),
        ("new tokens computed", share(a.new_tokens)),
        ("prefill work saved", f"{a.flops_saved / 1e15:,.1f} PFLOP ({a.flops_saved_share:.1%})"),
        ("checkpoints written", f"{a.states_written:,} ({format_bytes(a.state_bytes_written)})"),
        ("  read at least once", f"{a.states_read_at_least_once:,} ({a.states_read_share:.1%})"),
        ("  restores", f"{a.reads:,} ({format_bytes(a.state_bytes_read)})"),
        ("commits skipped for want of room", f"{a.skipped_commits:,}"),
        ("evicted: latent KV", format_bytes(a.evicted_kv_bytes)),
        ("evicted: checkpoints", f"{format_bytes(a.evicted_state_bytes)} in {a.evicted_states:,}"),
        ("at the end: latent KV", format_bytes(a.kv_bytes)),
        ("at the end: checkpoints", format_bytes(a.state_bytes)),
        ("peak", format_bytes(a.peak_bytes)),
        (
            "time to first token: median / mean / p95",
            " / ".join(format_seconds(s) for s in (a.ttft.p50, a.ttft.mean, a.ttft.p95)),
        ),
    ]
    if a.peak_in_flight:
        rows += [
            (
                "  of it waiting: mean / p95",
                f"{format_seconds(a.queue.mean)} / {format_seconds(a.queue.p95)}",
            ),
            ("machine busy", f"{a.utilisation:.1%} of {a.prefill_span:,.0f} s"),
            ("requests at once, at most", f"{a.peak_in_flight:,}"),
            ("requests that waited for memory", f"{a.waited:,}"),
        ]
    if a.host_bytes_written:
        rows += [
            ("copied to the host", format_bytes(a.host_bytes_written)),
            (
                "loaded from the host",
                f"{format_bytes(a.host_bytes_read)} for {a.host_hits:,} requests",
            ),
        ]
    if a.sent_state_bytes:
        rows.append(
            (
                "sent to the decode side: KV / states",
                f"{format_bytes(a.sent_kv_bytes)} / {format_bytes(a.sent_state_bytes)}",
            )
        )
    if a.decode_side_flops:
        rows.append(
            ("computed again on the decode side", f"{a.decode_side_flops / 1e15:,.1f} PFLOP")
        )
    if a.alpha is not None:
        rows.append(("alpha that tuning chose", f"{a.alpha:g}"))
    rows.append(("time of this replay", format_seconds(a.seconds)))
    return rows
