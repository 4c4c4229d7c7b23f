"""Results of running suites: the outcome of each task, the whole run, and its comparison with a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import msgspec

from hookline.calls import Usage
from hookline.evals.cassettes import Cassette
from hookline.evals.running._provenance import Provenance
from hookline.evals.running._timeline import Timeline
from hookline.evals.trajectories import CallRow, Coverage, RecordedOperation, Trajectory, TrajectoryStep
from hookline.instrumentation import EvaluationResult
from hookline.runtime import OperationResult

__all__ = [
    "REPLAYS",
    "VARYING_FIELDS",
    "CheckResult",
    "Comparison",
    "ConversationEnd",
    "ConversationTurn",
    "Difference",
    "JudgeVerdict",
    "Judgement",
    "Mode",
    "SuiteRun",
    "TaskKey",
    "TaskOutcome",
    "TaskResult",
    "Totals",
    "attempt_score",
    "clamp_score",
    "compare",
    "stable_fields",
    "verdicts_of",
]

Mode = Literal["spy", "record", "replay", "strict", "real", "replayed"]
"""Who answers the tool calls of a run. `"real"` and `"replayed"` are a pair of runs, recorded in memory."""

TaskKey = tuple[str, int, str]
"""A run of a task: the task with its suite, the attempt from 1, and the model, empty for the suite's own."""

REPLAYS = ("replay", "replayed")
"""The modes in which the recording judges, because real tools changed nothing that a suite could check."""


class JudgeVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The verdict of one model that judged a task.

    Attributes:
        model: The name of the model.
        score: The score, from 0 to 1; `None` if the model gave none.
        reason: The model's reason; the text of its answer, or its error, if it gave no score.
    """

    model: str
    score: float | None
    reason: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The judgement of one or more models about a task.

    Attributes:
        threshold: The score from which a task passes.
        reason: The reason of the score.
        verdicts: The verdict of each model.
    """

    threshold: float
    reason: str
    verdicts: list[JudgeVerdict]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of one check of a task.

    Attributes:
        name: The name of the check.
        passed: Whether the check passed.
        score: The score, from 0 to 1.
        why: The reason of the failure; empty if it passed.
        kind: The kind of the check, such as `"output_contains"`, for exports that need few names; empty if its name is
            already that of a kind.
        judged: Whether the check came to a verdict. If not, it has not passed, and its score has no meaning.
        required: Whether the task fails if the check came to no verdict; if not, the check is left out of the result.
        judgement: What the models of a judge said; `None` for other checks.
        usage: Tokens and cost of the model calls that the check made; `None` if it made none.
    """

    name: str
    passed: bool
    score: float
    why: str = ""
    kind: str = ""
    judged: bool = True
    required: bool = True
    judgement: Judgement | None = None
    usage: Usage | None = None

    @property
    def metric(self) -> str:
        """The kind of the check, or its name if that is one."""
        return self.kind or self.name

    @property
    def left_out(self) -> bool:
        """Whether the check is left out of the result of its task, because it came to no verdict."""
        return not self.judged and not self.required

    @property
    def failure(self) -> str | None:
        """Why the check fails its task; `None` if it does not."""
        if self.passed or self.left_out:
            return None
        why = self.why if self.judged else f"not judged: {self.why}"
        return f"{self.name}: {why}" if why else self.name


ConversationEnd = Literal["", "turns", "max_turns", "phrase", "check", "user", "reason"]
"""Why a conversation ended: all scripted turns were said; there were enough turns; a phrase was said; a check passed;
the simulated user was done; the run of a turn did not end with the reason `"done"`."""


class ConversationTurn(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One turn of a conversation: a message of the user, and what the agent did with it.

    Attributes:
        user: The message of the user.
        output: The agent's answer.
        operation_id: The operation of the turn; empty for a last message that the agent was not given.
        reason: Why the operation ended, as in `OperationResult.reason`.
        steps: Steps of the operation.
    """

    user: str
    output: str = ""
    operation_id: str = ""
    reason: str = ""
    steps: int = 0


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run of a task, as its suite reports it.

    Attributes:
        suite: The suite.
        task_id: The task.
        prompt: The user's prompt.
        result: The result of the run.
        utility: Whether the suite's own check passed; `None` if no real tool ran, so that there is nothing
            to check.
        tools_run: How many calls reached a real tool.
        forbidden: How many calls would have reached a real tool that was forbidden.
        checks: The result of each check, for a suite that has several.
        target: What the answer should be or have, or the calls that solve the task; empty if that is not known.
        turns: The turns of a conversation; empty for a task with one prompt. `result` is that of the last turn.
        conversation_end: Why the conversation ended; empty for a task with one prompt.
        judge_usage: Tokens and cost of the model calls of checks.
        user_usage: Tokens and cost of the model calls of a simulated user.
    """

    suite: str
    task_id: str
    prompt: str
    result: OperationResult
    utility: bool | None
    tools_run: int
    forbidden: int
    checks: list[CheckResult] = []
    target: list[str] = []
    turns: list[ConversationTurn] = []
    conversation_end: ConversationEnd = ""
    judge_usage: Usage = Usage()
    user_usage: Usage = Usage()

    @property
    def score(self) -> float | None:
        """The mean score of the checks, from 0 to 1; `None` if nothing was checked, or a required check has no verdict.

        Checks that are left out do not count.
        """
        counted = [check for check in self.checks if not check.left_out]
        if not all(check.judged for check in counted):
            return None
        if counted:
            return sum(check.score for check in counted) / len(counted)
        return None if self.utility is None else float(self.utility)

    @property
    def operation_ids(self) -> list[str]:
        """The operations of the task, in order: one for each turn of a conversation."""
        return [turn.operation_id for turn in self.turns if turn.operation_id] or [self.result.operation_id]

    @property
    def tool_results(self) -> list[str]:
        """The tool results that the model read, in their order."""
        return [message.content for message in self.result.messages if message.role == "tool"]


class TaskResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The measured figures of one task, as a row of a report.

    Attributes:
        suite: The suite.
        task_id: The task.
        prompt: The user's prompt.
        operation_id: The operation.
        utility: Whether the suite's own check passed; `None` if there was no check.
        reason: The reason of the run's end: `"done"`, `"error"`, …; `"timeout"` if the task took longer than it may,
            `"crash"` if it ended the process that ran it.
        error: The error that ended the run, if it failed.
        steps: Steps of the run.
        tool_calls: Tool calls of the run.
        mocked: How many of them a hook answered.
        failed: How many of them failed.
        tools_run: How many of them reached a real tool.
        forbidden: How many would have reached a forbidden one.
        hook_executions: How many handlers ran.
        hook_time_ms: Time spent in them.
        duration_ms: How long the run took, other runs at the same time included.
        tool_results: The tool results that the model read.
        output: The final answer.
        trajectory: The steps and calls of the agent.
        score: The mean score of the checks, from 0 to 1; `None` if nothing was checked.
        checks: The result of each check.
        cost_usd: The cost of the run's model calls in US dollars; `None` if a model has no known price.
        calls: Each tool call, with the origin of its answer.
        cassette: The cassette's file, if the run had one.
        attempt: Which run of the task this is, from 1, if the task is repeated.
        model: The model that was chosen for the run; empty if the suite's own model answered.
        tags: The tags of the task.
        input_tokens: Tokens that the model calls of the run read.
        output_tokens: Tokens that they wrote.
        timeline: When its steps, calls and hooks ran; `None` in runs of versions of hookline that did not keep it.
        target: What the answer should be or have, or the calls that solve the task; empty if that is not known.
        turns: The turns of a conversation; empty for a task with one prompt.
        conversation_end: Why the conversation ended; empty for a task with one prompt.
        judge_usage: Tokens and cost of the model calls of checks. They are not in `cost_usd`.
        user_usage: Tokens and cost of the model calls of a simulated user. They are not in `cost_usd`.
        expected_output: The answer that the task expects, if it names one.
        weight: The weight of the task in mean scores.
        metadata: Further data of the task.
        tape: The file of the tape of its model calls, if the run had one.
        tape_misses: Why the tape did not answer, for each question that the model could not be asked.
        replayed_calls: How many model calls the tape answered.
        replayed_usage: Their tokens and cost, which nobody had to pay again. They are in the figures above.
        unpriced_models: Names of the models without a known price: of the agent, of judges, of a simulated user.
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
    score: float | None = None
    checks: list[CheckResult] = []
    cost_usd: float | None = 0.0
    calls: list[CallRow] = []
    cassette: str | None = None
    attempt: int = 1
    model: str = ""
    tags: list[str] = []
    input_tokens: int = 0
    output_tokens: int = 0
    timeline: Timeline | None = None
    target: list[str] = []
    turns: list[ConversationTurn] = []
    conversation_end: ConversationEnd = ""
    judge_usage: Usage = Usage()
    user_usage: Usage = Usage()
    expected_output: str | None = None
    weight: float = 1.0
    metadata: dict[str, Any] = {}
    tape: str | None = None
    tape_misses: list[str] = []
    replayed_calls: int = 0
    replayed_usage: Usage = Usage()
    unpriced_models: list[str] = []

    @property
    def name(self) -> str:
        """The task with its suite: `banking/user_task_0`."""
        return f"{self.suite}/{self.task_id}"

    @property
    def key(self) -> TaskKey:
        """The task, the attempt and the model, which no other result of the run shares."""
        return self.name, self.attempt, self.model

    @property
    def conversation(self) -> list[tuple[str, list[TrajectoryStep]]]:
        """Each message of the user, with the agent's steps that follow it."""
        left = list(self.trajectory.steps)
        found: list[tuple[str, list[TrajectoryStep]]] = []
        for turn in self.turns or [ConversationTurn(user=self.prompt, steps=len(left))]:
            found.append((turn.user, left[: turn.steps]))
            left = left[turn.steps :]
        return found

    @property
    def total_cost_usd(self) -> float | None:
        """The cost of all model calls in US dollars: of the agent, of checks and of a simulated user.

        `None` if one of their models has no known price.
        """
        if self.cost_usd is None:
            return None
        return self.cost_usd + self.judge_usage.cost_usd + self.user_usage.cost_usd

    @property
    def spent_usd(self) -> float | None:
        """The part of `total_cost_usd` that was paid for this run: without what a tape answered; `None` if unknown."""
        total, replayed = self.total_cost_usd, self.replayed_usage
        if total is not None:
            return max(total - replayed.cost_usd, 0.0)
        used = Usage(input_tokens=self.input_tokens, output_tokens=self.output_tokens)
        used = used + self.judge_usage + self.user_usage
        asked = (used.input_tokens, used.output_tokens) != (replayed.input_tokens, replayed.output_tokens)
        return None if asked or not self.replayed_calls else 0.0

    @property
    def unanswered(self) -> list[CallRow]:
        """The calls that strict rules refused, or that a cassette had no recording of."""
        return [call for call in self.calls if call.outcome == "refused"]

    @property
    def sound(self) -> bool:
        """Whether the run itself went well, apart from its checks.

        It ended, every call of a tool and of a model was answered, and no forbidden tool was about to run.
        """
        return self.reason == "done" and self.forbidden == 0 and not self.unanswered and not self.tape_misses

    @property
    def ok(self) -> bool:
        """Whether the task passed: its run went well, and no check failed."""
        return self.sound and self.utility is not False

    @property
    def failure(self) -> str | None:
        """Why the task failed, in a sentence; `None` if it passed."""
        if self.ok:
            return None
        if self.tape_misses:
            more = len(self.tape_misses) - 1
            return f"{self.tape_misses[0]}{f' (and {more} more)' if more else ''}"
        if self.unanswered:
            first, more = self.unanswered[0], len(self.unanswered) - 1
            return f"{first.why or f'nothing answered {first.tool}'}{f' (and {more} more)' if more else ''}"
        if self.forbidden:
            return f"{self.forbidden} calls were about to run a forbidden tool"
        if self.reason in ("timeout", "crash"):
            return self.error
        if self.reason != "done":
            return f"the run ended with reason {self.reason!r}{f': {self.error}' if self.error else ''}"
        missed = [check.failure for check in self.checks]
        return "; ".join(filter(None, missed)) or "the suite's own check failed"


