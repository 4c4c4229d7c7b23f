"""Run the tasks of suites: with real tools, recorded, replayed or strictly mocked, with or without faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import anyio

from hookline.dispatcher import HookDispatcher
from hookline.errors import HookUsageError, message_of
from hookline.evals.cassettes import Cassette
from hookline.evals.errors import CassetteFolderError
from hookline.evals.faults import FaultSpec
from hookline.evals.mocking import ToolMocks
from hookline.evals.running._protocol import RunsTasks, Suite
from hookline.evals.running._provenance import Provenance
from hookline.evals.running._results import Mode, SuiteRun, TaskOutcome, TaskResult
from hookline.evals.trajectories import EventRecorder, RecordedOperation, Trajectory, call_rows, coverage_of
from hookline.hooks import AnyHook
from hookline.runtime import InMemoryStore

__all__ = ["Case", "Suite", "SuiteRunner", "cases_of", "cassette_file", "record", "replay"]

Case = tuple[RunsTasks, str]
"""A task of a suite."""

OnResult = Callable[[TaskResult], object]
"""A function that is called after each task, to show progress."""

FORBID = ("replay", "strict", "replayed")
"""The modes in which no real tool may run."""


def cases_of(suites: Iterable[RunsTasks], tasks: Iterable[str] = ()) -> list[Case]:
    """List the tasks of suites.

    Args:
        suites: The suites.
        tasks: Names of tasks that each suite must have; by default all tasks.

    Raises:
        UnknownTaskError: If a suite has no task of a name.
    """
    names = list(tasks)
    return [(suite, task_id) for suite in suites for task_id in suite.select(names)]


def cassette_file(folder: Path, case: Case) -> Path:
    """Return the path of a task's cassette: `FOLDER/SUITE/TASK.yaml`, in characters that every file system has."""
    return folder / _file_name(case[0].name) / f"{_file_name(case[1])}.yaml"


async def record(
    cases: Sequence[Case],
    *,
    concurrency: int = 8,
    hooks: Iterable[AnyHook] = (),
    on_result: OnResult | None = None,
) -> SuiteRun:
    """Run tasks with their real tools, and record the answers in memory.

    Args:
        cases: The tasks.
        concurrency: The number of operations that run at the same time.
        hooks: Further hooks of every operation.
        on_result: A function that is called after each task.
    """
    return await SuiteRunner(
        cases,
        mode="real",
        concurrency=concurrency,
        hooks=hooks,
        on_result=on_result,
        made_by="hookline.evals.record()",
    ).run()


async def replay(
    recorded: SuiteRun,
    cases: Sequence[Case],
    *,
    concurrency: int = 8,
    hooks: Iterable[AnyHook] = (),
    on_result: OnResult | None = None,
) -> SuiteRun:
    """Run tasks again, with every tool call answered by the recording. No real tool runs.

    Args:
        recorded: The run that `record` returned.
        cases: The tasks. A task that was not recorded has no answers.
        concurrency: The number of operations that run at the same time.
        hooks: Further hooks of every operation.
        on_result: A function that is called after each task.
    """
    return await SuiteRunner(
        cases,
        mode="replayed",
        recorded=recorded.cassettes,
        concurrency=concurrency,
        hooks=hooks,
        on_result=on_result,
        made_by="hookline.evals.replay()",
    ).run()


