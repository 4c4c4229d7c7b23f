"""The HTML report of runs: one self-contained page with results, tool coverage and a waterfall per task."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hookline.errors import MissingExtraError
from hookline.evals.errors import ReportError
from hookline.evals.reports._timeline import Timeline, shorten, timeline_of
from hookline.evals.reports._verdict import judge_runs
from hookline.evals.running import Comparison, Difference, Mode, SuiteRun, TaskResult
from hookline.evals.trajectories import CallRow, Coverage, RecordedOperation

__all__ = [
    "check_writable",
    "duration",
    "load_template",
    "render_report",
    "write_parts",
    "write_report",
    "write_text",
    "write_whole",
]

NAMES: dict[Mode, str] = {
    "real": "(a) real tools",
    "replayed": "(b) replayed",
    "spy": "real tools",
    "record": "real tools, recorded",
    "replay": "replayed from cassettes",
    "strict": "strictly mocked",
}


OPENED = 3
"""Failed tasks that the page shows in full."""


@dataclass(frozen=True, kw_only=True)
class RunColumn:
    """One run of a task, as a column of the page.

    Attributes:
        mode: `"real"` or `"replayed"`.
        result: The figures of the run.
        timeline: The rows of its waterfall.
    """

    mode: str
    result: TaskResult
    timeline: Timeline


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task with its runs, as a row of the page.

    Attributes:
        name: The task with its suite.
        prompt: The user's prompt.
        sides: The runs of the task.
        differences: The differences between two runs; `None` for a single run.
        ok: Whether all its runs ended as they should, with the same results.
    """

    name: str
    prompt: str
    sides: list[RunColumn]
    differences: list[Difference] | None
    ok: bool

    @property
    def suite(self) -> str:
        """The suite of the task."""
        return self.sides[0].result.suite

    @property
    def task_id(self) -> str:
        """The name of the task in its suite."""
        return self.sides[0].result.task_id

    @property
    def faults(self) -> int:
        """Number of its calls that a fault struck."""
        return max((sum(call.fault is not None for call in side.result.calls) for side in self.sides), default=0)


@dataclass(frozen=True, kw_only=True)
class SuiteRows:
    """The tasks of a suite, as a section of the page.

    Attributes:
        name: The suite.
        rows: Its tasks; those that failed come first.
        is_open: Whether the page shows them without a click.
    """

    name: str
    rows: list[TaskRow]
    is_open: bool

    @property
    def failed(self) -> int:
        """Number of tasks that did not pass."""
        return sum(not row.ok for row in self.rows)


@dataclass(frozen=True, kw_only=True)
class SuiteTools:
    """The tools of a suite, with the number of their calls and who answered them.

    Attributes:
        coverage: How often each was called in the first run.
        answered: For each run its mode, and how many calls were mocked, real and refused.
    """

    coverage: Coverage
    answered: list[tuple[Mode, int, int, int]]

    @property
    def tools(self) -> list[tuple[str, int, str]]:
        """Each tool with its calls, and who answered them: `real`, `mocked`, `both`, `refused`, `never`."""
        found = self.coverage
        paths = [*found.discovered, *found.unknown]
        return [(path.removeprefix(f"{found.suite}/"), found.called.get(path, 0), self._kind(path)) for path in paths]

    def _kind(self, path: str) -> str:
        found = self.coverage
        if path not in found.called:
            return "never"
        if path in found.mocked:
            return "both" if path in found.real else "mocked"
        return "real" if path in found.real else "refused"


