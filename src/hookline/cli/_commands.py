"""What the commands have in common: options, exit codes, errors in one line."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hookline.cli._chat_errors import ChatArgumentError
from hookline.cli._errors import EndpointError, OutputFileError, TraceTargetError, TracingDisabledError
from hookline.errors import HooklineError
from hookline.evals._fault_errors import FaultFileError
from hookline.evals.errors import EventFileError, ReportError, UnknownSuiteError, UnknownTaskError
from hookline.evals.suites import CassetteFolderError, RunFileError, SuiteFileError
from hookline.evals.suites._attack_errors import UnknownAttackChoiceError

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "LOST",
    "MISUSED",
    "Concurrency",
    "Endpoint",
    "RecordFile",
    "Tasks",
    "code",
    "told_in_one_line",
]

FAILED, MISUSED, LOST, INTERRUPTED = 1, 2, 3, 130
"""Exit codes: the evaluation failed; the command makes no sense; spans did not arrive; Ctrl-C."""

MISUSES = (
    CassetteFolderError,
    ChatArgumentError,
    EndpointError,
    EventFileError,
    FaultFileError,
    OutputFileError,
    ReportError,
    RunFileError,
    SuiteFileError,
    TraceTargetError,
    TracingDisabledError,
    UnknownAttackChoiceError,
    UnknownSuiteError,
    UnknownTaskError,
)

Concurrency = Annotated[int, typer.Option(min=1, help="How many operations run at the same time.")]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send spans there by OTLP/HTTP, to /v1/traces unless the URL has a path."),
]
RecordFile = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Write the events there, for `hookline trace FILE`.")
]
Tasks = Annotated[list[str] | None, typer.Option(metavar="TASK", help="Only this task (user_task_0); may be repeated.")]


def code(ok: bool, arrived: bool) -> int:
    """The exit code of an evaluation."""
    return FAILED if not ok else 0 if arrived else LOST


@contextlib.contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn what a person can put right into one line on stderr, and Ctrl-C into a quiet end."""
    try:
        yield
    except HooklineError as error:
        typer.echo(f"hookline: {error}", err=True)
        raise typer.Exit(MISUSED if isinstance(error, MISUSES) else FAILED) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.echo(f"hookline: what there is to show cannot be written: {error.strerror}", err=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        typer.echo("hookline: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
