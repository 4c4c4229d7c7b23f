"""Run suites for the command line, with a progress bar."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hookline.evals import canonical
from hookline.evals.faults import FaultSpec
from hookline.evals.reports import NAMES
from hookline.evals.running import (
    Case,
    Comparison,
    Mode,
    RunsTasks,
    SuiteRun,
    SuiteRunner,
    TaskResult,
    cases_of,
    compare,
)
from hookline.evals.suites import find_suites
from hookline.hooks import AnyHook

__all__ = ["Evaluation", "InterruptedEvaluation", "evaluate", "find_cases", "find_suite", "without_failed_runs"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The runs of one command.

    Attributes:
        targets: The suites, as the caller named them.
        runs: One run, or the run with real tools and its replay.
        comparison: How the two compare.
    """

    targets: list[str]
    runs: list[SuiteRun]
    comparison: Comparison | None

    @property
    def ok(self) -> bool:
        """Whether every task ended as it should, with the same results in both runs."""
        return all(run.ok for run in self.runs) and (self.comparison is None or self.comparison.same)

    @property
    def judged(self) -> bool:
        """Whether anything was judged: a task by its checks or its recording, or a replay by its run."""
        return any(run.judged for run in self.runs) or (self.comparison is not None and self.comparison.tasks > 0)

    def as_json(self, report: Path | None) -> str:
        """Return the whole evaluation as JSON."""
        document = {
            "hookline": importlib.metadata.version("hookline"),
            "targets": self.targets,
            "ok": self.ok,
            "judged": self.judged,
            "same": self.comparison.same if self.comparison else None,
            "runs": [
                {
                    "mode": run.mode,
                    "ok": run.ok,
                    "seed": run.seed,
                    "totals": run.totals,
                    "results": run.results,
                    "coverage": run.coverage,
                    "faults": run.faults,
                    "notRun": run.not_run,
                    "notJudged": run.not_judged,
                }
                for run in self.runs
            ],
            "differences": self.comparison.differences if self.comparison else [],
            "report": str(report) if report else None,
        }
        return canonical(document, indent=2, sort_keys=False)


class InterruptedEvaluation(KeyboardInterrupt):
    """Ctrl-C in the middle of an evaluation.

    Attributes:
        evaluation: What was done until then.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__(evaluation)
        self.evaluation = evaluation


def find_suite(target: str) -> RunsTasks:
    """Return the suite that a target such as `agentdojo:banking` names; the first, if it names several.

    Raises:
        UnknownSuiteError: If there is no such suite. The message lists the suites.
        SuiteFileError: If it is a file that cannot be used.
        MissingExtraError: If AgentDojo is not installed.
    """
    return find_suites(target)[0]


def find_cases(targets: Iterable[str], tasks: Sequence[str]) -> list[Case]:
    """Return the tasks that are asked for; a spinner shows that AgentDojo is being loaded, where stderr is a terminal.

    Raises:
        UnknownSuiteError: If there is no such suite. The message lists the suites.
        UnknownTaskError: If a suite has no such task.
        SuiteFileError: If a target is a file that cannot be used.
        MissingExtraError: If AgentDojo is not installed.
    """
    console = Console(stderr=True)
    with console.status("Loading the suite …") if console.is_terminal else contextlib.nullcontext():
        return cases_of([suite for target in targets for suite in find_suites(target)], tasks)


@contextlib.contextmanager
def without_failed_runs() -> Iterator[None]:
    """Keep runs that end in error out of the log, since the table of results shows them."""
    logger = logging.getLogger("hookline")

    def keep(record: logging.LogRecord) -> bool:
        return not hasattr(record, "failed_operation_id")

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def evaluate(
    console: Console,
    targets: list[str],
    cases: Sequence[Case],
    *,
    mocked: bool,
    concurrency: int,
    hooks: Iterable[AnyHook] = (),
    recording: Iterable[AnyHook] = (),
    mode: Mode = "real",
    cassettes: Path | None = None,
    faults: Sequence[FaultSpec] = (),
    seed: int = 0,
    made_by: str = "hookline eval",
) -> Evaluation:
    """Run tasks, and with `mocked` once more, answered by what was recorded in memory then.

    Args:
        console: For the progress bar, if it is a terminal.
        targets: The suites, as the caller named them.
        cases: The tasks.
        mocked: Whether to run them again.
        concurrency: How many operations run at the same time.
        hooks: Further hooks of every operation.
        recording: Further hooks of those of the first run.
        mode: Whether tools really run in the first run, and whether it records or replays.
        cassettes: The folder of the cassette files.
        faults: Faults on purpose.
        seed: The seed of the faults.
        made_by: The command line, for the report.

    Raises:
        InterruptedEvaluation: At Ctrl-C, with what was done until then.
        CassetteFolderError: If the mode needs cassettes and does not know where.
    """
    runs: list[SuiteRun] = []
    runner = partial(SuiteRunner, cases, faults=faults, seed=seed, concurrency=concurrency, made_by=made_by)
    with _progress(console) as progress, without_failed_runs():
        bar = progress.add_task(NAMES[mode], total=len(cases), last="")
        first = runner(
            mode=mode,
            cassettes=cassettes,
            hooks=[*hooks, *recording],
            on_result=partial(_advance, progress, bar),
        )
        runs.append(_run_suite(first, targets, runs))
        if not mocked:
            return Evaluation(targets=targets, runs=runs, comparison=None)
        again = runner(
            mode="replayed",
            recorded=runs[0].cassettes,
            hooks=hooks,
            on_result=partial(_advance, progress, progress.add_task(NAMES["replayed"], total=len(cases), last="")),
        )
        runs.append(_run_suite(again, targets, runs))
    return Evaluation(targets=targets, runs=runs, comparison=compare(runs[0], runs[1]))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[last]}"),
        console=console,
        disable=not console.is_terminal,
    )


def _run_suite(runner: SuiteRunner, targets: list[str], before: list[SuiteRun]) -> SuiteRun:
    try:
        return anyio.run(runner.run)
    except KeyboardInterrupt:
        done = Evaluation(targets=targets, runs=[*before, runner.so_far], comparison=None)
        raise InterruptedEvaluation(done) from None


def _advance(progress: Progress, bar: int, result: TaskResult) -> None:
    task = progress.tasks[bar]
    progress.update(task.id, advance=1, last="" if task.completed + 1 == task.total else result.name)
