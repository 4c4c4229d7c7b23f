"""The `hookline` command: its options, and the commands `demo` and `trace`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hookline.cli._commands import CommandApp, command_line_of
from hookline.cli._exit_codes import MEANINGS, MISUSED, exit_code_of
from hookline.cli._options import Concurrency, Endpoint, RecordFile, Tasks
from hookline.cli._outputs import resolve_output, send_spans, write_otlp, write_recording
from hookline.cli._story import tell_story
from hookline.cli._terminal import report_errors
from hookline.cli.chat import chat
from hookline.cli.errors import TraceTargetError
from hookline.cli.eval import Evaluation, eval_app, evaluate, find_cases, find_suite, show_evaluation
from hookline.cli.init import init
from hookline.cli.operate import (
    approvals_app,
    audit_app,
    budgets_app,
    deliveries_app,
    doctor,
    endpoints_app,
    executions_app,
    hooks_app,
    host_app,
    keys_app,
    operations_app,
    relay_app,
    run_worker,
    serve,
)
from hookline.cli.trace import EventRecording, Tracing, load_events, otlp_json, replay_events, show_spans
from hookline.evals.reports import check_writable, write_report

__all__ = ["app"]

DEMO_SUITES = ("agentdojo:banking", "agentdojo:workspace")

VIEWER = """\
To see each run as a trace in a viewer on this machine, install one, such as
Phoenix (Elastic License 2.0), in its own environment:
  pip install arize-phoenix
  phoenix serve
Then run here:
  hookline demo --otlp-endpoint http://127.0.0.1:6006"""

EXIT_CODES = "\n".join(["Exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in MEANINGS.items())])

START, RUN, OPERATE = "Start", "Run agents", "Operate a store"
"""Topics under which the help lists commands."""

OVERVIEW = """\
hookline: lifecycle hooks for AI agents. See, steer and test every run.

  Start            demo, init, doctor
  Run agents       chat, eval, trace, host
  Operate a store  serve, worker, hooks, approvals, operations,
                   executions, budgets, deliveries, endpoints, relay, keys, audit

hookline demo shows what hookline does, in a minute, without a model.
hookline --help describes every command, hookline COMMAND --help one of them."""

app = CommandApp(
    name="hookline",
    epilog=EXIT_CODES,
    help="Lifecycle hooks for AI agents: see, steer and test every run.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    """Show the version and exit, before a command is looked for."""
    if wanted:
        typer.echo(f"hookline {importlib.metadata.version('hookline')}")
        raise typer.Exit


@app.callback()
def hookline(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Lifecycle hooks for AI agents: see, steer and test every run."""
    if context.invoked_subcommand is None:
        typer.echo(OVERVIEW)
        raise typer.Exit(MISUSED)


@app.command(rich_help_panel=START)
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
        evaluation = run(
            DEMO_SUITES,
            [],
            mocked=True,
            concurrency=concurrency,
            tracing=tracing,
            made_by=command_line_of(context),
        )
        written = write_report(report, evaluation.runs, evaluation.comparison)
        show_evaluation(console, evaluation, written)
        arrived = send_spans(console, tracing)
        if tracing is None or not arrived:
            console.print(f"\n{VIEWER}", soft_wrap=True)
    raise typer.Exit(exit_code_of(ok=evaluation.ok, judged=evaluation.judged, arrived=arrived))


def trace(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A recorded run, or agentdojo:SUITE to run its first task.")
    ],
    task: Tasks = None,
    concurrency: Concurrency = 1,
    content: Annotated[
        bool, typer.Option("--content", help="Record and show prompts, answers, arguments and results.")
    ] = False,
    hooks: Annotated[bool, typer.Option("--hooks", help="Show each hook as a span.")] = False,
    record: RecordFile = None,
    otlp_file: Annotated[
        Path | None, typer.Option("--otlp-json", metavar="FILE", help="Write the spans as OTLP/JSON.")
    ] = None,
    otlp_endpoint: Endpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the spans on stdout, as OTLP/JSON.")] = False,
) -> None:
    """Show a run as a tree of spans.

    The tree shows what was slow, failed, denied, mocked, or waiting for a person.

    A recorded run is a file of events, as --record writes it. It shows no model calls and no hooks, because they
    have no events.

    Exits with 0 even if a run failed, with 2 for a wrong name or a file that cannot be read, with 4 if spans did not
    arrive, with 1 for any other error.
    """
    with report_errors():
        record, otlp_file = resolve_output(record), resolve_output(otlp_file)
        tracing = Tracing(otlp_endpoint, content=content, hook_spans=hooks)
        kept = EventRecording() if record is not None else None
        suite = target.startswith("agentdojo:")
        if not suite and (task or hooks or kept):
            raise TraceTargetError(target, "--task, --hooks and --record do not apply to a recorded run")
        titles: dict[str, str] = {}
        try:
            if suite:
                tasks = task or find_suite(target).select()[:1]
                evaluation = run([target], tasks, mocked=False, concurrency=concurrency, tracing=tracing, kept=kept)
                titles = {each.operation_id: each.name for each in evaluation.runs[0].results}
            else:
                replay_events(tracing.hooks, load_events(target))
        finally:  # after Ctrl-C too, to show where the run was hanging
            tracing.hooks.close()
            if tracing.spans:
                print_spans(tracing, titles, as_json=as_json)
        if not tracing.spans:
            raise TraceTargetError(target, "it has no spans")
        console = Console(highlight=False, stderr=as_json)
        if not suite and not as_json:
            console.print("A recorded run has no model calls: they have no events.", style="dim")
        write_otlp(console, tracing, otlp_file)
        write_recording(console, kept, record)
        arrived = send_spans(console, tracing)
    raise typer.Exit(exit_code_of(ok=True, arrived=arrived))


def print_spans(tracing: Tracing, titles: Mapping[str, str], *, as_json: bool) -> None:
    """Print spans on stdout."""
    if as_json:
        typer.echo(otlp_json(tracing.spans))
    else:
        show_spans(Console(highlight=False), tracing.spans, titles)


def run(
    targets: list[str] | tuple[str, ...],
    tasks: list[str],
    *,
    mocked: bool,
    concurrency: int,
    tracing: Tracing | None = None,
    kept: EventRecording | None = None,
    made_by: str = "hookline trace",
) -> Evaluation:
    """Load suites and run their tasks, with a progress bar on stderr where that is a terminal."""
    return evaluate(
        Console(stderr=True),
        list(targets),
        find_cases(targets, tasks),
        mocked=mocked,
        concurrency=concurrency,
        hooks=[tracing.hooks] if tracing is not None else [],
        recording=[kept.hooks] if kept is not None else [],
        made_by=made_by,
    )


app.command(rich_help_panel=START)(init)
app.command(rich_help_panel=START)(doctor)
app.command(rich_help_panel=RUN)(chat)
app.add_typer(eval_app, rich_help_panel=RUN)
app.command(rich_help_panel=RUN)(trace)
app.add_typer(host_app, rich_help_panel=RUN)
app.command(rich_help_panel=OPERATE)(serve)
app.command("worker", rich_help_panel=OPERATE)(run_worker)
for group in (
    hooks_app,
    approvals_app,
    operations_app,
    executions_app,
    budgets_app,
    deliveries_app,
    endpoints_app,
    relay_app,
    keys_app,
    audit_app,
):
    app.add_typer(group, rich_help_panel=OPERATE)
