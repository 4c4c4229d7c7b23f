"""Running tasks twice: once with the real tools, once answered by what was recorded then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Protocol

import anyio

from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, message_of
from hookline.evals.cassette import Cassette
from hookline.evals.recorder import EventRecorder, RecordedOperation
from hookline.evals.results import Mode, SuiteRun, TaskOutcome, TaskResult
from hookline.hooks import AnyHook
from hookline.runtime import InMemoryStore, OperationStore

__all__ = ["Case", "Suite", "cases_of", "record", "replay"]


class Suite(Protocol):
    """Anything that has tasks and can run them.

    Attributes:
        name: The suite's name.
    """

    name: str

    def select(self, names: Iterable[str] = ()) -> list[str]:
        """The tasks of these names; all of them for none."""
        ...

    async def run_task(
        self,
        task_id: str,
        *,
        hooks: Iterable[AnyHook] = (),
        dispatcher: HookDispatcher | None = None,
        store: OperationStore | None = None,
        forbid_tools: bool = False,
    ) -> TaskOutcome:
        """Run one task as one operation."""
        ...


Case = tuple[Suite, str]
"""A task of a suite."""

OnResult = Callable[[TaskResult], object]
"""Called after each task, to show how far a run is."""


def cases_of(suites: Iterable[Suite], tasks: Iterable[str] = ()) -> list[Case]:
    """The tasks of some suites.

    Args:
        suites: The suites.
        tasks: Names of tasks that each suite must have; all of its tasks for none.

    Raises:
        UnknownTaskError: If a suite has no task of a name.
    """
    names = list(tasks)
    return [(suite, task_id) for suite in suites for task_id in suite.select(names)]


async def record(
    cases: Sequence[Case],
    *,
    concurrency: int = 8,
    hooks: Iterable[AnyHook] = (),
    on_result: OnResult | None = None,
) -> SuiteRun:
    """Run tasks with their real tools, observed on all sixteen events, and record what the tools answer.

    Args:
        cases: The tasks.
        concurrency: How many operations run at the same time.
        hooks: Further hooks of every operation.
        on_result: Called after each task.
    """
    cassettes = {_name(case): Cassette(_name(case)) for case in cases}
    attached: dict[str, list[AnyHook]] = {name: [cassette.recorder(), *hooks] for name, cassette in cassettes.items()}
    return await _run(cases, "real", cassettes, attached, concurrency, on_result)


async def replay(
    recorded: SuiteRun,
    cases: Sequence[Case],
    *,
    concurrency: int = 8,
    hooks: Iterable[AnyHook] = (),
    on_result: OnResult | None = None,
) -> SuiteRun:
    """Run tasks again with every tool call answered by the recording. The real tools are forbidden to run.

    Args:
        recorded: What `record` gave.
        cases: The tasks; one that was not recorded finds no answers.
        concurrency: How many operations run at the same time.
        hooks: Further hooks of every operation.
        on_result: Called after each task.
    """
    cassettes = {_name(case): recorded.cassettes.get(_name(case)) or Cassette(_name(case)) for case in cases}
    attached: dict[str, list[AnyHook]] = {name: [cassette.player(), *hooks] for name, cassette in cassettes.items()}
    return await _run(cases, "replayed", cassettes, attached, concurrency, on_result)


async def _run(
    cases: Sequence[Case],
    mode: Mode,
    cassettes: Mapping[str, Cassette],
    attached: Mapping[str, list[AnyHook]],
    concurrency: int,
    on_result: OnResult | None,
) -> SuiteRun:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise HookUsageError(f"`concurrency` is a whole number from 1; got {concurrency!r}.")
    started = perf_counter_ns()
    results: dict[int, TaskResult] = {}
    waiting = iter(enumerate(cases))
    store = InMemoryStore()
    with EventRecorder("observer") as recorder:

        async def work(queue: Iterator[tuple[int, Case]]) -> None:
            for position, case in queue:
                suite, task_id = case
                outcome = await suite.run_task(
                    task_id,
                    hooks=[recorder.hooks, *attached[_name(case)]],
                    dispatcher=dispatcher,
                    store=store,
                    forbid_tools=mode == "replayed",
                )
                results[position] = _result(outcome, recorder[outcome.result.operation_id])
                if on_result is not None:
                    on_result(results[position])

        async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
            for _ in range(min(concurrency, len(cases))):
                group.start_soon(work, waiting)
    return SuiteRun(
        mode=mode,
        results=[results[position] for position in sorted(results)],
        operations=recorder.operations,
        cassettes=cassettes,
        duration_ms=(perf_counter_ns() - started) / 1e6,
    )


def _name(case: Case) -> str:
    return f"{case[0].name}/{case[1]}"


def _result(outcome: TaskOutcome, recorded: RecordedOperation) -> TaskResult:
    result = outcome.result
    return TaskResult(
        suite=outcome.suite,
        task_id=outcome.task_id,
        prompt=outcome.prompt,
        operation_id=result.operation_id,
        utility=outcome.utility,
        reason=result.reason,
        error=f"{type(result.error).__name__}: {message_of(result.error)}" if result.error else None,
        steps=result.steps,
        tool_calls=result.tool_calls,
        mocked=recorded.mocked,
        failed=recorded.failed,
        tools_run=outcome.tools_run,
        forbidden=outcome.forbidden,
        hook_executions=len(recorded.executions),
        hook_time_ms=recorded.hook_time_ms,
        duration_ms=_duration_ms(recorded),
        tool_results=outcome.tool_results,
        output=result.output,
        trajectory=recorded.trajectory,
    )


def _duration_ms(recorded: RecordedOperation) -> float:
    if not recorded.events:
        return 0.0
    return (recorded.events[-1].time_unix_nano - recorded.events[0].time_unix_nano) / 1e6
