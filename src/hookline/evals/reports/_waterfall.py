"""A recorded operation as a waterfall: what lay where in time, in the order in which a person reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from hookline.evals.trajectories import CallRow, RecordedOperation, TimedExecution
from hookline.events import AfterStep, AfterToolCall, BeforeStep, BeforeToolCall, OnToolCallError

__all__ = ["Span", "StepSpan", "ToolSpan", "Waterfall", "short", "waterfall"]

TEXT_CHARACTERS = 1_500
"""How much of a tool's arguments and result is shown, so that a report of hundreds of operations stays readable."""

CallKey = tuple[str, int]
"""A tool's path and the call's index: one call of an operation."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of time inside of an operation.

    Attributes:
        label: What it was.
        left: Where it starts, as a share of the operation, 0 to 100.
        width: How long it is, as such a share.
        duration_ms: How long it is.
        status: How it ended; for a hook, its record's status.
        note: What else there is to say: a hook's event, an error.
    """

    label: str
    left: float
    width: float
    duration_ms: float
    status: str = "ok"
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolSpan(Span):
    """A tool call.

    Attributes:
        mocked: Whether a hook answered it.
        answered_by: Id of that hook.
        source: What the answer said of its origin: the recording.
        refused: Whether nothing could answer it, and the tool was not run.
        rule: Name of the rule that answered, or let it through.
        fault: Name of the fault that struck.
        cassette: Name of the cassette that answered.
        latency_ms: How long it was made to take, on the run's own clock.
        args: The arguments, as JSON.
        result: What the tool, or the hook, answered.
    """

    mocked: bool
    answered_by: str
    source: str
    refused: bool
    rule: str
    fault: str
    cassette: str
    latency_ms: float
    args: str
    result: str


@dataclass(frozen=True, kw_only=True)
class StepSpan(Span):
    """A step with what happened in it.

    Attributes:
        content: What the model said.
        tools: Its tool calls.
        hooks: The hook executions between its start and the next step's.
        hook_time_ms: Time spent in them.
    """

    content: str
    tools: list[ToolSpan]
    hooks: list[Span]
    hook_time_ms: float


@dataclass(kw_only=True)
class Waterfall:
    """One operation.

    Attributes:
        operation_id: The run.
        duration_ms: From its first event to its last hook execution.
        steps: Its steps.
        ending: The hook executions of its end.
        ending_time_ms: Time spent in those.
    """

    operation_id: str
    duration_ms: float
    steps: list[StepSpan] = field(default_factory=list)
    ending: list[Span] = field(default_factory=list)
    ending_time_ms: float = 0.0

    @property
    def tools(self) -> list[ToolSpan]:
        """All tool calls."""
        return [tool for step in self.steps for tool in step.tools]

    @property
    def scale(self) -> list[tuple[int, float]]:
        """The labels of the time axis: at which share of it, and how many milliseconds that is."""
        return [(share, self.duration_ms * share / 100) for share in (0, 25, 50, 100)]


class Place(TypedDict):
    """The fields of a `Span` that say where it lies."""

    left: float
    width: float
    duration_ms: float


class Axis:
    """Turns points in time into shares of an operation."""

    def __init__(self, recorded: RecordedOperation) -> None:
        starts = [event.time_unix_nano for event in recorded.events]
        starts += [_started(timed) for timed in recorded.executions]
        ends = [event.time_unix_nano for event in recorded.events]
        ends += [timed.ended_unix_nano for timed in recorded.executions]
        self.start = min(starts, default=0)
        self.length = max(max(ends, default=0) - self.start, 1)

    def place(self, start: int, end: int) -> Place:
        """Where a span from `start` to `end` lies."""
        left = max(0.0, (start - self.start) / self.length * 100)
        width = max(0.0, (end - start) / self.length * 100)
        return {
            "left": round(min(left, 100), 2),
            "width": round(min(width, 100), 2),
            "duration_ms": max(0, end - start) / 1e6,
        }


