"""Running suites for the command line, with a progress bar."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hookline.evals._canonical import canonical
from hookline.evals.errors import UnknownSuiteError
from hookline.evals.results import Comparison, SuiteRun, TaskResult, compare
from hookline.evals.runner import Case, Suite, record, replay
from hookline.evals.suites import agentdojo
from hookline.hooks import AnyHook

__all__ = ["Evaluation", "evaluate", "found_suite"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a command ran.

    Attributes:
        targets: The suites, as they were asked for.
        runs: The run with real tools, and its replay if one was asked for.
        comparison: How the two compare.
    """

    targets: list[str]
    runs: list[SuiteRun]
    comparison: Comparison | None

    @property
    def ok(self) -> bool:
        """Whether every task ended as it should, with the same results in both runs."""
        return all(run.ok for run in self.runs) and (self.comparison is None or self.comparison.same)

    def as_json(self, report: Path | None) -> str:
        """Everything, for a machine."""
        document = {
            "hookline": importlib.metadata.version("hookline"),
            "targets": self.targets,
            "ok": self.ok,
            "same": self.comparison.same if self.comparison else None,
            "runs": [
                {"mode": run.mode, "ok": run.ok, "totals": run.totals, "results": run.results} for run in self.runs
            ],
            "differences": self.comparison.differences if self.comparison else [],
            "report": str(report) if report else None,
        }
        return canonical(document, indent=2, sort_keys=False)


def found_suite(target: str) -> Suite:
    """The suite that a target such as `agentdojo:banking` names.

    Raises:
        UnknownSuiteError: That says which there are.
        MissingExtraError: If AgentDojo is not installed.
    """
    family, _, name = target.partition(":")
    if family != "agentdojo" or name not in agentdojo.SUITES:
        raise UnknownSuiteError(target, [f"agentdojo:{suite}" for suite in agentdojo.SUITES])
    return agentdojo.load_suite(name)


def evaluate(
    console: Console,
    targets: list[str],
    cases: Sequence[Case],
    *,
    mocked: bool,
    concurrency: int,
    hooks: Iterable[AnyHook] = (),
    recording: Iterable[AnyHook] = (),
) -> Evaluation:
    """Run tasks with their real tools and, if `mocked`, once more answered by what was recorded then.

    Args:
        console: For the progress bar, if it is a terminal.
        targets: The suites, as they were asked for.
        cases: The tasks.
        mocked: Whether to run them again.
        concurrency: How many operations run at the same time.
        hooks: Further hooks of every operation.
        recording: Further hooks of those with real tools.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[last]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        real = anyio.run(partial(_recorded, progress, cases, concurrency, [*hooks, *recording]))
        if not mocked:
            return Evaluation(targets=targets, runs=[real], comparison=None)
        replayed = anyio.run(partial(_replayed, progress, real, cases, concurrency, [*hooks]))
    return Evaluation(targets=targets, runs=[real, replayed], comparison=compare(real, replayed))


async def _recorded(progress: Progress, cases: Sequence[Case], concurrency: int, hooks: list[AnyHook]) -> SuiteRun:
    bar = progress.add_task("(a) real tools", total=len(cases), last="")
    return await record(cases, concurrency=concurrency, hooks=hooks, on_result=partial(_advance, progress, bar))


async def _replayed(
    progress: Progress, real: SuiteRun, cases: Sequence[Case], concurrency: int, hooks: list[AnyHook]
) -> SuiteRun:
    bar = progress.add_task("(b) replayed  ", total=len(cases), last="")
    return await replay(real, cases, concurrency=concurrency, hooks=hooks, on_result=partial(_advance, progress, bar))


def _advance(progress: Progress, bar: int, result: TaskResult) -> None:
    task = progress.tasks[bar]
    progress.update(task.id, advance=1, last="" if task.completed + 1 == task.total else result.name)
