"""What running tasks gives: one outcome per task, one run per suite list, and how two runs compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from hookline.evals.cassette import Cassette
from hookline.evals.recorder import RecordedOperation, Trajectory
from hookline.runtime import OperationResult

__all__ = ["Comparison", "Difference", "SuiteRun", "TaskOutcome", "TaskResult", "Totals", "compare"]

Mode = Literal["real", "replayed"]


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a suite's task came to.

    Attributes:
        suite: The suite.
        task_id: The task.
        prompt: What the user asked for.
        result: What the run came to.
        utility: Whether the suite's own check is content; `None` where no real tool ran, so that there is nothing to
            check.
        tools_run: How many calls reached a real tool.
        forbidden: How many calls would have reached a real tool that was forbidden.
    """

    suite: str
    task_id: str
    prompt: str
    result: OperationResult
    utility: bool | None
    tools_run: int
    forbidden: int

    @property
    def tool_results(self) -> list[str]:
        """What the model was told of each tool call, in its order."""
        return [message.content for message in self.result.messages if message.role == "tool"]


class TaskResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task's row in a report; everything in it was measured.

    Attributes:
        suite: The suite.
        task_id: The task.
        prompt: What the user asked for.
        operation_id: The run.
        utility: Whether the suite's own check is content; `None` where it was not checked.
        reason: Why the run ended.
        error: What ended it, if it failed.
        steps: Steps of the run.
        tool_calls: Tool calls of the run.
        mocked: How many of them a hook answered.
        failed: How many of them failed.
        tools_run: How many of them reached a real tool.
        forbidden: How many would have reached a forbidden one.
        hook_executions: How many handlers ran.
        hook_time_ms: Time spent in them.
        duration_ms: How long the run took, other runs at the same time included.
        tool_results: What the model was told of each call.
        output: The final answer.
        trajectory: What the agent did.
    """

    suite: str
    task_id: str
    prompt: str
    operation_id: str
    utility: bool | None
    reason: str
    error: str | None
    steps: int
    tool_calls: int
    mocked: int
    failed: int
    tools_run: int
    forbidden: int
    hook_executions: int
    hook_time_ms: float
    duration_ms: float
    tool_results: list[str]
    output: str
    trajectory: Trajectory

    @property
    def name(self) -> str:
        """The task with its suite: `banking/user_task_0`."""
        return f"{self.suite}/{self.task_id}"

    @property
    def ok(self) -> bool:
        """Whether the run ended as it should: done, useful, and no forbidden tool touched."""
        return self.reason == "done" and self.utility is not False and self.forbidden == 0


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sums over the tasks of a run.

    Attributes:
        tasks: Tasks that ran.
        useful: Tasks with which the suite's own check is content.
        checked: Tasks that were checked at all.
        steps: Steps.
        tool_calls: Tool calls.
        mocked: Tool calls that a hook answered.
        failed: Tool calls that failed.
        tools_run: Tool calls that reached a real tool.
        forbidden: Tool calls that would have reached a forbidden one.
        hook_executions: Handler runs.
        hook_time_ms: Time spent in them.
        duration_ms: How long the whole run took.
    """

    tasks: int
    useful: int
    checked: int
    steps: int
    tool_calls: int
    mocked: int
    failed: int
    tools_run: int
    forbidden: int
    hook_executions: int
    hook_time_ms: float
    duration_ms: float


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A list of tasks that was run once.

    Attributes:
        mode: With real tools, or answered by a recording.
        results: One per task, in the order in which they were asked for.
        operations: What was recorded of each, by operation id.
        cassettes: What answers each task's tool calls, by task name.
        duration_ms: How long it took.
    """

    mode: Mode
    results: list[TaskResult]
    operations: Mapping[str, RecordedOperation]
    cassettes: Mapping[str, Cassette]
    duration_ms: float

    @property
    def ok(self) -> bool:
        """Whether every task ended as it should."""
        return all(result.ok for result in self.results)

    @property
    def totals(self) -> Totals:
        """Sums over the tasks."""
        rows = self.results
        return Totals(
            tasks=len(rows),
            useful=sum(row.utility is True for row in rows),
            checked=sum(row.utility is not None for row in rows),
            steps=sum(row.steps for row in rows),
            tool_calls=sum(row.tool_calls for row in rows),
            mocked=sum(row.mocked for row in rows),
            failed=sum(row.failed for row in rows),
            tools_run=sum(row.tools_run for row in rows),
            forbidden=sum(row.forbidden for row in rows),
            hook_executions=sum(row.hook_executions for row in rows),
            hook_time_ms=sum(row.hook_time_ms for row in rows),
            duration_ms=self.duration_ms,
        )


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One way in which a task's replay was not what had been recorded.

    Attributes:
        task: The task with its suite.
        what: What differs.
        real: What it was with real tools.
        replayed: What it was in the replay.
    """

    task: str
    what: Literal["tool result", "output", "trajectory", "reason", "unanswered call", "missing task"]
    real: str
    replayed: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a replay compares to the run that it replays.

    Attributes:
        tasks: Tasks that were compared.
        tool_results: Tool results that were compared.
        differences: Everything that was not equal byte for byte; empty when the runs are the same.
    """

    tasks: int
    tool_results: int
    differences: list[Difference]

    @property
    def same(self) -> bool:
        """Whether both runs produced the same results."""
        return not self.differences


def compare(real: SuiteRun, replayed: SuiteRun) -> Comparison:
    """Compare tool results, answers and trajectories of two runs, byte for byte."""
    others = {result.name: result for result in replayed.results}
    differences: list[Difference] = []
    for result in real.results:
        other = others.pop(result.name, None)
        if other is None:
            differences.append(Difference(task=result.name, what="missing task", real="ran", replayed="did not run"))
        else:
            differences.extend(_differences(result, other))
    differences.extend(
        Difference(task=name, what="missing task", real="did not run", replayed="ran") for name in others
    )
    return Comparison(
        tasks=len(real.results),
        tool_results=sum(len(result.tool_results) for result in real.results),
        differences=differences,
    )


def _differences(real: TaskResult, replayed: TaskResult) -> list[Difference]:
    pairs: list[tuple[Literal["tool result", "output", "trajectory", "reason"], str, str]] = [
        ("reason", real.reason, replayed.reason),
        ("output", real.output, replayed.output),
    ]
    longest = max(len(real.tool_results), len(replayed.tool_results))
    pairs.extend(
        ("tool result", _nth(real.tool_results, index), _nth(replayed.tool_results, index)) for index in range(longest)
    )
    pairs.append(("trajectory", real.trajectory.encode().decode(), replayed.trajectory.encode().decode()))
    found = [
        Difference(task=real.name, what=what, real=before, replayed=after)
        for what, before, after in pairs
        if before != after
    ]
    if replayed.mocked != replayed.tool_calls:
        answered = f"{replayed.mocked} of {replayed.tool_calls} answered by the recording"
        found.append(Difference(task=real.name, what="unanswered call", real="", replayed=answered))
    return found


def _nth(texts: list[str], index: int) -> str:
    return texts[index] if index < len(texts) else "(no such call)"
