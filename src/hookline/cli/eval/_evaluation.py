"""Run suites for the command line, with a progress bar."""

from __future__ import annotations

import contextlib
import logging
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import typer
from rich.console import Console

from hookline.cli._exit_codes import end_at_second_interrupt
from hookline.cli.eval._progress import RunProgress
from hookline.cli.eval._run_options import EvaluationOptions
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
    hookline_version,
)
from hookline.evals.statistics import RunStatistics
from hookline.evals.suites import find_suites
from hookline.hooks import AnyHook

__all__ = ["Evaluation", "InterruptedEvaluation", "evaluate", "find_cases", "find_suite", "without_failed_runs"]

RESULTS = "\0results of run "
"""Stands for the results of a run, until they are written."""

ONE_RUN = EvaluationOptions()
"""The options of a run of each task, without limits, that is not saved."""


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

    def json_parts(self, report: Path | None, comparisons: Sequence[object] = ()) -> Iterator[str]:
        """Yield the whole evaluation as JSON, in parts, so that not all results are in memory at a time.

        Args:
            report: The file of the report.
            comparisons: The comparisons with a baseline.
        """
        document = {
            "hookline": hookline_version(),
            "targets": self.targets,
            "ok": self.ok,
            "judged": self.judged,
            "same": self.comparison.same if self.comparison else None,
            "runs": [
                {
                    "mode": run.mode,
                    "ok": run.ok,
                    "seed": run.seed,
                    "repeat": run.repeat,
                    "provenance": run.provenance,
                    "resumed": run.resumed,
                    "totals": run.totals,
                    "statistics": RunStatistics.of(run),
                    "results": f"{RESULTS}{number}",
                    "coverage": run.coverage,
                    "faults": run.faults,
                    "notRun": run.not_run,
                    "stopped": run.stopped,
                    "notJudged": run.not_judged,
                }
                for number, run in enumerate(self.runs)
            ],
            "differences": self.comparison.differences if self.comparison else [],
            "baseline": list(comparisons),
            "report": str(report) if report else None,
        }
        rest = canonical(document, indent=2, sort_keys=False)
        for number, run in enumerate(self.runs):
            before, _, rest = rest.partition(canonical(f"{RESULTS}{number}"))
            yield before
            yield from _list_parts(run.results)
        yield rest


def _list_parts(results: Iterable[TaskResult]) -> Iterator[str]:
    """Yield results as a list, indented as in the document around it."""
    opened = False
    for result in results:
        text = canonical(result, indent=2, sort_keys=False)
        yield (",\n" if opened else "[\n") + textwrap.indent(text, " " * 8)
        opened = True
    yield "\n      ]" if opened else "[]"


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


def find_cases(targets: Iterable[str], tasks: Sequence[str], tags: Sequence[str] = ()) -> list[Case]:
    """Return the tasks that are asked for; a spinner shows that AgentDojo is being loaded, where stderr is a terminal.

    Args:
        targets: The suites.
        tasks: Names of tasks; all of them by default.
        tags: Only tasks with one of these tags.

    Raises:
        UnknownSuiteError: If there is no such suite. The message lists the suites.
        UnknownTaskError: If a suite has no such task.
        UnknownTagError: If no task has one of the tags.
        SuiteFileError: If a target is a file that cannot be used.
        MissingExtraError: If AgentDojo is not installed.
    """
    console = Console(stderr=True)
    with console.status("Loading the suite …") if console.is_terminal else contextlib.nullcontext():
        return cases_of([suite for target in targets for suite in find_suites(target)], tasks, tags=tags)


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
    options: EvaluationOptions = ONE_RUN,
) -> Evaluation:
    """Run tasks, and with `mocked` once more, answered by what was recorded in memory then.

    Args:
        console: For the progress of the run.
        targets: The suites, as the caller named them.
        cases: The tasks.
        mocked: Whether to run them again.
        concurrency: How many operations run at the same time.
        hooks: Further hooks of every operation.
        recording: Further hooks of those of the first run.
        mode: Whether tools really run in the first run, and whether it records or replays.
        cassettes: The folder of the cassette files; that of the tapes by default.
        faults: Faults on purpose.
        seed: The seed of the faults.
        made_by: The command line, for the report.
        options: How often, where and for how long the tasks run, and where the run is saved.

    Raises:
        InterruptedEvaluation: At Ctrl-C, with what was done until then.
        CassetteFolderError: If the mode needs cassettes and does not know where.
        RunFileError: If the run to continue cannot be read.
        RunResumeError: If it is another run.
        RunWriteError: If a result cannot be saved.
        WorkerError: If worker processes cannot load the suites.
    """
    runs: list[SuiteRun] = []
    runner = partial(
        SuiteRunner,
        cases,
        faults=faults,
        seed=seed,
        concurrency=concurrency,
        made_by=made_by,
        targets=targets,
        shuffle=options.shuffle,
        limit=options.limit,
        max_cost=options.max_cost,
        timeout=options.timeout,
        tapes=options.tapes,
        tape_mode=options.tape_mode,
        allow_repeats=options.allow_repeats,
    )
    hooked = [*hooks, *recording]
    with RunProgress(console) as progress, without_failed_runs():
        on_result = progress.advance
        first = runner(
            mode="spy" if mode == "real" and not mocked else mode,
            cassettes=cassettes or options.tapes,
            hooks=hooked,
            on_result=on_result,
            repeat=options.repeat,
            save=options.save,
            resume=options.resume,
            workers=options.choose_workers(hooked=bool(hooked), mocked=mocked),
        )
        runs.append(_run_suite(first, targets, runs, progress))
        if not mocked:
            return Evaluation(targets=targets, runs=runs, comparison=None)
        again = runner(mode="replayed", recorded=runs[0].cassettes, hooks=hooks, on_result=on_result)
        runs.append(_run_suite(again, targets, runs, progress))
    return Evaluation(targets=targets, runs=runs, comparison=compare(runs[0], runs[1]))


def _run_suite(runner: SuiteRunner, targets: list[str], before: list[SuiteRun], progress: RunProgress) -> SuiteRun:
    journal = runner.open()
    for note in journal.notes:
        typer.echo(f"hookline: {note}", err=True)
    progress.begin(NAMES[runner.mode], total=runner.planned, done=runner.done, cost_usd=runner.cost_usd)

    async def run() -> SuiteRun:
        with end_at_second_interrupt():
            return await runner.run()

    try:
        return anyio.run(run)
    except KeyboardInterrupt:
        done = Evaluation(targets=targets, runs=[*before, runner.so_far], comparison=None)
        raise InterruptedEvaluation(done) from None