class SuiteRunner:
    """Runs tasks, each as one operation with its own rules, faults and cassette.

    A task that raises counts as failed. After an interruption, `so_far` returns the tasks that are done.

    Args:
        cases: The tasks.
        mode: Who answers tool calls. `"spy"` runs the real tools. `"record"` does, too, and writes their answers to
            one cassette file per task. `"replay"` answers from these files only, `"strict"` from the suite's own rules
            and, if `cassettes` is given, from these files; in both, no real tool runs.
        cassettes: The folder of the cassette files.
        recorded: Cassettes in memory, by task name, instead of files.
        faults: Faults to inject. Which calls they break depends only on `seed`, the task and the call.
        seed: The seed of the run's faults.
        concurrency: The number of operations that run at the same time.
        hooks: Further hooks of every operation.
        on_result: A function that is called after each task.
        made_by: The command line or the function call that reports name as the origin of the run.

    Raises:
        HookUsageError: If `concurrency` is not a positive number.
        CassetteFolderError: If the mode needs cassettes and no folder is given.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        *,
        mode: Mode = "spy",
        cassettes: str | Path | None = None,
        recorded: Mapping[str, Cassette] | None = None,
        faults: Iterable[FaultSpec] = (),
        seed: int = 0,
        concurrency: int = 8,
        hooks: Iterable[AnyHook] = (),
        on_result: OnResult | None = None,
        made_by: str = "hookline.evals.SuiteRunner.run()",
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise HookUsageError(f"`concurrency` is a whole number from 1; got {concurrency!r}.")
        self.cases = list(cases)
        self.mode: Mode = mode
        self.seed = seed
        self._folder = None if cassettes is None else Path(cassettes)
        homeless = [_name(case) for case in self.cases if mode in ("record", "replay") and self._path(case) is None]
        if homeless:
            raise CassetteFolderError(mode, f"none is given, and {homeless[0]} names no cassette of its own")
        if mode == "replay" and self._folder is not None and not self._folder.is_dir():
            raise CassetteFolderError(mode, f"there is no folder {self._folder}")
        self._recorded = recorded or {}
        self._faults = list(faults)
        self._concurrency = concurrency
        self._hooks = list(hooks)
        self._on_result = on_result
        self._suites = list(dict.fromkeys(suite for suite, _ in self.cases))
        self._provenance = Provenance.of(self._suites, made_by)
        self._made_by = made_by
        self._recorder = EventRecorder("observer")
        self._results: dict[int, TaskResult] = {}
        self._cassettes: dict[str, Cassette] = {}
        self._started = perf_counter_ns()
        self._duration_ms = 0.0

    async def run(self) -> SuiteRun:
        """Run all tasks."""
        self._provenance = Provenance.of(self._suites, self._made_by)
        self._started = perf_counter_ns()
        waiting = iter(enumerate(self.cases))
        store = InMemoryStore()

        async def work(queue: Iterator[tuple[int, Case]]) -> None:
            for position, case in queue:
                self._results[position] = await self._result(case, dispatcher, store)
                if self._on_result is not None:
                    self._on_result(self._results[position])

        try:
            with self._recorder:
                async with HookDispatcher() as dispatcher, anyio.create_task_group() as group:
                    for _ in range(min(self._concurrency, len(self.cases))):
                        group.start_soon(work, waiting)
        finally:
            self._duration_ms = (perf_counter_ns() - self._started) / 1e6
        return self.so_far

    @property
    def so_far(self) -> SuiteRun:
        """Return the results of the tasks that are done, in the order of the cases."""
        done = sorted(self._results)
        results = [self._results[position] for position in done]
        return SuiteRun(
            mode=self.mode,
            results=results,
            operations=self._recorder.operations,
            cassettes=dict(self._cassettes),
            duration_ms=self._duration_ms,
            seed=self.seed,
            coverage=[
                coverage_of(
                    suite.name,
                    getattr(suite, "tool_specs", ()),  # a suite that only runs tasks may have none
                    [call for result in results if result.suite == suite.name for call in result.calls],
                )
                for suite in self._suites
            ],
            not_run=[_name(case) for position, case in enumerate(self.cases) if position not in self._results],
            provenance=self._provenance,
        )

    async def _result(self, case: Case, dispatcher: HookDispatcher, store: InMemoryStore) -> TaskResult:
        suite, task_id = case
        started = perf_counter_ns()
        try:
            path = self._path(case)
            cassette = self._cassette(case, path)
            mocks = self._mocks(case, None if self._in_memory else cassette)
            outcome = await suite.run_task(
                task_id,
                hooks=[self._recorder.hooks, *self._hooks_of(mocks, cassette), *self._hooks],
                dispatcher=dispatcher,
                store=store,
                forbid_tools=self.mode in FORBID,
            )
            if self.mode == "record" and cassette is not None:
                cassette.save()
            recorded = RecordedOperation.of_conversation([self._recorder[each] for each in outcome.operation_ids])
            return _result(case, outcome, recorded, mocks, None if cassette is None or path is None else str(path))
        except Exception as error:
            return _failed_result(case, error, (perf_counter_ns() - started) / 1e6)

    def _hooks_of(self, mocks: ToolMocks, cassette: Cassette | None) -> list[AnyHook]:
        # Idle mocks are not attached to a run in memory, whose report shows the cost of its hooks.
        busy: list[AnyHook] = [mocks] if mocks.rules or mocks.faults or not self._in_memory else []
        if not self._in_memory or cassette is None:
            return busy
        return [*busy, cassette.recorder() if self.mode == "real" else cassette.player()]

    @property
    def _in_memory(self) -> bool:
        return self.mode in ("real", "replayed")

    def _path(self, case: Case) -> Path | None:
        if self.mode not in ("record", "replay", "strict"):
            return None
        if self._folder is not None:
            return cassette_file(self._folder, case)
        suite, task_id = case
        own: Path | None = suite.cassette(task_id) if hasattr(suite, "cassette") else None
        return own

    def _cassette(self, case: Case, path: Path | None) -> Cassette | None:
        name = _name(case)
        options: dict[str, Any] = {**getattr(case[0], "cassette_options", {}), "conversation": _is_conversation(case)}
        if self._in_memory:  # nothing of it reaches a file, so secrets may stay
            kept = self._recorded.get(name)
            found = Cassette(name, **{**options, "redact": None}) if kept is None else kept
        elif path is None or (self.mode == "strict" and not path.exists()):
            return None
        elif self.mode == "record":
            found = Cassette(name, path=path, mode="rewrite", **options)
        else:
            found = Cassette(name, path=path, mode="none", **options)
        self._cassettes[name] = found
        return found

    def _mocks(self, case: Case, cassette: Cassette | None) -> ToolMocks:
        suite, task_id = case
        mocks = ToolMocks(
            strict=self.mode in ("replay", "strict"),
            seed=self.seed,
            case=_name(case),
            cassette=cassette,
            tools=getattr(suite, "mockable_specs", getattr(suite, "tool_specs", ())),
            conversation=_is_conversation(case),
        )
        for spec in self._faults:
            mocks.fault(spec.tool, spec.fault, probability=spec.probability, args=spec.args, name=spec.name)
        arrange = getattr(suite, "arrange", None)
        if arrange is not None:
            arrange(task_id, mocks)
        return mocks


def _name(case: Case) -> str:
    return f"{case[0].name}/{case[1]}"


def _is_conversation(case: Case) -> bool:
    """Whether the operations of a task are turns of one conversation."""
    suite, task_id = case
    asks = getattr(suite, "is_conversation", None)
    return bool(asks(task_id)) if callable(asks) else False


def _labels(case: Case) -> dict[str, Any]:
    """Return what a suite says about a task beside its prompt: tags, expected output, weight and metadata."""
    suite, task_id = case
    labels, tags_of = getattr(suite, "labels", None), getattr(suite, "tags_of", None)
    found = dict(labels(task_id)) if callable(labels) else {}
    return {**found, "tags": list(tags_of(task_id))} if callable(tags_of) else found


def _file_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:80]
    if plain == name:
        return name
    return f"{plain or 'task'}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _result(
    case: Case, outcome: TaskOutcome, recorded: RecordedOperation, mocks: ToolMocks, cassette: str | None
) -> TaskResult:
    result = outcome.result
    return TaskResult(
        suite=outcome.suite,
        task_id=outcome.task_id,
        prompt=outcome.prompt,
        operation_id=result.operation_id,
        utility=outcome.utility,
        reason=result.reason,
        error=_describe_error(result.error) if result.error else None,
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
        score=outcome.score,
        checks=outcome.checks,
        cost_usd=result.usage.cost_usd,
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
        calls=call_rows(f"{outcome.suite}/{outcome.task_id}", recorded, mocks.calls),
        cassette=cassette,
        turns=outcome.turns,
        conversation_end=outcome.conversation_end,
        judge_usage=outcome.judge_usage,
        user_usage=outcome.user_usage,
        **_labels(case),
    )


def _failed_result(case: Case, error: Exception, duration_ms: float) -> TaskResult:
    suite, task_id = case
    try:
        prompt, labels = suite.prompt(task_id) if hasattr(suite, "prompt") else "", _labels(case)
    except Exception:  # the suite cannot even make the task, which is why it failed
        prompt, labels = "", {}
    return TaskResult(
        suite=suite.name,
        task_id=task_id,
        prompt=prompt,
        operation_id="",
        utility=None,
        reason="error",
        error=_describe_error(error),
        steps=0,
        tool_calls=0,
        mocked=0,
        failed=0,
        tools_run=0,
        forbidden=0,
        hook_executions=0,
        hook_time_ms=0.0,
        duration_ms=duration_ms,
        tool_results=[],
        output="",
        trajectory=Trajectory(steps=[], output="", reason="error"),
        **labels,
    )


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"


def _duration_ms(recorded: RecordedOperation) -> float:
    if not recorded.events:
        return 0.0
    return (recorded.events[-1].time_unix_nano - recorded.events[0].time_unix_nano) / 1e6
