"""Save a run to a file and load it, to look at it later or compare another run with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hookline.evals.errors import RunFileError
from hookline.evals.reports._report import check_writable, write_whole
from hookline.evals.running import (
    Mode,
    Provenance,
    RunEnd,
    RunHeader,
    SuiteRun,
    TaskResult,
    describe_key,
    hookline_version,
    impossible_in,
    is_run_file,
    read_run_file,
    run_lines,
    utc_now,
)
from hookline.evals.trajectories import Coverage

__all__ = ["SavedRun", "contradiction_in", "load_run", "save_run"]

FORMAT = "hookline-run"
VERSION = 2
DOCUMENT = 1
"""The version in which a run was one JSON document."""


class SavedRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A saved run, as its file has it.

    Attributes:
        format: Always `"hookline-run"`.
        version: The version of the format: 2, or 1 for a file of an earlier hookline.
        hookline: The version of hookline that wrote it.
        saved_at: The time of saving, in UTC.
        targets: The suites, as the caller named them.
        mode: The mode of the run, which says who answered tool calls.
        seed: The seed of the run's faults.
        duration_ms: How long the run took.
        results: One per task, attempt and model, in the order in which they were planned. They lie in the file, and
            each is read when it is needed: iterate over them, and as few times as possible.
        coverage: The tool coverage of each suite; empty if the run was killed.
        not_run: Names of the tasks of which a planned run is missing, each once.
        provenance: When, with which versions and by which command the run was made; `None` in files of versions of
            hookline that did not write it.
        repeat: How often each task was to run.
        models: The models with which each task was to run; empty if the suite's own model answered.
        stopped: The reason for which tasks did not run; empty if all did.
        resumed: When and by which command the run was continued, for each time.
        dropped: What was left out of the file because it was incomplete, in a sentence; empty if nothing was.
    """

    format: str
    version: int
    hookline: str
    saved_at: str
    targets: list[str]
    mode: Mode
    seed: int
    duration_ms: float
    results: Sequence[TaskResult]
    coverage: list[Coverage] = []
    not_run: list[str] = []
    provenance: Provenance | None = None
    repeat: int = 1
    models: list[str] = []
    stopped: str = ""
    resumed: list[Provenance] = []
    dropped: str = ""

    @classmethod
    def of(cls, run: SuiteRun, targets: list[str] | None = None) -> SavedRun:
        """Make a saved run from a run, ready to be written or compared.

        Args:
            run: The run.
            targets: The suites, as the caller named them; by default their names.
        """
        return cls(
            format=FORMAT,
            version=VERSION,
            hookline=hookline_version(),
            saved_at=utc_now(),
            targets=targets or list(dict.fromkeys(result.suite for result in run.results)),
            mode=run.mode,
            seed=run.seed,
            duration_ms=run.duration_ms,
            results=run.results,
            coverage=run.coverage,
            not_run=run.not_run,
            provenance=run.provenance,
            repeat=run.repeat,
            models=run.models,
            stopped=run.stopped,
        )

    def suite_run(self) -> SuiteRun:
        """Return the run without its events and cassettes, which are not saved: enough for a report or JUnit XML."""
        return SuiteRun(
            mode=self.mode,
            results=self.results,
            operations={},
            cassettes={},
            duration_ms=self.duration_ms,
            seed=self.seed,
            coverage=self.coverage,
            not_run=self.not_run,
            provenance=msgspec.structs.replace(
                self.provenance or Provenance(versions={"hookline": self.hookline}), saved_at=self.saved_at
            ),
            repeat=self.repeat,
            models=self.models,
            stopped=self.stopped,
        )