def attempt_score(result: TaskResult, *, replays: bool) -> float | None:
    """Return the score of an attempt, as statistics count it.

    An attempt that broke, or whose calls were not all answered, scores 0 whatever its checks say.

    Args:
        result: The attempt.
        replays: Whether a recording judged the run.

    Returns:
        The score, from 0 to 1; `None` if nothing judged the attempt.
    """
    if not result.sound:
        return 0.0
    if result.score is not None:
        return clamp_score(result.score)
    if result.utility is not None:
        return float(result.utility)
    return 1.0 if replays and result.mocked else None


def clamp_score(score: float) -> float:
    """Return a score that is from 0 to 1: checks of somebody's own may give anything, and rounding exceeds 1."""
    return score if 0 <= score <= 1 else float(score > 1)


def verdicts_of(row: TaskResult) -> list[EvaluationResult]:
    """Return the verdicts on a task for telemetry: whether it passed, and one for each check.

    Args:
        row: The result of the task. A task that nothing judged has no verdict.
    """
    if row.sound and row.utility is None:
        return []
    passed = EvaluationResult(
        name="passed", score=float(row.ok), label="pass" if row.ok else "fail", explanation=row.failure or ""
    )
    return [
        passed,
        *(
            EvaluationResult(
                name=check.metric,
                score=check.score,
                label="pass" if check.passed else "fail",
                explanation=check.why,
                check=check.name if check.name != check.metric else "",
            )
            for check in row.checks
            if check.judged
        ),
    ]


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sums over the tasks of a run.

    Attributes:
        tasks: Tasks that ran.
        useful: Tasks that passed the suite's own check.
        checked: Tasks that were checked.
        steps: Steps.
        tool_calls: Tool calls.
        mocked: Tool calls that a hook answered.
        failed: Tool calls that failed.
        tools_run: Tool calls that reached a real tool.
        forbidden: Tool calls that would have reached a forbidden one.
        hook_executions: Handler runs.
        hook_time_ms: Time spent in them.
        duration_ms: How long the whole run took.
        judge_usage: Tokens and cost of the model calls of checks.
        user_usage: Tokens and cost of the model calls of simulated users.
        replayed_calls: Model calls that tapes answered.
        replayed_usage: Tokens and cost that nobody had to pay again for that.
        unpriced_models: Names of the models without a known price, whose costs are in none of the figures.
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
    judge_usage: Usage = Usage()
    user_usage: Usage = Usage()
    replayed_calls: int = 0
    replayed_usage: Usage = Usage()
    unpriced_models: list[str] = []


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """One run of a list of tasks.

    Attributes:
        mode: The mode of the run, which says who answered tool calls.
        results: One per task, attempt and model, in the order in which they were planned. They may lie in a file, from
            which each is read when it is needed: iterate over them, and as few times as possible.
        operations: The recorded operations of failed tasks and of some others, up to 100 in all, by id. Nothing is
            kept of the events of other tasks.
        cassettes: The cassette of each task, by task name, of a run that was recorded in memory.
        duration_ms: How long it took.
        seed: The seed of the run's faults.
        coverage: The tool coverage of each suite.
        not_run: Names of the tasks of which a planned run is missing, each once.
        provenance: When, with which versions and by which command it was made.
        repeat: How often each task was to run.
        models: The models with which each task was to run; empty if the suite's own model answered.
        stopped: The reason for which tasks did not run; empty if all did.
        resumed: When and by which command the run was continued, for each time.
    """

    mode: Mode
    results: Sequence[TaskResult]
    operations: Mapping[str, RecordedOperation]
    cassettes: Mapping[str, Cassette]
    duration_ms: float
    seed: int = 0
    coverage: list[Coverage] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    provenance: Provenance = field(default_factory=Provenance)
    repeat: int = 1
    models: list[str] = field(default_factory=list)
    stopped: str = ""
    resumed: list[Provenance] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every task ran and passed."""
        return not self.not_run and self._tally.all_passed

    @property
    def not_judged(self) -> list[str]:
        """Names of the tasks that ran well but have neither checks nor expected calls, each once.

        In a replay the recording judges: a call that it does not have fails its task.
        """
        return list(self._tally.not_judged)

    @property
    def judged(self) -> bool:
        """Whether any task was judged."""
        return self._tally.judged

    @property
    def faults(self) -> list[CallRow]:
        """The calls that a fault struck, in the order of the tasks."""
        return self._tally.faults

    @property
    def faults_by_tool(self) -> dict[tuple[str, str], list[CallRow]]:
        """The calls that each fault struck, by the fault's name and the tool."""
        found: dict[tuple[str, str], list[CallRow]] = {}
        for call in self.faults:
            for name in (call.fault or "").split(","):
                found.setdefault((name, call.tool), []).append(call)
        return found

    @property
    def totals(self) -> Totals:
        """Sums over the tasks."""
        return Totals(**self._tally.sums, duration_ms=self.duration_ms)

    @cached_property
    def _tally(self) -> RunTally:
        return RunTally(self.results, replays=self.mode in REPLAYS)


