"""Save a run to a JSON file and load it, to look at it later or compare another run with it."""

from __future__ import annotations

import importlib.metadata
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hookline.evals._canonical import canonical
from hookline.evals.errors import RunFileError
from hookline.evals.reports._report import check_writable, write_whole
from hookline.evals.running import Mode, Provenance, SuiteRun, TaskResult
from hookline.evals.trajectories import Coverage

__all__ = ["SavedRun", "contradiction_in", "load_run", "save_run"]

FORMAT = "hookline-run"
VERSION = 1


class SavedRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A saved run, as its file has it.

    Attributes:
        format: Always `"hookline-run"`.
        version: The version of the format.
        hookline: The version of hookline that wrote it.
        saved_at: The time of saving, in UTC.
        targets: The suites, as the caller named them.
        mode: The mode of the run, which says who answered tool calls.
        seed: The seed of the run's faults.
        duration_ms: How long the run took.
        results: One per task.
        coverage: The tool coverage of each suite.
        not_run: Names of the tasks that an interruption left undone.
        provenance: When, with which versions and by which command the run was made; `None` in files of versions of
            hookline that did not write it.
    """

    format: str
    version: int
    hookline: str
    saved_at: str
    targets: list[str]
    mode: Mode
    seed: int
    duration_ms: float
    results: list[TaskResult]
    coverage: list[Coverage] = []
    not_run: list[str] = []
    provenance: Provenance | None = None

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
            hookline=importlib.metadata.version("hookline"),
            saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
            targets=targets or list(dict.fromkeys(result.suite for result in run.results)),
            mode=run.mode,
            seed=run.seed,
            duration_ms=run.duration_ms,
            results=run.results,
            coverage=run.coverage,
            not_run=run.not_run,
            provenance=run.provenance,
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
        )


def save_run(path: str | Path, run: SuiteRun, targets: list[str] | None = None) -> Path:
    """Save a run as JSON: tasks with their calls, checks, trajectories and figures, and tool coverage.

    The file contains the prompts, answers, arguments and results of the run.

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
    write_whole(target, canonical(SavedRun.of(run, targets), indent=1, sort_keys=False).encode() + b"\n")
    return target


def load_run(path: str | Path) -> SavedRun:
    """Load a run that `save_run` wrote.

    Args:
        path: The file.

    Raises:
        RunFileError: If the file does not exist or is not a saved run.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunFileError(str(path), error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise RunFileError(str(path), f"it is not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RunFileError(str(path), f"its `format` is not {FORMAT!r}")
    if document.get("version") != VERSION:
        raise RunFileError(
            str(path), f"its version is {document.get('version')!r:.40}, and this hookline reads {VERSION}"
        )
    try:
        run = msgspec.convert(document, SavedRun)
    except msgspec.ValidationError as error:
        raise RunFileError(str(path), str(error)) from error
    problem = contradiction_in(run)
    if problem is not None:
        raise RunFileError(str(path), problem)
    return run


def contradiction_in(run: SavedRun) -> str | None:
    """Describe what is impossible in a saved run: a task twice, or an invalid score, cost or number of calls.

    Args:
        run: The run.

    Returns:
        A sentence; `None` if there is no such thing.
    """
    seen: set[str] = set()
    for name in [*(result.name for result in run.results), *run.not_run]:
        if name in seen:
            return f"it has the task {name!r} twice"
        seen.add(name)
    for result in run.results:
        if result.score is not None and not 0 <= result.score <= 1:
            return f"the score of {result.name!r} is {result.score!r}, which is not a number from 0 to 1"
        if not 0 <= result.cost_usd < math.inf:
            return f"the cost of {result.name!r} is {result.cost_usd!r}, which is not a number from 0"
        if result.tool_calls < 0:
            return f"{result.name!r} has {result.tool_calls} tool calls"
    return None
