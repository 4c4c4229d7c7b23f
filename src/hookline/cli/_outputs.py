"""Write the files and send the spans that a command was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from hookline.cli._terminal import print_path
from hookline.cli.errors import OutputFileError, without_password
from hookline.cli.trace import PROJECT, EventRecording, Tracing, otlp_json, send
from hookline.evals import agentevals_messages, canonical, write_inspect_log
from hookline.evals.errors import ReportError
from hookline.evals.reports import check_writable, write_junit, write_report
from hookline.evals.running import SuiteRun, describe_key
from hookline.evals.trajectories import write_events

if TYPE_CHECKING:
    from hookline.cli.eval import Evaluation

__all__ = ["OutputFiles", "resolve_output", "send_spans", "write_otlp", "write_recording"]


@dataclass(frozen=True, kw_only=True)
class OutputFiles:
    """The files that an evaluation was asked to write.

    Attributes:
        report: The HTML report.
        junit: JUnit XML.
        save: The run itself.
        inspect: An Inspect log.
        messages: Message lists.
    """

    report: Path | None
    junit: Path | None
    save: Path | None
    inspect: Path | None
    messages: Path | None

    @classmethod
    def resolve(cls, *, report: Path | None, **others: Path | None) -> OutputFiles:
        """Return the files with absolute paths, if all of them can be written.

        Raises:
            ReportError: If one cannot.
        """
        target = None if report is None else check_writable(report)
        found = {name: resolve_output(path) for name, path in others.items()}
        log = found.get("inspect")
        if log is not None and log.suffix not in (".json", ".eval"):
            raise OutputFileError(str(log), "the name of an Inspect log must end in .eval or .json")
        return cls(report=target, **found)

    @property
    def any(self) -> bool:
        """Whether any file was asked for."""
        return any((self.report, self.junit, self.save, self.inspect, self.messages))

    def write(self, evaluation: Evaluation) -> None:
        """Write the files, except for the saved run, which is written as tasks end. Of two runs, the first is exported.

        Raises:
            ReportError: If one cannot be written.
        """
        runs = evaluation.runs
        if self.report is not None:
            write_report(self.report, runs, evaluation.comparison)
        if self.junit is not None:
            write_junit(self.junit, runs)
        if self.inspect is not None:
            write_inspect_log(self.inspect, runs[0])
        if self.messages is not None:
            _write_text(self.messages, canonical(_message_lists(runs[0]), indent=1, sort_keys=False))

    def print_paths(self, console: Console, *, report: bool = False) -> None:
        """Print where the files are; the report only if asked to."""
        named = {"Report": self.report if report else None, "JUnit": self.junit, "Saved run": self.save}
        named |= {"Inspect log": self.inspect, "Messages": self.messages}
        for name, path in named.items():
            if path is not None:
                print_path(console, name, path)


def _message_lists(run: SuiteRun) -> dict[str, list[dict[str, Any]]]:
    """Return the messages of each result, those of the user included."""
    return {describe_key(result.key, quote=False): agentevals_messages(result) for result in run.results}


def resolve_output(path: Path | None) -> Path | None:
    """Return the absolute path of a file to write, if it can be written.

    Raises:
        OutputFileError: If it cannot.
    """
    try:
        return None if path is None else check_writable(path)
    except ReportError as error:
        raise OutputFileError(error.path, error.reason) from None


def write_recording(console: Console, recording: EventRecording | None, path: Path | None) -> None:
    """Write the events of a recording, if they are asked for.

    Raises:
        EventFileError: If an event cannot be written.
    """
    if recording is not None and path is not None:
        write_events(path, recording.events)
        print_path(console, "Recorded run", path)


def write_otlp(console: Console, tracing: Tracing, path: Path | None) -> None:
    """Write spans as OTLP/JSON, if they are asked for.

    Raises:
        OutputFileError: If that fails.
    """
    if path is None:
        return
    _write_text(path, otlp_json(tracing.spans))
    print_path(console, "OTLP/JSON", path)


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputFileError(str(path), error.strerror or str(error)) from error


def send_spans(console: Console, tracing: Tracing | None) -> bool:
    """Send spans, if that is asked for, and print how many arrived.

    Returns:
        Whether all of them arrived.
    """
    if tracing is None or tracing.url is None:
        return True
    report = send(tracing.spans, tracing.url)
    url = without_password(tracing.url)
    if report.sent:
        base = url.removesuffix("/v1/traces")
        console.print(f"Sent {report.sent:,} spans to {escape(url)}", soft_wrap=True)
        console.print(f"Phoenix shows them at {escape(base)}, in the project {PROJECT}.", soft_wrap=True)
    if report.lost:
        of = f"{report.lost:,} of {report.sent + report.lost:,} spans did not arrive at {url}"
        typer.echo(f"hookline: {of}: {without_password(report.reason) or 'no reason was given'}", err=True)
    return not report.lost