def save_run(path: str | Path, run: SuiteRun, targets: list[str] | None = None) -> Path:
    """Save a run as JSON lines: tasks with their calls, checks, trajectories and figures, and tool coverage.

    The file contains the prompts, answers, arguments and results of the run. `SuiteRunner(save=...)` writes the same
    file while the tasks run.

    Args:
        path: The file; one that exists is replaced, at once and as a whole.
        run: The run.
        targets: The suites, as the caller named them.

    Returns:
        The file, as an absolute path.

    Raises:
        ReportError: If the file cannot be written.
    """
    target = check_writable(path)
    keys = [result.key for result in run.results]
    header = RunHeader(
        targets=targets or list(dict.fromkeys(name.partition("/")[0] for name, _, _ in keys)),
        mode=run.mode,
        seed=run.seed,
        cases=list(dict.fromkeys([*(name for name, _, _ in keys), *run.not_run])),
        repeat=max([run.repeat, *(attempt for _, attempt, _ in keys)]),
        models=list(dict.fromkeys([*run.models, *(model for _, _, model in keys if model)])),
        provenance=run.provenance,
    )
    end = RunEnd(
        saved_at=utc_now(),
        duration_ms=run.duration_ms,
        coverage=run.coverage,
        not_run=run.not_run,
        stopped=run.stopped,
    )
    write_whole(target, run_lines(header, run.results, end))
    return target


def load_run(path: str | Path) -> SavedRun:
    """Load a saved run: one that has ended, was interrupted, or still runs.

    A last line that was cut off is left out; `SavedRun.dropped` says so.

    Args:
        path: The file.

    Raises:
        RunFileError: If the file does not exist or is not a saved run.
    """
    file = Path(path)
    try:
        with open(file, "rb") as data:
            lines = is_run_file(data.readline())
            if not lines:
                data.seek(0)
                document = json.loads(data.read())
    except OSError as error:
        raise RunFileError(str(path), error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise RunFileError(str(path), f"it is not JSON ({error})") from error
    return _load_lines(file) if lines else _load_document(str(path), document)


def _load_lines(path: Path) -> SavedRun:
    read = read_run_file(path)
    header, end = read.header, read.end
    killed = "" if not read.not_run else "the run was killed, or it still runs"
    return SavedRun(
        format=header.format,
        version=header.version,
        hookline=header.hookline,
        saved_at=header.saved_at if end is None else end.saved_at,
        targets=header.targets,
        mode=header.mode,
        seed=header.seed,
        duration_ms=read.elapsed_ms,
        results=read.results,
        coverage=[] if end is None else end.coverage,
        not_run=read.not_run,
        provenance=header.provenance,
        repeat=header.repeat,
        models=header.models,
        stopped=killed if end is None else end.stopped,
        resumed=read.resumed,
        dropped=f"its last line was cut off and is left out ({read.cut_off:,} bytes)" if read.cut_off else "",
    )


def _load_document(path: str, document: object) -> SavedRun:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RunFileError(path, f"its `format` is not {FORMAT!r}")
    if document.get("version") != DOCUMENT:
        raise RunFileError(
            path, f"its version is {document.get('version')!r:.40}, and this hookline reads {DOCUMENT} and {VERSION}"
        )
    try:
        run = msgspec.convert(document, SavedRun)
    except msgspec.ValidationError as error:
        raise RunFileError(path, str(error)) from error
    problem = contradiction_in(run)
    if problem is not None:
        raise RunFileError(path, problem)
    return run


def contradiction_in(run: SavedRun) -> str | None:
    """Describe what is impossible in a saved run: a task twice, or an invalid score, cost or number of calls.

    Args:
        run: The run.

    Returns:
        A sentence; `None` if there is no such thing.
    """
    seen = set()
    for result in run.results:
        if result.key in seen:
            return f"it has the task {describe_key(result.key)} twice"
        seen.add(result.key)
        problem = impossible_in(result)
        if problem is not None:
            return problem
    several = run.repeat > 1 or len(run.models) > 1  # then a task can have results and yet not have run in full
    ran = set() if several else {name for name, _, _ in seen}
    for name in run.not_run:
        if name in ran:
            return f"it has the task {name!r} twice"
        ran.add(name)
    return None