SUMMED = (
    "steps",
    "tool_calls",
    "mocked",
    "failed",
    "tools_run",
    "forbidden",
    "hook_executions",
    "hook_time_ms",
    "replayed_calls",
)
"""The figures of tasks that the totals add up."""


class RunTally:
    """The sums over the results of a run that its properties need, made in one pass.

    Args:
        results: The results.
        replays: Whether the recording judges a task without checks.

    Attributes:
        all_passed: Whether every task passed.
        judged: Whether any task was judged.
        not_judged: Names of tasks that ran well and that nothing judged.
        faults: The calls that a fault struck.
        sums: The fields of `Totals`, except for the duration.
    """

    def __init__(self, results: Iterable[TaskResult], *, replays: bool) -> None:
        self.all_passed = True
        self.judged = False
        self.not_judged: dict[str, None] = {}
        self.faults: list[CallRow] = []
        self.sums: dict[str, Any] = {"tasks": 0, "useful": 0, "checked": 0, **dict.fromkeys(SUMMED, 0)}
        self.sums |= {"judge_usage": Usage(), "user_usage": Usage()}
        self.sums |= {"replayed_usage": Usage(), "unpriced_models": []}
        for result in results:
            self.all_passed = self.all_passed and result.ok
            if result.sound and result.utility is None and not (replays and result.mocked):
                self.not_judged[result.name] = None
            else:
                self.judged = True
            self.faults += [call for call in result.calls if call.fault]
            self.sums["tasks"] += 1
            self.sums["judge_usage"] += result.judge_usage
            self.sums["user_usage"] += result.user_usage
            self.sums["replayed_usage"] += result.replayed_usage
            unpriced: list[str] = self.sums["unpriced_models"]
            unpriced += [name for name in result.unpriced_models if name not in unpriced]
            self.sums["useful"] += result.utility is True
            self.sums["checked"] += result.utility is not None
            for name in SUMMED:
                self.sums[name] += getattr(result, name)


