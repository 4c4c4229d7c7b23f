"""Run one task: with its own rules, faults, cassette and time limit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec

from hookline.calls import Call, ModelCall, ModelResponse
from hookline.dispatcher import HookDispatcher
from hookline.errors import message_of
from hookline.evals.cassettes import DEFAULT_REDACTION, Cassette, RecordMode
from hookline.evals.faults import FaultSpec
from hookline.evals.mocking import ToolMocks
from hookline.evals.running._protocol import RunsTasks
from hookline.evals.running._results import Mode, TaskKey, TaskOutcome, TaskResult, verdicts_of
from hookline.evals.running._time_limits import TaskTimeoutError, finish_within
from hookline.evals.running._timeline import timeline_of
from hookline.evals.tapes import ModelTape
from hookline.evals.trajectories import EventRecorder, RecordedOperation, Trajectory, call_rows
from hookline.events import BeforeStep
from hookline.hooks import AnyHook, Hooks
from hookline.instrumentation import Instrumentation, await_verdicts
from hookline.runtime import InMemoryStore, ModelPause, model_pause

__all__ = [
    "FORBID",
    "Case",
    "TaskRun",
    "TaskRunner",
    "case_name",
    "cassette_file",
    "failed_result",
    "model_of",
    "tags_of",
    "tape_file",
]

Case = tuple[RunsTasks, str]
"""A task of a suite."""

FORBID = ("replay", "strict", "replayed")
"""The modes in which no real tool may run."""

TIMEOUT, CRASH = "timeout", "crash"
"""The reasons of tasks that the runner ended, or that ended their process."""


def case_name(case: Case) -> str:
    """Return the name of a task with its suite: `banking/user_task_0`."""
    return f"{case[0].name}/{case[1]}"


def tags_of(case: Case) -> list[str]:
    """Return the tags of a task; a suite of somebody's own may have none."""
    found = getattr(case[0], "tags_of", None)
    return list(found(case[1])) if callable(found) else []


def is_conversation(case: Case) -> bool:
    """Whether the operations of a task are turns of one conversation."""
    found = getattr(case[0], "is_conversation", None)
    return bool(found(case[1])) if callable(found) else False


def labels_of(case: Case) -> dict[str, Any]:
    """Return what a suite says about a task beside its prompt: tags, expected output, weight and metadata."""
    found = getattr(case[0], "labels", None)
    return {**(found(case[1]) if callable(found) else {}), "tags": tags_of(case)}


def model_of(case: Case) -> str:
    """Return the name of the model that was chosen for a task; empty for the suite's own."""
    found = getattr(case[0], "model", "")
    return found if isinstance(found, str) else ""


def cassette_file(folder: Path, case: Case, attempt: int = 1, *, model: str = "") -> Path:
    """Return the path of a task's cassette: `FOLDER/SUITE/TASK.yaml`, in characters that every file system has.

    Args:
        folder: The folder.
        case: The task.
        attempt: Which of its runs: later ones than the first are `FOLDER/SUITE/TASK.attempt-2.yaml`.
        model: The model that was chosen, which has a folder of its own: `FOLDER/MODEL/SUITE/TASK.yaml`.
    """
    owner = folder / _file_name(model) if model else folder
    numbered = f".attempt-{attempt}" if attempt > 1 else ""
    return owner / _file_name(case[0].name) / f"{_file_name(case[1])}{numbered}.yaml"


def tape_file(folder: Path, case: Case, attempt: int = 1) -> Path:
    """Return the path of the tape of a run of a task, beside its cassette: `FOLDER/SUITE/TASK.tape.yaml`."""
    return cassette_file(folder, case, attempt, model=model_of(case)).with_suffix(".tape.yaml")