def write_report(path: str | Path, runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> Path:
    """Write the report to a file.

    Args:
        path: The file; one that exists is replaced.
        runs: The runs to show. Runs of the same tasks are shown side by side.
        comparison: The comparison of two runs.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If the file cannot be written.
        MissingExtraError: If the extra `cli` is not installed.
    """
    return write_text(path, render_report(runs, comparison))


def check_writable(path: str | Path) -> Path:
    """Return the absolute path of a report if it can be written there.

    Raises:
        ReportError: If the file cannot be written.
    """
    target = Path(path).absolute()
    try:
        if target.is_dir():
            raise ReportError(str(target), "it is a folder")
        if not target.parent.is_dir():
            raise ReportError(str(target), f"there is no folder {target.parent}")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise ReportError(str(target), "permission denied")
    except OSError as error:  # a name that no file can have
        raise ReportError(str(target), error.strerror or str(error)) from error
    return target


def write_text(path: str | Path, text: str) -> Path:
    """Write the text of a report to a file, and return its absolute path.

    Raises:
        ReportError: If the file cannot be written.
    """
    target = check_writable(path)
    try:
        # Models and tools may return lone surrogates, which UTF-8 does not have.
        target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ReportError(str(target), error.strerror or str(error)) from error
    return target


def write_whole(target: Path, data: bytes) -> None:
    """Replace a file at once and as a whole. Pipes and devices are written to directly.

    Raises:
        ReportError: If it cannot be written.
    """
    write_parts(target, lambda file: file.write(data))


def write_parts(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file at once and as a whole, with what a function writes piece by piece.

    Args:
        target: The file. Pipes and devices are written to directly.
        write: Writes into a binary file. If it raises, the file stays as it was.

    Raises:
        ReportError: If it cannot be written.
    """
    half = None
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                write(file)
            return
        whole = Path(os.path.realpath(target))  # replace the target of a link, not the link
        name = hashlib.blake2b(os.fsencode(whole.name), digest_size=8).hexdigest()
        half = whole.with_name(f".hookline-{name}-{os.getpid()}.half")  # a hash, since the name itself may be too long
        with half.open("wb") as file:
            write(file)
        if whole.exists():
            shutil.copymode(whole, half)
        half.replace(whole)
    except BaseException as error:
        if half is not None:
            half.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ReportError(str(target), error.strerror or str(error)) from error
        raise


def render_report(runs: Sequence[SuiteRun], comparison: Comparison | None = None) -> str:
    """Render the report as HTML: no network, no external fonts or scripts, everything shown is escaped.

    Args:
        runs: The runs to show.
        comparison: The comparison of two runs.

    Raises:
        MissingExtraError: If the extra `cli` is not installed.
    """
    rows = _rows(runs, comparison)
    page: str = load_template("report.html.j2", duration=duration, axis_label=axis_label, shorten=shorten).render(
        runs=[
            {
                "mode": run.mode,
                "name": NAMES[run.mode],
                "totals": run.totals,
                "ok": run.ok,
                "results": run.results,
                "seed": run.seed,
                "not_run": run.not_run,
            }
            for run in runs
        ],
        verdict=judge_runs(runs, comparison),
        provenance=[run.provenance for run in runs[:1]],
        groups=_groups(rows),
        opened=_first_to_open(rows),
        rows=rows,
        coverage=_coverage(runs),
        faults=_faults(runs),
        names=NAMES,
        comparison=comparison,
        suites=list(dict.fromkeys(row.suite for row in rows)),
    )
    return page


def _rows(runs: Sequence[SuiteRun], comparison: Comparison | None) -> list[TaskRow]:
    sides: dict[str, list[RunColumn]] = {}
    for run in runs:
        for result in run.results:
            recorded = run.operations.get(result.operation_id) or RecordedOperation(result.operation_id)
            side = RunColumn(mode=run.mode, result=result, timeline=timeline_of(recorded, result.calls))
            sides.setdefault(result.name, []).append(side)
    differences: dict[str, list[Difference]] = {}
    for difference in comparison.differences if comparison else []:
        differences.setdefault(difference.task, []).append(difference)
    return [
        TaskRow(
            name=name,
            prompt=found[0].result.prompt,
            sides=found,
            differences=differences.get(name, []) if comparison else None,
            ok=all(side.result.ok for side in found) and name not in differences,
        )
        for name, found in sides.items()
    ]


def _groups(rows: Sequence[TaskRow]) -> list[SuiteRows]:
    """Return the tasks by suite; a suite is open if it is the only one or has a failure."""
    suites: dict[str, list[TaskRow]] = {}
    for row in rows:
        suites.setdefault(row.suite, []).append(row)
    return [
        SuiteRows(
            name=name,
            rows=sorted(found, key=lambda row: row.ok),
            is_open=len(suites) == 1 or not all(row.ok for row in found),
        )
        for name, found in suites.items()
    ]


def _first_to_open(rows: Sequence[TaskRow]) -> set[str]:
    """Return the names of the tasks that the page shows in full: the first that failed, or the only one."""
    failed = [row.name for row in rows if not row.ok]
    return set(failed[:OPENED]) if failed or len(rows) != 1 else {rows[0].name}


def _coverage(runs: Sequence[SuiteRun]) -> list[SuiteTools]:
    """Return the tools of each suite as the first run called them, and who answered in each run."""
    if not runs:
        return []
    return [
        SuiteTools(
            coverage=first,
            answered=[
                (run.mode, sum(same.mocked.values()), sum(same.real.values()), sum(same.refused.values()))
                for run in runs
                for same in run.coverage
                if same.suite == first.suite
            ],
        )
        for first in runs[0].coverage
    ]


def _faults(runs: Sequence[SuiteRun]) -> list[tuple[str, str, list[CallRow]]]:
    """Return which faults struck which tools, in the first run in which any did; a replay meets the same ones."""
    struck = next((run.faults_by_tool for run in runs if run.faults), {})
    return [(fault, tool, calls) for (fault, tool), calls in sorted(struck.items())]


def duration(milliseconds: float) -> str:
    """Format a time for people: `12.3 µs`, `4.56 ms`, `1.23 s`."""
    if milliseconds < 1:
        return f"{milliseconds * 1000:.1f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.2f} ms"
    return f"{milliseconds / 1000:.2f} s"


def axis_label(milliseconds: float) -> str:
    """Format a time for the axis of a waterfall, with three digits: `12.3 µs`, `456 ms`, `1.23 s`."""
    if milliseconds < 0.9995:
        return f"{milliseconds * 1000:.3g} µs"
    if milliseconds < 999.5:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds / 1000:.2f} s"


@functools.cache
def load_template(name: str, **filters: Callable[..., str]) -> Any:
    """Load a Jinja template of this package.

    Args:
        name: The name of its file.
        filters: Filters that the template uses, by name.

    Raises:
        MissingExtraError: If the extra `cli` is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingExtraError("cli", "Writing an HTML report") from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(filters)
    source = importlib.resources.files("hookline.evals.reports").joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(source)
