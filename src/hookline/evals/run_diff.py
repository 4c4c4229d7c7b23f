"""How two runs of the same tasks compare: what passed, how well, what the agent did, what it cost."""

from __future__ import annotations

from typing import Literal

import msgspec

from hookline.errors import HookUsageError
from hookline.evals.results import TaskResult
from hookline.evals.run_files import SavedRun

__all__ = ["RunDiff", "TaskDiff", "diff_runs"]

Change = Literal["worse", "better", "changed", "same", "new", "gone"]


class TaskDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a task's two runs compare. Of each pair the first is run A's; `None` where it did not run.

    Attributes:
        task: The task with its suite.
        change: `"worse"`: it passed, and fails now. `"better"`: the other way round. `"changed"`: it passes or fails as
            before, with another score, other calls, other results, another answer or another cost.
        passed: Whether it passed.
        score: How content its checks were.
        tool_calls: How many tools it called.
        cost_usd: What its model calls cost.
        similarity: How alike the calls are, from 0 to 1; `None` where that cannot be said.
        identical: Whether tool results, answer and trajectory are equal byte for byte.
        alignment: Both runs' calls side by side, where they differ.
        why: Why it fails now.
    """

    task: str
    change: Change
    passed: tuple[bool | None, bool | None]
    score: tuple[float | None, float | None]
    tool_calls: tuple[int | None, int | None]
    cost_usd: tuple[float | None, float | None]
    similarity: float | None
    identical: bool
    alignment: str = ""
    why: str = ""


class RunDiff(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How two runs compare. Of each pair the first is run A's.

    Attributes:
        tasks: Every task that either run has, in the order of A, then of B.
        passed: How many tasks passed.
        score: The mean of the tasks' scores; `None` where none was checked.
        tool_calls: How many tools were called.
        cost_usd: What the model calls cost.
        similarity: The mean of the tasks' similarities.
    """

    tasks: list[TaskDiff]
    passed: tuple[int, int]
    score: tuple[float | None, float | None]
    tool_calls: tuple[int, int]
    cost_usd: tuple[float, float]
    similarity: float | None

    @property
    def worse(self) -> list[TaskDiff]:
        """The tasks that passed in A and fail in B."""
        return [task for task in self.tasks if task.change == "worse"]


def diff_runs(a: SavedRun, b: SavedRun) -> RunDiff:
    """Compare two runs, task by task.

    Args:
        a: The earlier run.
        b: The later one.
    """
    before, after = ({result.name: result for result in run.results} for run in (a, b))
    tasks = [_task(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    alike = [task.similarity for task in tasks if task.similarity is not None]
    return RunDiff(
        tasks=tasks,
        passed=(sum(result.ok for result in a.results), sum(result.ok for result in b.results)),
        score=(_mean(a.results), _mean(b.results)),
        tool_calls=(sum(result.tool_calls for result in a.results), sum(result.tool_calls for result in b.results)),
        cost_usd=(sum(result.cost_usd for result in a.results), sum(result.cost_usd for result in b.results)),
        similarity=sum(alike) / len(alike) if alike else None,
    )


def _task(name: str, a: TaskResult | None, b: TaskResult | None) -> TaskDiff:
    similarity, alignment = _trajectories(a, b)
    return TaskDiff(
        task=name,
        change=_change(a, b),
        passed=(None if a is None else a.ok, None if b is None else b.ok),
        score=(None if a is None else a.score, None if b is None else b.score),
        tool_calls=(None if a is None else a.tool_calls, None if b is None else b.tool_calls),
        cost_usd=(None if a is None else a.cost_usd, None if b is None else b.cost_usd),
        similarity=similarity,
        identical=_identical(a, b),
        alignment=alignment,
        why="" if b is None else b.failure or "",
    )


def _change(a: TaskResult | None, b: TaskResult | None) -> Change:
    if a is None:
        return "new"
    if b is None:
        return "gone"
    if a.ok != b.ok:
        return "worse" if a.ok else "better"
    if a.score is not None and b.score is not None and a.score != b.score:
        return "changed"
    return "same" if _identical(a, b) and a.cost_usd == b.cost_usd else "changed"


def _identical(a: TaskResult | None, b: TaskResult | None) -> bool:
    if a is None or b is None:
        return False
    same = (a.tool_results, a.output, a.reason) == (b.tool_results, b.output, b.reason)
    return same and a.trajectory.encode() == b.trajectory.encode()


def _trajectories(a: TaskResult | None, b: TaskResult | None) -> tuple[float | None, str]:
    if a is None or b is None:
        return None, ""
    try:
        found = b.trajectory.match(a.trajectory, mode="strict")
    except HookUsageError as error:  # more calls than can be aligned
        return None, str(error)
    return found.score, "" if found.ok else str(found)


def _mean(results: list[TaskResult]) -> float | None:
    scores = [result.score for result in results if result.score is not None]
    return sum(scores) / len(scores) if scores else None
