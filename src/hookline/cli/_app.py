"""What the `hookline` command understands."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hookline.cli._evaluation import Evaluation, evaluate, found_suite
from hookline.cli._tables import show
from hookline.errors import HooklineError
from hookline.evals.errors import ReportError, UnknownSuiteError, UnknownTaskError
from hookline.evals.report import check_writable, write_report
from hookline.evals.runner import Case, cases_of

__all__ = ["app"]

DEMO_SUITES = ("agentdojo:banking", "agentdojo:workspace")

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: the evaluation failed; the command makes no sense; Ctrl-C."""

app = typer.Typer(
    name="hookline",
    help="Lifecycle hooks for AI agents: see, steer and test every run without touching the loop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Concurrency = Annotated[int, typer.Option(min=1, help="How many operations run at the same time.")]


def show_version(wanted: bool) -> None:
    """Show the version and leave, before a command is looked for."""
    if wanted:
        typer.echo(f"hookline {importlib.metadata.version('hookline')}")
        raise typer.Exit


@app.callback()
def hookline(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Lifecycle hooks for AI agents: see, steer and test every run without touching the loop."""


@app.command()
def demo(
    report: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the HTML report.")] = Path(
        "hookline-demo.html"
    ),
    concurrency: Concurrency = 8,
) -> None:
    """Run real agent tasks twice: with their real tools, then with every tool call answered by a recording.

    The tasks are AgentDojo's banking and workspace suites. Hooks watch all sixteen events of every operation. The
    second run may touch no real tool and must produce the same results as the first.
    """
    with told_in_one_line():
        check_writable(report)
        evaluation = run(DEMO_SUITES, [], mocked=True, concurrency=concurrency)
        written = write_report(report, evaluation.runs, evaluation.comparison)
        show(Console(highlight=False), evaluation, written)
    raise typer.Exit(0 if evaluation.ok else FAILED)


@app.command("eval")
def evaluate_suite(
    target: Annotated[str, typer.Argument(metavar="agentdojo:SUITE", help="banking, workspace, travel or slack.")],
    task: Annotated[
        list[str] | None, typer.Option(metavar="TASK", help="Only this task (user_task_0); may be repeated.")
    ] = None,
    mocked: Annotated[
        bool, typer.Option("--mocked", help="Run again, every tool call answered by what was recorded, and compare.")
    ] = False,
    concurrency: Concurrency = 8,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Run the tasks of a suite, check each with the suite's own judgement, and show what its hooks cost.

    Exits with 1 if a task fails its check or a replay differs from what was recorded, with 2 for a wrong name.
    """
    with told_in_one_line():
        if report is not None:
            check_writable(report)
        evaluation = run([target], task or [], mocked=mocked, concurrency=concurrency)
        written = write_report(report, evaluation.runs, evaluation.comparison) if report is not None else None
        if as_json:
            typer.echo(evaluation.as_json(written))
        else:
            show(Console(highlight=False), evaluation, written)
    raise typer.Exit(0 if evaluation.ok else FAILED)


def run(targets: list[str] | tuple[str, ...], tasks: list[str], *, mocked: bool, concurrency: int) -> Evaluation:
    """Load suites and run their tasks, with a progress bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    cases: list[Case] = []
    with console.status("Loading AgentDojo …") if console.is_terminal else contextlib.nullcontext():
        cases.extend(cases_of([found_suite(target) for target in targets], tasks))
    return evaluate(console, list(targets), cases, mocked=mocked, concurrency=concurrency)


@contextlib.contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn what a person can put right into one line on stderr, and Ctrl-C into a quiet end."""
    try:
        yield
    except HooklineError as error:
        typer.echo(f"hookline: {error}", err=True)
        misused = isinstance(error, UnknownSuiteError | UnknownTaskError | ReportError)
        raise typer.Exit(MISUSED if misused else FAILED) from None
    except KeyboardInterrupt:
        typer.echo("hookline: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
