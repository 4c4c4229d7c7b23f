"""`hookline trace TARGET`: show a run as a tree of spans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hookline.cli._exit_codes import exit_code_of
from hookline.cli._options import Concurrency, Endpoint, RecordFile, Tasks
from hookline.cli._outputs import resolve_output, send_spans, write_otlp, write_recording
from hookline.cli._terminal import report_errors
from hookline.cli.errors import TraceTargetError
from hookline.cli.eval import evaluate, find_cases, find_suite
from hookline.cli.trace import EventRecording, Tracing, load_events, otlp_json, replay_events, show_spans

__all__ = ["trace"]


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
                evaluation = evaluate(
                    Console(stderr=True),
                    [target],
                    find_cases([target], tasks),
                    mocked=False,
                    concurrency=concurrency,
                    hooks=[tracing.hooks],
                    recording=[kept.hooks] if kept is not None else [],
                    made_by="hookline trace",
                )
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
