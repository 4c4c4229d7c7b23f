"""Keeping what happened in operations: their events, and every handler run with its time."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import msgspec

from hookline.calls import ToolCalling
from hookline.evals._canonical import canonical
from hookline.events import (
    EVENTS,
    AfterStep,
    AfterToolCall,
    BeforeToolCall,
    Event,
    OnComplete,
    OnToolCallError,
    ToolOutcome,
)
from hookline.hooks import Hooks
from hookline.signals import HookExecution, hook_executed

__all__ = ["EventRecorder", "RecordedOperation", "TimedExecution", "Trajectory", "TrajectoryStep"]


class TimedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A handler run, and when it ended.

    Attributes:
        execution: The record of the run.
        ended_unix_nano: When it ended, in nanoseconds since 1970.
    """

    execution: HookExecution
    ended_unix_nano: int


class TrajectoryStep(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent did in one step.

    Attributes:
        content: What the model said.
        calls: What it asked for.
        results: What it was told.
    """

    content: str
    calls: list[ToolCalling]
    results: list[ToolOutcome]


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent did from its first step to its answer, without anything that differs between equal runs.

    Attributes:
        steps: Its steps.
        output: Its final answer.
        reason: Why the run ended.
    """

    steps: list[TrajectoryStep]
    output: str
    reason: str

    def encode(self) -> bytes:
        """The trajectory as canonical JSON: equal runs give equal bytes."""
        return canonical(self).encode()


class RecordedOperation:
    """The events of one operation and the handler runs that they caused, in order.

    Attributes:
        operation_id: The run.
        events: What happened.
        executions: Every handler run, those of the recorder included.
    """

    def __init__(self, operation_id: str) -> None:
        self.operation_id = operation_id
        self.events: list[Event] = []
        self.executions: list[TimedExecution] = []

    def __repr__(self) -> str:
        return f"RecordedOperation({self.operation_id!r}, events={len(self.events)}, executions={len(self.executions)})"

    @property
    def hook_time_ms(self) -> float:
        """Time spent in handlers, all together."""
        return sum(each.execution.duration_ms for each in self.executions)

    @property
    def calls(self) -> list[BeforeToolCall]:
        """The tool calls, as they were about to happen."""
        return [event for event in self.events if isinstance(event, BeforeToolCall)]

    @property
    def answers(self) -> list[AfterToolCall | OnToolCallError]:
        """What the tool calls came to."""
        return [event for event in self.events if isinstance(event, AfterToolCall | OnToolCallError)]

    @property
    def mocked(self) -> int:
        """How many tool calls a hook answered."""
        return sum(event.mocked for event in self.answers)

    @property
    def failed(self) -> int:
        """How many tool calls gave a failed result or raised."""
        return sum(isinstance(event, OnToolCallError) or not event.success for event in self.answers)

    @property
    def trajectory(self) -> Trajectory:
        """What the agent did."""
        steps = [
            TrajectoryStep(content=event.content, calls=event.tools_calling, results=event.tools_result)
            for event in self.events
            if isinstance(event, AfterStep)
        ]
        ends = [event for event in self.events if isinstance(event, OnComplete)]
        end = ends[-1] if ends else None
        return Trajectory(
            steps=steps, output=end.last_assistant_content if end else "", reason=end.reason if end else ""
        )


class EventRecorder:
    """Observers on all sixteen events that keep what they see, and the time of every handler run.

    Give `recorder.hooks` to any number of runs. Handler runs are kept inside of `with recorder:`, those of other
    hooks too.

    Args:
        id: Name of the bundle; part of its hooks' ids.
    """

    def __init__(self, id: str = "recorder") -> None:  # noqa: A002
        self.hooks = Hooks(id)
        self._operations: dict[str, RecordedOperation] = {}
        for kind in EVENTS.values():
            self.hooks.on(kind, id=f"{id}.{kind.hook_type}")(self._keep)

    def __enter__(self) -> Self:
        hook_executed.connect(self._executed, weak=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hook_executed.disconnect(self._executed)

    @property
    def operations(self) -> dict[str, RecordedOperation]:
        """The operations of which an event was seen, by id."""
        return {key: operation for key, operation in self._operations.items() if operation.events}

    def __getitem__(self, operation_id: str) -> RecordedOperation:
        return self._operations[operation_id]

    def _of(self, operation_id: str) -> RecordedOperation:
        found = self._operations.get(operation_id)
        if found is None:
            found = self._operations[operation_id] = RecordedOperation(operation_id)
        return found

    def _keep(self, event: Event) -> None:
        self._of(event.operation_id).events.append(event)

    def _executed(self, sender: Any, *, execution: HookExecution) -> None:
        # A hook that stands before the recorder's own may be the first that is heard of an operation.
        timed = TimedExecution(execution=execution, ended_unix_nano=time.time_ns())
        self._of(execution.operation_id).executions.append(timed)