def waterfall(recorded: RecordedOperation, calls: Sequence[CallRow] = ()) -> Waterfall:
    """Lay a recorded operation out in time.

    Args:
        recorded: The operation.
        calls: Where the answers of its tool calls came from.
    """
    rows = {(call.tool, call.call_index): call for call in calls}
    axis = Axis(recorded)
    befores = [event for event in recorded.events if isinstance(event, BeforeStep)]
    afters = {event.step_index: event for event in recorded.events if isinstance(event, AfterStep)}
    result = Waterfall(operation_id=recorded.operation_id, duration_ms=axis.length / 1e6)
    rest = list(recorded.executions)
    for position, before in enumerate(befores):
        until = befores[position + 1].time_unix_nano if position + 1 < len(befores) else None
        own = [timed for timed in rest if not _is_ending(timed) and (until is None or _started(timed) < until)]
        rest = [timed for timed in rest if timed not in own]
        after = afters.get(before.step_index)
        result.steps.append(_step(axis, recorded, rows, before, after, own))
    result.ending = [_hook(axis, timed) for timed in rest]
    result.ending_time_ms = sum(timed.execution.duration_ms for timed in rest)
    return result


def _step(
    axis: Axis,
    recorded: RecordedOperation,
    rows: Mapping[CallKey, CallRow],
    before: BeforeStep,
    after: AfterStep | None,
    executions: Sequence[TimedExecution],
) -> StepSpan:
    end = after.time_unix_nano if after else before.time_unix_nano
    return StepSpan(
        **axis.place(before.time_unix_nano, end),
        label=f"step {before.step_index}",
        note=after.step_type if after else "did not end",
        content=short(after.content) if after else "",
        tools=_tools(axis, recorded, rows, before.step_index),
        hooks=[_hook(axis, timed) for timed in executions],
        hook_time_ms=sum(timed.execution.duration_ms for timed in executions),
    )


def _tools(axis: Axis, recorded: RecordedOperation, rows: Mapping[CallKey, CallRow], step_index: int) -> list[ToolSpan]:
    answers = {event.tool_call_id: event for event in recorded.answers if event.step_index == step_index}
    return [
        _tool(axis, before, answers[before.tool_call_id], rows.get((_path(before), before.call_index)))
        for before in recorded.calls
        if before.step_index == step_index and before.tool_call_id in answers
    ]


def _tool(axis: Axis, before: BeforeToolCall, after: AfterToolCall | OnToolCallError, row: CallRow | None) -> ToolSpan:
    raised = isinstance(after, OnToolCallError)
    failed = isinstance(after, OnToolCallError) or not after.success
    return ToolSpan(
        **axis.place(before.time_unix_nano, after.time_unix_nano),
        label=_path(before),
        status="raised" if raised else "failed" if failed else "ok",
        mocked=after.mocked,
        answered_by=after.answered_by or "",
        source=str(after.metadata.get("recording") or ""),
        refused=row is not None and row.outcome == "refused",
        rule=(row.rule if row else None) or "",
        fault=(row.fault if row else None) or "",
        cassette=(row.cassette if row else None) or "",
        latency_ms=row.latency_ms if row else 0.0,
        args=short(json.dumps(before.args, ensure_ascii=False, default=repr)),
        result=short(f"{after.error_type}: {after.error}" if isinstance(after, OnToolCallError) else after.content),
    )


def _path(event: BeforeToolCall) -> str:
    return f"{event.toolset}/{event.tool_name}"


def _hook(axis: Axis, timed: TimedExecution) -> Span:
    execution = timed.execution
    return Span(
        **axis.place(_started(timed), timed.ended_unix_nano),
        label=execution.hook_id,
        status=execution.status,
        note=f"{execution.hook_type}: {execution.error}" if execution.error else execution.hook_type,
    )


def _started(timed: TimedExecution) -> int:
    return timed.started_unix_nano


def _is_ending(timed: TimedExecution) -> bool:
    return timed.execution.hook_type in ("onComplete", "onError")


def short(text: str) -> str:
    """A text as far as a report shows it."""
    if len(text) <= TEXT_CHARACTERS:
        return text
    return f"{text[:TEXT_CHARACTERS]}\n… {len(text) - TEXT_CHARACTERS:,} characters more"
