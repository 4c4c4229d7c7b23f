"""`hookline demo`: short runs with hooks, then two AgentDojo suites with real tools and from a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hookline.cli._commands import command_line_of
from hookline.cli._exit_codes import exit_code_of
from hookline.cli._options import Concurrency, Endpoint
from hookline.cli._outputs import send_spans
from hookline.cli._story import tell_story
from hookline.cli._terminal import report_errors
from hookline.cli.eval import evaluate, find_cases, show_evaluation
from hookline.cli.trace import Tracing
from hookline.evals.reports import check_writable, write_report

__all__ = ["demo"]

DEMO_SUITES = ("agentdojo:banking", "agentdojo:workspace")

VIEWER = """\
To see each run as a trace in a viewer on this machine, install one, such as
Phoenix (Elastic License 2.0), in its own environment:
  pip install arize-phoenix
  phoenix serve
Then run here:
  hookline demo --otlp-endpoint http://127.0.0.1:6006"""


def demo(
    context: typer.Context,
    report: Annotated[Path, typer.Option(metavar="FILE", help="File of the HTML report.")] = Path("hookline-demo.html"),
    concurrency: Concurrency = 8,
    otlp_endpoint: Endpoint = None,
) -> None:
    """Show six short runs with hooks, then run an agent suite twice.

    The suite is AgentDojo's banking and workspace tasks, with hooks on all sixteen events. In the second run a
    recording of the first answers every tool call: no real tool runs, and the results must be the same.

    Exits with 1 if the results differ, with 4 if spans did not arrive.
    """
    with report_errors():
        check_writable(report)
        tracing = Tracing(otlp_endpoint) if otlp_endpoint is not None else None
        console = Console(highlight=False)
        tell_story(console)
        console.print("Now two AgentDojo suites, with real tools and then from a recording:", style="dim")
        evaluation = evaluate(
            Console(stderr=True),
            list(DEMO_SUITES),
            find_cases(DEMO_SUITES, []),
            mocked=True,
            concurrency=concurrency,
            hooks=[tracing.hooks] if tracing is not None else [],
            made_by=command_line_of(context),
        )
        written = write_report(report, evaluation.runs, evaluation.comparison)
        show_evaluation(console, evaluation, written)
        arrived = send_spans(console, tracing)
        if tracing is None or not arrived:
            console.print(f"\n{VIEWER}", soft_wrap=True)
    raise typer.Exit(exit_code_of(ok=evaluation.ok, judged=evaluation.judged, arrived=arrived))
