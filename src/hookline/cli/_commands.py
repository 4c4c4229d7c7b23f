"""What the commands have in common: options, and errors in one line."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hookline.cli._exit_codes import FAILED, MISUSED, interrupted_code
from hookline.cli.errors import (
    ChatArgumentError,
    EndpointError,
    InputFileError,
    NotAStoreError,
    OutputFileError,
    StoreMissingError,
    TraceTargetError,
    TracingDisabledError,
)
from hookline.errors import HooklineError, HookUsageError
from hookline.evals.errors import (
    EventFileError,
    FaultFileError,
    ReportError,
    UnknownAttackChoiceError,
    UnknownSuiteError,
    UnknownTaskError,
)
from hookline.evals.suites import CassetteFolderError, RunFileError, SuiteFileError

__all__ = [
    "Concurrency",
    "Endpoint",
    "RecordFile",
    "Tasks",
    "told_in_one_line",
]

MISUSES = (
    CassetteFolderError,
    ChatArgumentError,
    EndpointError,
    EventFileError,
    FaultFileError,
    HookUsageError,
    InputFileError,
    NotAStoreError,
    OutputFileError,
    ReportError,
    RunFileError,
    StoreMissingError,
    SuiteFileError,
    TraceTargetError,
    TracingDisabledError,
    UnknownAttackChoiceError,
    UnknownSuiteError,
    UnknownTaskError,
)
"""What is wrong with what a person has asked for; every other error is a failure."""

FURTHER_MISUSES = (
    ("hookline.delivery._signing", "WebhookKeyError"),
    ("hookline.registry._errors", "DefinitionError"),
)
"""The same, of modules that take long to import: there is such an error only where its module is loaded."""

Concurrency = Annotated[int, typer.Option(min=1, help="How many operations run at the same time.")]
Endpoint = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send spans there by OTLP/HTTP, to /v1/traces unless the URL has a path."),
]
RecordFile = Annotated[
    Path | None, typer.Option("--record", metavar="FILE", help="Write the events there, for `hookline trace FILE`.")
]
Tasks = Annotated[list[str] | None, typer.Option(metavar="TASK", help="Only this task (user_task_0); may be repeated.")]


@contextlib.contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn what a person can put right into one line on stderr, and Ctrl-C into a quiet end."""
    try:
        yield
    except HooklineError as error:
        typer.echo(f"hookline: {error}", err=True)
        raise typer.Exit(MISUSED if _is_misuse(error) else FAILED) from None
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.echo(f"hookline: what there is to show cannot be written: {error.strerror}", err=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        typer.echo("hookline: interrupted", err=True)
        raise typer.Exit(interrupted_code()) from None


def _is_misuse(error: HooklineError) -> bool:
    if getattr(error, "code", None) == "read_only":  # a definition that may not be changed is refused, not wrong
        return False
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in FURTHER_MISUSES)
    return isinstance(error, (*MISUSES, *(kind for kind in kinds if isinstance(kind, type))))
