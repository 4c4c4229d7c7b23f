"""What a command leaves behind beside what it prints: files, and spans that it sends."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from hookline.cli._errors import OutputFileError, without_password
from hookline.cli._otlp import PROJECT, Tracing, otlp_json, send
from hookline.cli._recorded import Recording
from hookline.evals.errors import ReportError
from hookline.evals.event_files import write_events
from hookline.evals.report import check_writable

__all__ = ["checked", "deliver", "keep", "keep_otlp"]


def checked(path: Path | None) -> Path | None:
    """The absolute path of a file that is asked for, if it can be written.

    Raises:
        OutputFileError: If it cannot.
    """
    try:
        return None if path is None else check_writable(path)
    except ReportError as error:
        raise OutputFileError(error.path, error.reason) from None


def keep(console: Console, recording: Recording | None, path: Path | None) -> None:
    """Write the events of a recording, if they are asked for.

    Raises:
        EventFileError: If an event cannot be written.
    """
    if recording is not None and path is not None:
        write_events(path, recording.events)
        console.print(f"Recorded run: {escape(str(path))}", soft_wrap=True)


def keep_otlp(console: Console, tracing: Tracing, path: Path | None) -> None:
    """Write spans as OTLP/JSON, if they are asked for.

    Raises:
        OutputFileError: If that fails.
    """
    if path is None:
        return
    try:
        path.write_text(otlp_json(tracing.spans) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputFileError(str(path), error.strerror or str(error)) from error
    console.print(f"OTLP/JSON: {escape(str(path))}", soft_wrap=True)


def deliver(console: Console, tracing: Tracing | None) -> bool:
    """Send spans, if they are asked for, and say what became of them.

    Returns:
        Whether all of them arrived.
    """
    if tracing is None or tracing.url is None:
        return True
    told = send(tracing.spans, tracing.url)
    url = without_password(tracing.url)
    if told.sent:
        base = url.removesuffix("/v1/traces")
        console.print(f"Sent {told.sent:,} spans to {escape(url)}", soft_wrap=True)
        console.print(f"Phoenix shows them at {escape(base)}, in the project {PROJECT}.", soft_wrap=True)
    if told.lost:
        of = f"{told.lost:,} of {told.sent + told.lost:,} spans were lost on the way to {url}"
        typer.echo(f"hookline: {of}: {without_password(told.reason) or 'no reason was given'}", err=True)
    return not told.lost
