"""``kdalab lab advise``: the settings that fit a trace, as flags of SGLang and vLLM."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_source import Source

if TYPE_CHECKING:
    from kdalab.lab.advise import Advice


def advise(
    source: Source,
    model: o.ModelOpt = None,
    memory: o.MemoryOpt = None,
    objective: Annotated[str, typer.Option(help="ttft or flops.")] = "ttft",
    host: Annotated[str, typer.Option(help="A host tier that could be had: 1TiB, off.")] = "off",
    system: Annotated[str, typer.Option(help="SGLang, vLLM or both.")] = "both",
    jobs: o.JobsOpt = 1,
    settings: o.SetOpt = None,
    policy: o.PolicyOpt = None,
    as_json: o.JsonOpt = False,
) -> None:
    """Search for the settings that fit a trace, as flags of SGLang and vLLM, and their gain."""
    from kdalab.errors import KdalabError
    from kdalab.lab import report_of
    from kdalab.lab.advise import advise as search
    from kdalab.units import parse_bytes

    with o.known_errors():
        known = {"sglang": ("SGLang",), "vllm": ("vLLM",), "both": ("SGLang", "vLLM")}
        if system.lower() not in known:
            raise KdalabError(f"system {system!r}; allowed: SGLang, vLLM, both")
        systems = known[system.lower()]
        tier = 0 if host.lower() == "off" else parse_bytes(host)
        check_asked(o.set_values(settings), objective, systems, tier)
        cache = "block" if systems == ("vLLM",) else "radix"
        base = o.build_setup(settings, model, memory, cache=cache)
        requests = source.read()
        with o.progress("replays", quiet=as_json) as show:
            found = search(
                requests,
                base,
                objective,
                tier,
                jobs,
                systems,
                lambda n: show(n, None),
                policy,
            )
    if as_json:
        told = [{**a.as_dict(), "command": replay_command(a, source.words)} for a in found]
        typer.echo(json.dumps(told, indent=2))
        return
    for advice in found:
        print_advice(advice, source.words)
    o.print_report(report_of(requests))


def check_asked(
    asked: dict[str, Any], objective: str, systems: Sequence[str], host: int = 0
) -> None:
    """See that ``advise`` takes every setting that ``--set`` names, and drops none.

    Args:
        asked: setting -> value, as ``--set`` has them.
        host: bytes of a host tier that could be had.

    Raises:
        KdalabError: one that it chooses itself, or that is no part of what it advises.
    """
    from kdalab.errors import KdalabError
    from kdalab.lab.setup import BLOCK_ONLY, DEFAULTS, shown

    typed = {name: f"{name}={shown(name, value)}" for name, value in asked.items()}
    chosen = {"cache", "checkpoints", "retention", "split", "int8", *BLOCK_ONLY} - {"chunk"}
    for name in sorted(set(asked) & {*chosen, "pd", "host", "policy"}):
        if name not in chosen and asked[name] == DEFAULTS[name]:
            continue  # pd=off and the like: so it is
        if name in chosen:
            why = "advise chooses it itself; leave it out"
        elif name == "pd":
            why = "advise is for one deployment that does both; leave it out"
        else:
            why = f"advise takes it as --{name}"
        see = typed[name] if name not in BLOCK_ONLY else f'"cache=block {typed[name]}"'
        raise KdalabError(f"{typed[name]}: {why}. To see what it does: lab replay ... -s {see}")
    if asked.get("arrivals") is False and objective == "ttft":
        raise KdalabError(
            "arrivals=off: the objective ttft counts waiting, so advise takes the arrival times; "
            "leave it out, or use --objective flops"
        )
    if "chunk" in asked and "SGLang" in systems:
        raise KdalabError(
            f"{typed['chunk']}: for SGLang advise chooses it itself; leave it out, or add "
            "--system vLLM"
        )
    if asked.get("decoded") and "vLLM" in systems:
        raise KdalabError("decoded=on is a setting of the radix cache; add --system SGLang")
    if host and "SGLang" not in systems:
        raise KdalabError("--host: only SGLang's advice has a host tier; add --system SGLang")
    if "write_through" in asked and not host:
        raise KdalabError(f"{typed['write_through']} is of a host tier; add --host SIZE")


def replay_command(a: Advice, words: str) -> str:
    """The command that replays a recommendation, to the figures that it promises; ``words`` are
    those of its trace."""
    return f"kdalab lab replay {words} -s {shlex.quote(a.setup)}"


def print_advice(a: Advice, words: str) -> None:
    """A recommendation: flags, gain, sensitivity, assumptions; ``words`` as in
    ``replay_command``."""
    from rich.console import Console
    from rich.table import Table

    from kdalab.lab.advise import OBJECTIVES
    from kdalab.lab.cells import (
        advice_failures,
        advice_gain,
        advice_rows,
        significant,
        simpler_words,
    )
    from kdalab.lab.setup import shown

    console = Console()
    console.print(
        f"\n[bold]{a.system}[/]  (objective: {OBJECTIVES[a.objective]}; memory: "
        f"{shown('memory', a.after['memory'])}; machine: {a.after['hardware']}; "
        f"{a.replays} replays)",
        highlight=False,
    )
    for flag in a.flags:
        console.print(f"  {flag}", markup=False, highlight=False, soft_wrap=True)
    command = replay_command(a, words)
    console.print(f"  in the lab: {command}", markup=False, style="dim", soft_wrap=True)
    table = Table(show_header=True)
    for name in ("", "defaults", "recommended"):
        table.add_column(name, justify="left" if not name else "right")
    for name, key, form in (
        ("restored", "hit_rate", "{:.1%}".format),
        ("prefill work saved", "flops_saved_share", "{:.1%}".format),
        ("time to first token, mean, s", "ttft_mean", significant),
        ("time to first token, 95th percentile, s", "ttft_p95", significant),
        ("checkpoints written", "states_written", "{:,}".format),
    ):
        table.add_row(name, form(a.before[key]) if key in a.before else "-", form(a.after[key]))
    console.print(table)
    console.print(f"  {advice_gain(a)} {simpler_words()}", markup=False, highlight=False)
    near = Table(title="One setting changed", title_justify="left")
    header, cells = advice_rows(a)
    for place, name in enumerate(header):
        near.add_column(name, justify="left" if place < 2 else "right", overflow="fold")
    for row in cells:
        near.add_row(*row)
    console.print(near)
    for text in advice_failures(a):
        console.print(text, markup=False, highlight=False)
    for text in a.warnings:
        console.print(f"[yellow]Warning:[/] {text}")
    console.print(f"Assumed: {'; '.join(a.assumptions)}.", style="dim", markup=False)
