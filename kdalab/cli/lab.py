"""``kdalab lab``: any trace in, an honest account out."""

from __future__ import annotations

import typer

from kdalab.cli import (
    lab_advise,
    lab_policy,
    lab_replay,
    lab_report,
    lab_sweep,
    lab_trace,
    lab_yardsticks,
)
from kdalab.cli.lab_source import with_source

app = typer.Typer(
    no_args_is_help=True,
    help="Replay traces in any format; sweep, advise, report; try policies of your own.",
)
app.command("stats")(with_source(lab_trace.stats))
app.command("generate")(lab_trace.generate)
app.command("formats")(lab_trace.formats)
app.command("replay")(with_source(lab_replay.replay))
app.command("settings")(lab_replay.settings)
app.command("sweep")(with_source(lab_sweep.sweep))
app.command("advise")(with_source(lab_advise.advise))
app.command("report")(with_source(lab_report.report))
app.command("policy-template")(lab_policy.policy_template)
app.command("leaderboard")(with_source(lab_policy.leaderboard, ("jobs", "as_json")))
app.command("agree")(with_source(lab_yardsticks.agree_command))
app.command("bounds")(with_source(lab_yardsticks.bounds_command))