VARYING_FIELDS = ("operationId", "durationMs", "hookTimeMs", "timeline", "turns[].operationId")
"""The fields of a result that differ between two runs of a deterministic task: ids of operations, times and durations.

The names are those in JSON; `turns[].operationId` is a field of every turn of a conversation.
"""


def stable_fields(result: TaskResult) -> dict[str, Any]:
    """Return a result as JSON, without `VARYING_FIELDS`.

    These are equal for a task that ran in one go, in a run that was resumed, and in any number of worker processes.
    """
    found: dict[str, Any] = msgspec.to_builtins(result, enc_hook=repr)
    for path in VARYING_FIELDS:
        owner, _, name = path.rpartition("[].")
        for each in found[owner] if owner else [found]:
            del each[name]
    return found


class Difference(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One way in which the replay of a task differs from the recorded run.

    Attributes:
        task: The task with its suite.
        what: The thing that differs.
        real: The value with real tools.
        replayed: The value in the replay.
    """

    task: str
    what: Literal["tool result", "output", "trajectory", "reason", "unanswered call", "missing task"]
    real: str
    replayed: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The comparison of a replay with the run that it replays.

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
        """Whether both runs gave the same results."""
        return not self.differences


def compare(real: SuiteRun, replayed: SuiteRun) -> Comparison:
    """Compare the tool results, answers and trajectories of two runs, byte for byte."""
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
