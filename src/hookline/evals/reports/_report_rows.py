"""The tasks of the HTML report as data: a small row of each, and its detail, packed until somebody opens it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from hookline.evals._canonical import canonical
from hookline.evals._costs import sum_costs
from hookline.evals.running import (
    REPLAYS,
    CheckResult,
    Comparison,
    Difference,
    Mode,
    SuiteRun,
    TaskResult,
    Timeline,
    TimelineBar,
)
from hookline.evals.trajectories import CallRow

__all__ = ["Chunk", "ReportRow", "RowResult", "TaskIndex", "row_chunks", "shorten"]

CHUNK_TASKS = 25
"""Tasks whose details are packed together: fewer pack worse, more take longer to open."""

LEAN_FROM = 1_000
"""Results from which on passed ones have no hooks in their waterfalls, so that a page of 10,000 can be opened."""

TEXT_CHARACTERS = 1_500
"""The part of an argument, a result or a reason that is shown, so that a page of hundreds of tasks stays readable."""

PROMPT_CHARACTERS = 160
"""The part of a prompt and of a reason that a row has."""

ENDS = {
    "max_turns": "It ended after the largest number of turns.",
    "phrase": "It ended when the agent said a phrase.",
    "check": "It ended when a check passed.",
    "user": "It ended when the user was done.",
    "reason": "It ended because the run of a turn did not end well.",
}
"""Why a conversation ended, in words; of one whose scripted turns were all said there is nothing to say."""

CallKey = tuple[str, int]
"""A tool and the number of the call."""

RowResult = Literal["passed", "failed", "flaky", "differs", "not judged"]


class CallDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A tool call in the detail of a task."""

    tool: str
    outcome: str
    success: bool
    args: str = ""
    result: str = ""
    by: str | None = None
    rule: str | None = None
    fault: str | None = None
    cassette: str | None = None
    recording: str | None = None
    latency_ms: float = 0.0
    stale: str = ""


class TurnDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A turn of a conversation in the detail of a task."""

    user: str
    output: str = ""


class BarDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A bar in the waterfall of a task; `call` is the place of a tool call in the calls of the result."""

    kind: str
    label: str
    start: float
    duration: float
    status: str
    note: str
    call: int | None = None


class TimelineDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The waterfall of a task, in milliseconds."""

    duration: float
    bars: list[BarDetail]
    left_out: int


class ResultDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One result in the detail of a task: of one run, model and attempt."""

    mode: Mode
    model: str
    attempt: int
    attempts: int
    result: RowResult
    why: str
    steps: int
    tool_calls: int
    mocked: int
    failed: int
    forbidden: int
    score: float | None
    cost: float | None
    tokens: tuple[int, int]
    ms: float
    hooks: int
    hook_ms: float
    checks: list[CheckResult]
    other_cost: float
    turns: list[TurnDetail]
    conversation_end: str
    calls: list[CallDetail]
    timeline: TimelineDetail | None
    output: str


class TaskDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The detail of a task: its prompt, its results, and the differences between two runs."""

    prompt: str
    sides: list[ResultDetail]
    differences: list[Difference]


class ReportRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A row of the page: a task with one model. Figures are those of the first run, as means of its attempts.

    Attributes:
        suite: The suite.
        task: The name of the task in its suite.
        model: The model that was chosen; empty if the suite's own answered.
        prompt: The beginning of the prompt.
        result: How the task ended.
        why: Why it failed, in one line; empty if it passed.
        attempts: The number of attempts.
        passed: The number of those that passed.
        score: The score, from 0 to 1.
        calls: Tool calls.
        cost: US dollars.
        tokens: Tokens that were read and written.
        ms: Milliseconds.
        faults: Calls that a fault struck.
        tags: The tags of the task.
        tools: The names of the tools that were called, to be found by.
        detail: The number of the chunk with the detail, and the place there.
    """

    suite: str
    task: str
    model: str
    prompt: str
    result: RowResult
    why: str
    attempts: int
    passed: int
    score: float | None
    calls: float
    cost: float | None
    tokens: float
    ms: float
    faults: int
    tags: list[str]
    tools: str
    detail: tuple[int, int]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of some tasks, and their details: deflated JSON as base64."""

    number: int
    rows: list[ReportRow]
    packed: str


class TaskIndex:
    """The places of each task's results in the runs, without the results themselves.

    Args:
        runs: The runs.
        comparison: The comparison of two runs.

    Attributes:
        suites: The suites, in their order.
        models: The models, in their order; `""` stands for the suites' own.
        tags: The tags, in alphabetical order.
        failed: The number of tasks that did not pass.
    """

    def __init__(self, runs: Sequence[SuiteRun], comparison: Comparison | None) -> None:
        self.runs = runs
        self.differences: dict[str, list[Difference]] = {}
        for difference in comparison.differences if comparison else ():
            self.differences.setdefault(difference.task, []).append(difference)
        self._places: dict[tuple[str, str], list[tuple[int, int]]] = {}
        bad: set[tuple[str, str]] = set()
        suites: dict[str, None] = {}
        models: dict[str, None] = {}
        tags: set[str] = set()
        self.results = 0
        for number, run in enumerate(runs):
            for place, result in enumerate(run.results):
                key = (result.name, result.model)
                self._places.setdefault(key, []).append((number, place))
                if not result.ok or result.name in self.differences:
                    bad.add(key)
                suites[result.suite] = models[result.model] = None
                tags.update(result.tags)
                self.results += 1
        self.suites, self.models, self.tags, self.failed = list(suites), list(models), sorted(tags), len(bad)
        # Tasks that did not pass come first.
        self._order = [*(key for key in self._places if key in bad), *(key for key in self._places if key not in bad)]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[list[tuple[SuiteRun, TaskResult]]]:
        """Iterate over the results of each task with one model, those of the first run first."""
        for key in self._order:
            yield [(self.runs[number], self.runs[number].results[place]) for number, place in self._places[key]]


def row_chunks(index: TaskIndex) -> Iterator[Chunk]:
    """Make the rows and the details of a page, some tasks at a time.

    Args:
        index: The tasks.
    """
    lean = index.results > LEAN_FROM
    rows: list[ReportRow] = []
    details: list[TaskDetail] = []
    number = 0
    for found in index:
        differences = index.differences.get(found[0][1].name, [])
        rows.append(_row(found, differences, (number, len(details))))
        details.append(
            TaskDetail(
                prompt=found[0][1].prompt,
                sides=[_result_detail(run, result, found, lean=lean) for run, result in found],
                differences=[
                    msgspec.structs.replace(each, real=shorten(each.real), replayed=shorten(each.replayed))
                    for each in differences
                ],
            )
        )
        if len(details) == CHUNK_TASKS:
            yield _pack(number, rows, details)
            number, rows, details = number + 1, [], []
    if details:
        yield _pack(number, rows, details)


def _pack(number: int, rows: list[ReportRow], details: list[TaskDetail]) -> Chunk:
    data = canonical(details, sort_keys=False).encode("utf-8", "backslashreplace")
    return Chunk(number=number, rows=rows, packed=base64.b64encode(zlib.compress(data, 9)).decode())


def _row(
    found: Sequence[tuple[SuiteRun, TaskResult]], differences: Sequence[Difference], detail: tuple[int, int]
) -> ReportRow:
    first = [result for run, result in found if run is found[0][0]]
    one = first[0]
    failed = [result for _, result in found if not result.ok]
    result: RowResult = "passed"
    if differences:
        result = "differs"
    elif failed:
        result = "flaky" if len(first) > 1 and any(each.ok for each in first) else "failed"
    elif not any(_is_judged(run, each) for run, each in found):
        result = "not judged"
    why = failed[0].failure or "" if failed else ""
    if differences and not why:
        why = f"The {differences[0].what} differs in the replay."
    scores = [each.score for each in first if each.score is not None]
    total = sum_costs(each.cost_usd for each in first)
    return ReportRow(
        suite=one.suite,
        task=one.task_id,
        model=one.model,
        prompt=_first_line(one.prompt),
        result=result,
        why=_first_line(why),
        attempts=len(first),
        passed=sum(each.ok for each in first),
        score=sum(scores) / len(scores) if scores else None,
        calls=_mean([each.tool_calls for each in first]),
        cost=None if total is None else total / len(first),
        tokens=_mean([each.input_tokens + each.output_tokens for each in first]),
        ms=round(_mean([each.duration_ms for each in first]), 3),
        faults=max(sum(call.fault is not None for call in each.calls) for _, each in found),
        tags=list(one.tags),
        tools=" ".join(dict.fromkeys(call.tool for _, each in found for call in each.calls)),
        detail=detail,
    )


def _result_detail(
    run: SuiteRun, result: TaskResult, found: Sequence[tuple[SuiteRun, TaskResult]], *, lean: bool
) -> ResultDetail:
    calls, places = _calls(result)
    missed = [check for check in result.checks if check.failure is not None]
    return ResultDetail(
        mode=run.mode,
        model=result.model,
        attempt=result.attempt,
        attempts=sum(other is run for other, _ in found),
        result="failed" if not result.ok else "passed" if _is_judged(run, result) else "not judged",
        # The checks say themselves what they missed.
        why="" if missed and result.sound else shorten(result.failure or ""),
        steps=result.steps,
        tool_calls=result.tool_calls,
        mocked=result.mocked,
        failed=result.failed,
        forbidden=result.forbidden,
        score=result.score if result.checks else None,
        cost=result.cost_usd,
        tokens=(result.input_tokens, result.output_tokens),
        ms=result.duration_ms,
        hooks=result.hook_executions,
        hook_ms=result.hook_time_ms,
        checks=[_check_detail(check) for check in result.checks],
        other_cost=result.judge_usage.cost_usd + result.user_usage.cost_usd,
        turns=[TurnDetail(user=shorten(turn.user), output=shorten(turn.output)) for turn in result.turns],
        conversation_end=ENDS.get(result.conversation_end, ""),
        calls=calls,
        timeline=_timeline(result.timeline, places, hooks=not (lean and result.ok)),
        output=shorten(result.output),
    )


def _check_detail(check: CheckResult) -> CheckResult:
    judgement = check.judgement
    if judgement is not None:
        verdicts = [msgspec.structs.replace(each, reason=shorten(each.reason)) for each in judgement.verdicts]
        judgement = msgspec.structs.replace(judgement, reason=shorten(judgement.reason), verdicts=verdicts)
    return msgspec.structs.replace(check, why=shorten(check.why), judgement=judgement)


def _calls(result: TaskResult) -> tuple[list[CallDetail], Mapping[CallKey, list[int]]]:
    """Return the calls of a result with what they were asked and answered, and their places by tool and number.

    In a conversation each turn counts anew, so that several calls have the same tool and number.
    """
    asked: dict[CallKey, list[tuple[str, str]]] = {}
    for _, steps in result.conversation:
        counts: dict[str, int] = {}
        for step in steps:
            answers = {each.tool_call_id: each.content for each in step.results}
            for call in step.calls:
                tool = f"{call.toolset}/{call.tool_name}"
                counts[tool] = counts.get(tool, 0) + 1
                args = json.dumps(call.args, ensure_ascii=False, default=repr)
                asked.setdefault((tool, counts[tool]), []).append((args, answers.get(call.tool_call_id, "")))
    details: list[CallDetail] = []
    places: dict[CallKey, list[int]] = {}
    for row in result.calls:
        key = (row.tool, row.call_index)
        found = asked.get(key)
        places.setdefault(key, []).append(len(details))
        details.append(_call_detail(row, *(found.pop(0) if found else ("", ""))))
    return details, places


def _call_detail(row: CallRow, args: str, result: str) -> CallDetail:
    return CallDetail(
        tool=row.tool,
        outcome=row.outcome,
        success=row.success,
        args=shorten(args),
        result=shorten(result or row.why),
        by=row.answered_by,
        rule=row.rule,
        fault=row.fault,
        cassette=row.cassette,
        recording=row.recording,
        latency_ms=row.latency_ms,
        stale=row.stale or "",
    )


def _timeline(timeline: Timeline | None, places: Mapping[CallKey, list[int]], *, hooks: bool) -> TimelineDetail | None:
    if timeline is None or not timeline.bars:
        return None
    left = {key: list(found) for key, found in places.items()}

    def take_place(bar: TimelineBar) -> int | None:
        found = left.get((bar.label, bar.call_index)) if bar.kind == "tool" else None
        return found.pop(0) if found else None

    return TimelineDetail(
        duration=timeline.duration_ms,
        bars=[
            BarDetail(
                kind=bar.kind,
                label=bar.label,
                start=bar.start_ms,
                duration=bar.duration_ms,
                status=bar.status,
                note=bar.note,
                call=take_place(bar),
            )
            for bar in timeline.bars
            if hooks or bar.kind != "hook"
        ],
        left_out=timeline.left_out + (0 if hooks else sum(bar.kind == "hook" for bar in timeline.bars)),
    )


def _is_judged(run: SuiteRun, result: TaskResult) -> bool:
    """Whether anything judged a result: a check, or the recording in a replay."""
    return result.utility is not None or run.mode in REPLAYS


def _first_line(text: str) -> str:
    line = " ".join(text[: 4 * PROMPT_CHARACTERS].split())
    return line if len(line) <= PROMPT_CHARACTERS else f"{line[: PROMPT_CHARACTERS - 1]}…"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def shorten(text: str) -> str:
    """Cut a long text to what a report shows of it, and say how much is missing."""
    if len(text) <= TEXT_CHARACTERS:
        return text
    return f"{text[:TEXT_CHARACTERS]}\n… {len(text) - TEXT_CHARACTERS:,} characters more"
