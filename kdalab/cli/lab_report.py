"""``kdalab lab report``: one page about a trace, to keep and to send."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdalab.cli import lab_options as o
from kdalab.cli.lab_advise import replay_command
from kdalab.cli.lab_replay import account_rows
from kdalab.cli.lab_source import Source

if TYPE_CHECKING:
    from kdalab.lab import Requests, Setup


COLUMNS = (
    "Restored: the share of prompt tokens that need no prefill. KV only: those whose latent KV is "
    "in memory, with a state or without. Work saved: of the FLOPs of prefill. States: checkpoints "
    "written; read: the share of them that a request restored from. TTFT: time to first token."
)


def report(
    source: Source,
    out: Annotated[Path, typer.Option(help="The page.")] = Path("lab_report.html"),
    budgets: Annotated[
        str, typer.Option(help="Memories of the sweep, with commas.")
    ] = "64GiB,256GiB,1TiB",
    objective: Annotated[str, typer.Option(help="Of the advice: ttft or flops.")] = "ttft",
    jobs: o.JobsOpt = 1,
    settings: o.SetOpt = None,
    model: o.ModelOpt = None,
    memory: o.LimitedMemoryOpt = None,
) -> None:
    """Write one HTML page: the trace, an account, a sweep, the advice, and what all rests on."""
    from kdalab.errors import KdalabError

    with o.known_errors():
        o.check_writable(out)
        o.check_no_input(source.trace, out)
        setup = o.build_setup(settings, model, memory, None, arrivals=True, limit=o.LIMIT)
        o.check_policy(setup, set(o.set_values(settings)))
        requests = source.read()
        html = build_report(requests, setup, budgets, objective, jobs, source.words)
        try:
            out.write_text(html)
        except OSError as error:
            raise KdalabError(f"cannot write {str(out)!r}: {error.strerror}") from error
    typer.echo(f"{out}: {out.stat().st_size / 2**20:.1f} MiB, needs no network")


def build_report(
    requests: Requests, setup: Setup, budgets: str, objective: str, jobs: int, words: str
) -> str:
    """The page: one replay, a sweep over memories, and the search for settings; ``words`` are the
    trace and its options as they are typed."""
    from kdalab.lab import report_of
    from kdalab.lab.advise import advise
    from kdalab.lab.cells import (
        advice_failures,
        advice_gain,
        advice_rows,
        common_setup,
        failures,
        simpler_words,
        sweep_rows,
    )
    from kdalab.lab.run import replay_setup
    from kdalab.lab.setup import BLOCK_ONLY, DEFAULTS, RADIX_ONLY, shown
    from kdalab.lab.stats import trace_stats
    from kdalab.lab.sweep import combine, pareto, sweep
    from kdalab.viz.lab_figures import memory_figure, pareto_figure
    from kdalab.viz.lab_report import (
        code_html,
        figure_html,
        list_html,
        report_html,
        rows_html,
        text_html,
    )

    axes = {"memory": [b.strip() for b in budgets.split(",") if b.strip()]}
    if setup.cache == "radix":
        axes |= {
            "checkpoints": ["leaf", "leaf+branch", "every:4096", "branch-first:8192"],
            "int8": ["off", "on"],
        }
    setups, _ = combine(setup, axes)  # before any work: a mistyped memory is refused here
    stats = trace_stats(requests)
    account = replay_setup(requests, setup)
    rows = sweep(requests, setups, jobs)
    best = pareto(rows, "memory")
    found = advise(requests, setup, objective, jobs=jobs)
    own = {*RADIX_ONLY, *BLOCK_ONLY, "cache", "retention"} - {"decoded", "chunk"}
    left = [
        f"{name}={shown(name, value)}"
        for name, value in setup.as_dict().items()
        if name in own and value != DEFAULTS[name]
    ]
    samples = [s._asdict() for s in account.over_time]
    if objective == "ttft" and not setup.arrivals:
        left.append("arrivals=off")
    sections = [
        ("The trace", rows_html(stats.rows()) + list_html(report_of(requests).lines)),
        ("One replay", code_html([account.setup]) + rows_html(account_rows(account))),
        ("Memory over time", figure_html(memory_figure(samples, setup.memory), first=True)),
    ]
    if any(not r["error"] for r in rows):
        sections.append(("Sweep", figure_html(pareto_figure(rows, best), first=False)))
    header, cells = sweep_rows(rows, best)
    failed = failures(rows)
    table = text_html(f"In common: {common_setup(rows)}. A star marks what no other row beats.")
    table += text_html(COLUMNS)
    table += rows_html(cells, header, names=3) + list_html(failed)
    sections.append(("All rows of the sweep", table))
    for a in found:
        header, cells = advice_rows(a)
        text = code_html([*a.flags, "", "in the lab:", replay_command(a, words)])
        text += text_html(f"{advice_gain(a)} {simpler_words()}") + rows_html(cells, header, names=2)
        text += list_html(advice_failures(a))
        system = "decoded" if a.system == "vLLM" else "chunk"  # what only the other one takes
        other = [f"{system}={shown(system, value)}"] if (
            value := getattr(setup, system)) != DEFAULTS[system] else []  # fmt: skip
        if said := ", ".join([*left, *other]):
            text += text_html(
                f"The replay above has {said}; the advice is made without: what it sets, it chose "
                "itself."
            )
        text = "".join(text_html(f"Warning: {w}.", warning=True) for w in a.warnings) + text
        sections.append((f"Advice for {a.system}", text))
        sections.append(("What that rests on", list_html(a.assumptions)))
    sections.append(("What the replay assumed", list_html(account.assumptions)))
    return report_html(f"KDALab: {requests.name}", sections)