TAPE_MODES: Mapping[Mode, RecordMode] = {
    "record": "rewrite",
    "replay": "none",
    "strict": "none",
    "replayed": "none",
    "spy": "new_episodes",
    "real": "new_episodes",
}
"""What a tape does unless it is given another mode, by the mode of the run."""


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One run of a task.

    Attributes:
        result: Its result.
        recorded: Its events; `None` if it has none, or ran in another process.
        cassette: Its cassette, if it was recorded in memory.
    """

    result: TaskResult
    recorded: RecordedOperation | None = None
    cassette: Cassette | None = None


class TaskRunner:
    """Runs tasks, each as one operation. Nothing of a task is kept when it has ended.

    Args:
        mode: Who answers tool calls.
        cassettes: The folder of the cassette files.
        recorded: Cassettes in memory, by task name, instead of files.
        faults: Faults to inject.
        seed: Their seed.
        hooks: Further hooks of every operation.
        timeout: Seconds that a task may take; `None` for any time.
        detach: Whether a task that does not stop when it is cancelled is left behind, so that the run goes on.
        pause: The pause that the models of all tasks share.
        tapes: The folder of the tapes of model calls; `None` for none.
        tape_mode: The record mode of the tapes; by default that of the run's mode, as in `TAPE_MODES`.
        allow_repeats: Whether tapes and cassettes answer a call that is made more often than it was recorded.
    """

    def __init__(
        self,
        *,
        mode: Mode,
        cassettes: str | Path | None = None,
        recorded: Mapping[str, Cassette] | None = None,
        faults: Iterable[FaultSpec] = (),
        seed: int = 0,
        hooks: Iterable[AnyHook] = (),
        timeout: float | None = None,
        detach: bool = True,
        pause: ModelPause | None = None,
        tapes: str | Path | None = None,
        tape_mode: RecordMode | None = None,
        allow_repeats: bool = False,
    ) -> None:
        self._tapes = None if tapes is None else Path(tapes)
        self._tape_mode: RecordMode = tape_mode or TAPE_MODES[mode]
        self._allow_repeats = allow_repeats
        self.mode = mode
        self.seed = seed
        self.timeout = timeout
        self.pause = pause if pause is not None else ModelPause()
        self._folder = None if cassettes is None else Path(cassettes)
        self._recorded = recorded or {}
        self._faults = list(faults)
        self._hooks = list(hooks)
        self._detach = detach
        self._recorder = EventRecorder("observer")
        self._store = InMemoryStore(remember=0)

    def __enter__(self) -> TaskRunner:
        self._recorder.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._recorder.__exit__(*error)

    def path(self, case: Case, attempt: int = 1) -> Path | None:
        """Return the cassette file of a run of a task; `None` if it has none in this mode.

        A replay with a chosen model, or of a further attempt, uses what was recorded for it, or else the recording of
        the first attempt, or of the suite's own model.
        """
        if self.mode not in ("record", "replay", "strict"):
            return None
        if self._folder is not None:
            model = model_of(case)
            places = dict.fromkeys(
                cassette_file(self._folder, case, number, model=owner)
                for owner in (model, "")
                for number in (attempt, 1)
            )
            first = next(iter(places))
            return first if self.mode == "record" else next((each for each in places if each.exists()), first)
        suite, task_id = case
        own: Path | None = suite.cassette(task_id) if hasattr(suite, "cassette") else None
        return own

    async def run(self, case: Case, key: TaskKey, dispatcher: HookDispatcher) -> TaskRun:
        """Run a task. One that raises, or takes too long, counts as failed.

        Args:
            case: The task.
            key: Which of its runs this is.
            dispatcher: An open dispatcher, which tasks share.
        """
        started = perf_counter_ns()
        begun: list[str] = []
        model_pause.set(self.pause)
        try:
            path = self.path(case, key[1])
            cassette = self._cassette(case, path)
            tape, prices = self._tape(case, key[1]), PriceWatch()
            mocks = self._mocks(case, key[1], None if self._in_memory else cassette)
            work = partial(
                case[0].run_task,
                case[1],
                hooks=[
                    self._recorder.hooks,
                    *self._hooks_of(mocks, cassette),
                    *self._hooks,
                    *self._watch(begun),
                    *([] if tape is None else [tape.hooks]),
                    prices,
                ],
                dispatcher=dispatcher,
                store=self._store,
                forbid_tools=self.mode in FORBID,
            )
            # The spans of the run stay open until the checks are done, and get their verdicts.
            with await_verdicts() as verdicts:
                try:
                    with _save_after_task(tape):
                        outcome = await finish_within(work, self.timeout, detach=self._detach, pause=self.pause)
                except TaskTimeoutError as error:
                    stopped = self._timed_out(case, key, str(error), begun, mocks, (perf_counter_ns() - started) / 1e6)
                    return replace(stopped, result=_with_tape(stopped.result, tape, prices))
                if self.mode == "record" and cassette is not None:
                    cassette.save(empty=True)  # a replay finds that the task was recorded and made no call
                recorded = self._recorded_of(outcome)
                file = None if cassette is None or path is None else str(path)
                result = _with_tape(_result(case, key, outcome, recorded, mocks, file), tape, prices)
                verdicts.give(result.operation_id, verdicts_of(result))
            return TaskRun(result=result, recorded=recorded, cassette=cassette if self._in_memory else None)
        except Exception as error:
            failed = failed_result(case, key, _describe_error(error), (perf_counter_ns() - started) / 1e6)
            return TaskRun(result=failed)

    def _recorded_of(self, outcome: TaskOutcome) -> RecordedOperation:
        """Return the events of a task, those of all turns of a conversation, which the recorder then forgets."""
        recorded = RecordedOperation.of_conversation([self._recorder[each] for each in outcome.operation_ids])
        for each in outcome.operation_ids:
            self._recorder.forget(each)
        return recorded

    def _watch(self, begun: list[str]) -> list[AnyHook]:
        """Return hooks that note the operation, for a task that may have to be stopped before it has a result."""
        if self.timeout is None:
            return []
        hooks = Hooks("time-limit")

        @hooks.on(BeforeStep)
        def note(event: BeforeStep) -> None:
            if event.parent_operation_id is None and event.operation_id not in begun:
                begun.append(event.operation_id)

        return [hooks]

    def _timed_out(
        self, case: Case, key: TaskKey, why: str, begun: list[str], mocks: ToolMocks, duration_ms: float
    ) -> TaskRun:
        """Return the failed run of a task that was stopped, with what it had done."""
        result = failed_result(case, key, why, duration_ms, reason=TIMEOUT)
        if not begun:
            return TaskRun(result=result)
        recorded = self._recorder[begun[0]]
        self._recorder.forget(begun[0])
        calls = call_rows(case_name(case), recorded, mocks.calls)
        result = msgspec.structs.replace(
            result,
            operation_id=begun[0],
            steps=len(recorded.trajectory.steps),
            tool_calls=len(recorded.calls),
            mocked=recorded.mocked,
            failed=recorded.failed,
            hook_executions=len(recorded.executions),
            hook_time_ms=recorded.hook_time_ms,
            trajectory=msgspec.structs.replace(recorded.trajectory, reason=TIMEOUT),
            calls=calls,
            tools_run=sum(call.outcome == "real" for call in calls),
            timeline=timeline_of(recorded),
        )
        return TaskRun(result=result, recorded=recorded)

    def _hooks_of(self, mocks: ToolMocks, cassette: Cassette | None) -> list[AnyHook]:
        # Idle mocks are not attached to a run in memory, whose report shows the cost of its hooks.
        busy: list[AnyHook] = [mocks] if mocks.rules or mocks.faults or not self._in_memory else []
        if not self._in_memory or cassette is None:
            return busy
        return [*busy, cassette.recorder() if self.mode == "real" else cassette.player()]

    @property
    def _in_memory(self) -> bool:
        return self.mode in ("real", "replayed")

    def _cassette(self, case: Case, path: Path | None) -> Cassette | None:
        name = case_name(case)
        options: dict[str, Any] = {**getattr(case[0], "cassette_options", {}), "conversation": is_conversation(case)}
        if self._allow_repeats:
            options["allow_repeats"] = True
        if self._in_memory:  # nothing of it reaches a file, so secrets may stay
            kept = self._recorded.get(name)
            found = Cassette(name, **{**options, "redact": None}) if kept is None else kept
        elif path is None or (self.mode == "strict" and not path.exists()):
            return None
        elif self.mode == "record":
            found = Cassette(name, path=path, mode="rewrite", **options)
        else:
            changed = "refuse" if self.mode == "strict" else "warn"
            found = Cassette(name, path=path, mode="none", **{"changed_tools": changed, **options})
        return found

    def _tape(self, case: Case, attempt: int) -> ModelTape | None:
        if self._tapes is None:
            return None
        path = tape_file(self._tapes, case, attempt)
        redact = getattr(case[0], "cassette_options", {}).get("redact", DEFAULT_REDACTION)
        name = describe_run(case, attempt)
        return ModelTape(name, path=path, mode=self._tape_mode, redact=redact, allow_repeats=self._allow_repeats)

    def _mocks(self, case: Case, attempt: int, cassette: Cassette | None) -> ToolMocks:
        suite, task_id = case
        mocks = ToolMocks(
            strict=self.mode in ("replay", "strict"),
            seed=self.seed,
            # Each attempt meets faults of its own, the same ones in every run with this seed.
            case=case_name(case) if attempt == 1 else f"{case_name(case)}#{attempt}",
            cassette=cassette,
            tools=getattr(suite, "mockable_specs", getattr(suite, "tool_specs", ())),
            conversation=is_conversation(case),
        )
        for spec in self._faults:
            mocks.fault(spec.tool, spec.fault, probability=spec.probability, args=spec.args, name=spec.name)
        arrange = getattr(suite, "arrange", None)
        if arrange is not None:
            arrange(task_id, mocks)
        return mocks


def describe_run(case: Case, attempt: int) -> str:
    """Name a run of a task, as tapes do: `shop/tea`, `shop/tea (openai:gpt-5, attempt 2)`."""
    further = [each for each in (model_of(case), f"attempt {attempt}" if attempt > 1 else "") if each]
    return f"{case_name(case)} ({', '.join(further)})" if further else case_name(case)


@contextmanager
def _save_after_task(tape: ModelTape | None) -> Iterator[None]:
    """Save a tape after a task, also after one that failed or took too long.

    A run that is interrupted leaves the tape that it would have rewritten as it is.
    """
    try:
        yield
    except Exception:
        if tape is not None:
            tape.save()
        raise
    except BaseException:
        if tape is not None and tape.mode != "rewrite":
            tape.save()
        raise
    else:
        if tape is not None:
            tape.save(empty=tape.records)


class PriceWatch(Instrumentation):
    """Notes the models of a run, its sub-agents, judges and simulated users that have no known price.

    Attributes:
        unpriced: The names of these models.
    """

    encloses = frozenset({ModelCall})

    def __init__(self) -> None:
        super().__init__("prices", inherit=True)
        self.unpriced: list[str] = []

    def enter(self, call: Call) -> str:
        """Return the name of the model."""
        return call.model if isinstance(call, ModelCall) else ""

    def leave(self, entered: str, result: object, error: BaseException | None) -> None:
        """Note the model if the cost of its answer is unknown."""
        if isinstance(result, ModelResponse) and not result.cost_known and entered not in self.unpriced:
            self.unpriced.append(entered)


def _with_tape(result: TaskResult, tape: ModelTape | None, prices: PriceWatch) -> TaskResult:
    """Return a result with what the tape of the run did, and without a cost that is not known."""
    unpriced = list(dict.fromkeys([*prices.unpriced, *(() if tape is None else tape.unpriced)]))
    if unpriced:
        result = msgspec.structs.replace(result, cost_usd=None, unpriced_models=unpriced)
    if tape is None:
        return result
    return msgspec.structs.replace(
        result,
        tape=str(tape.path),
        tape_misses=list(tape.misses),
        replayed_calls=tape.replayed,
        replayed_usage=tape.saved,
    )


def _file_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:80]
    if plain == name:
        return name
    return f"{plain or 'task'}-{blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def _result(
    case: Case, key: TaskKey, outcome: TaskOutcome, recorded: RecordedOperation, mocks: ToolMocks, cassette: str | None
) -> TaskResult:
    result = outcome.result
    return TaskResult(
        suite=case[0].name,
        task_id=case[1],
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
        calls=call_rows(case_name(case), recorded, mocks.calls),
        cassette=cassette,
        timeline=timeline_of(recorded),
        target=outcome.target,
        attempt=key[1],
        model=key[2],
        turns=outcome.turns,
        conversation_end=outcome.conversation_end,
        judge_usage=outcome.judge_usage,
        user_usage=outcome.user_usage,
        **labels_of(case),
    )


def failed_result(case: Case, key: TaskKey, error: str, duration_ms: float, *, reason: str = "error") -> TaskResult:
    """Return the result of a task that has no outcome.

    Args:
        case: The task.
        key: Which of its runs it is.
        error: What happened.
        duration_ms: How long it took.
        reason: The reason of its end.
    """
    suite, task_id = case
    try:
        prompt, labels = suite.prompt(task_id) if hasattr(suite, "prompt") else "", labels_of(case)
    except Exception:  # the suite cannot even make the task, which is why it failed
        prompt, labels = "", {}
    return TaskResult(
        suite=suite.name,
        task_id=task_id,
        prompt=prompt,
        operation_id="",
        utility=None,
        reason=reason,
        error=error,
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
        trajectory=Trajectory(steps=[], output="", reason=reason),
        attempt=key[1],
        model=key[2],
        **labels,
    )


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"


def _duration_ms(recorded: RecordedOperation) -> float:
    if not recorded.events:
        return 0.0
    return (recorded.events[-1].time_unix_nano - recorded.events[0].time_unix_nano) / 1e6
