"""Record the events of operations and every handler run, and query or wait for events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import anyio
import msgspec

from hookline._checks import tool_test
from hookline.errors import HookUsageError
from hookline.evals.errors import EventWaitError, NotOneOperationError, UnrecordedOperationError, UnseenEventError
from hookline.evals.matching import format_value, path_of
from hookline.evals.mocking import (
    assert_called,
    assert_called_before,
    assert_called_once_with,
    assert_no_unmocked,
    assert_not_called,
)
from hookline.evals.trajectories._trajectory import Trajectory, TrajectoryStep
from hookline.events import (
    EVENTS,
    TOOL_EVENTS,
    AfterStep,
    AfterToolCall,
    BeforeToolCall,
    Event,
    OnComplete,
    OnToolCallError,
)
from hookline.hooks import Hooks
from hookline.signals import HookExecution, hook_executed

__all__ = [
    "EventQuery",
    "EventRecorder",
    "EventWait",
    "RecordedOperation",
    "TimedExecution",
    "Trajectory",
    "TrajectoryStep",
    "event_lines",
]

E = TypeVar("E", bound=Event)

SHOWN_EVENTS = 30
"""How many events a message lists."""


class EventQuery(Generic[E]):
    """A query for events by class, tool, operation and a condition.

    Args:
        kind: One of the sixteen event classes.
        tool: A path, a bare name or a glob, for the classes that are about a tool.
        where: A further condition, a function of the event.
        operation_id: The operation; `None` for any.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    def __init__(
        self,
        kind: type[E],
        *,
        tool: str | None = None,
        where: Callable[[E], object] | None = None,
        operation_id: str | None = None,
    ) -> None:
        if kind not in EVENTS.values():
            raise HookUsageError(f"Events are asked for by their class, as AfterToolCall; got {format_value(kind)}.")
        if tool is not None and kind not in TOOL_EVENTS:
            raise HookUsageError(f"{kind.__name__} is not about a tool, so `tool={tool!r}` can fit none.")
        self.kind, self.where, self.operation_id = kind, where, operation_id
        self._tool = tool
        self._fits = None if tool is None else tool_test(tool)

    def __str__(self) -> str:
        parts = [self.kind.__name__]
        parts += [f"of {self._tool}"] if self._tool is not None else []
        parts += [f"of operation {self.operation_id!r}"] if self.operation_id is not None else []
        parts += [f"where {getattr(self.where, '__name__', repr(self.where))}"] if self.where is not None else []
        return " ".join(parts)

    def takes(self, event: Event) -> bool:
        """Whether an event matches the query."""
        if type(event) is not self.kind or self.operation_id not in (None, event.operation_id):
            return False
        if self._fits is not None and not self._fits(path_of(cast(BeforeToolCall, event))):
            return False
        return self.where is None or bool(self.where(cast(E, event)))

    def of(self, events: Sequence[Event]) -> list[E]:
        """Select the events that match, in their order."""
        return [cast(E, event) for event in events if self.takes(event)]


class EventWait(Generic[E]):
    """A wait for the n-th event of a query.

    Args:
        query: The query for the events.
        count: The number of events to wait for.
    """

    def __init__(self, query: EventQuery[E], count: int) -> None:
        self.query, self.count = query, count
        self.met = 0
        self.found: E | None = None
        self.failure: Exception | None = None
        """The error of the query's `where`. It is raised by the wait, not in the run in which the event happened."""
        self.over = anyio.Event()

    def see(self, event: Event) -> None:
        """Check a new event, and end the wait if it is the awaited one."""
        if self.over.is_set():
            return
        try:
            if not self.query.takes(event):
                return
        except Exception as error:
            self.failure = error
            self.over.set()
            return
        self.met += 1
        if self.met == self.count:
            self.found = cast(E, event)
            self.over.set()


def event_lines(events: Sequence[Event]) -> list[str]:
    """Describe events, one line each: operation, event, and tool. Of very many, only the last are listed."""
    lines = [_line(event) for event in events[-SHOWN_EVENTS:]]
    left_out = len(events) - len(lines)
    return [f"… {left_out:,} earlier events", *lines] if left_out else lines


def _line(event: Event) -> str:
    line = f"{event.operation_id}  {type(event).__name__}"
    if isinstance(event, BeforeToolCall | AfterToolCall | OnToolCallError):
        return f"{line} of {path_of(event)} {format_value(event.args)}"
    return line


class TimedExecution(msgspec.Struct, frozen=True, kw_only=True):
    """A handler run with the time at which it ended.

    Attributes:
        execution: The record of the run.
        ended_unix_nano: When it ended, in nanoseconds since 1970.
    """

    execution: HookExecution
    ended_unix_nano: int

    @property
    def started_unix_nano(self) -> int:
        """When the handler began, in nanoseconds since 1970."""
        # Records made by other tools may lack the start of the handler.
        return self.execution.time_unix_nano or self.ended_unix_nano - round(self.execution.duration_ms * 1e6)


class RecordedOperation:
    """The recorded events of one operation, or of all turns of a conversation, with the handler runs that they caused.

    Tools are named by `toolset/tool_name`, by a bare name (of any toolset), or by a glob over the path.

    Attributes:
        operation_id: The operation; of a conversation, that of the first turn.
        events: The events of the operation, in order.
        executions: Every handler run, those of the recorder included.
    """

    def __init__(self, operation_id: str) -> None:
        self.operation_id = operation_id
        self.events: list[Event] = []
        self.executions: list[TimedExecution] = []

    @classmethod
    def of_conversation(cls, turns: Sequence[RecordedOperation]) -> RecordedOperation:
        """Join the operations of the turns of a conversation, in their order.

        Args:
            turns: The operation of each turn; one alone is returned as it is.
        """
        if len(turns) == 1:
            return turns[0]
        joined = cls(turns[0].operation_id)
        joined.events = [event for turn in turns for event in turn.events]
        joined.executions = [execution for turn in turns for execution in turn.executions]
        return joined

    def __repr__(self) -> str:
        return f"RecordedOperation({self.operation_id!r}, events={len(self.events)}, executions={len(self.executions)})"

    @property
    def parent_operation_id(self) -> str | None:
        """The operation that called this one as a sub-agent."""
        return self.events[0].parent_operation_id if self.events else None

    @property
    def hook_time_ms(self) -> float:
        """Time spent in handlers, in milliseconds."""
        return sum(each.execution.duration_ms for each in self.executions)

    @property
    def calls(self) -> list[BeforeToolCall]:
        """The events before each tool call."""
        return [event for event in self.events if isinstance(event, BeforeToolCall)]

    @property
    def answers(self) -> list[AfterToolCall | OnToolCallError]:
        """The events after each tool call: its result or its error."""
        return [event for event in self.events if isinstance(event, AfterToolCall | OnToolCallError)]

    @property
    def mocked(self) -> int:
        """Number of tool calls that a hook answered."""
        return sum(event.mocked for event in self.answers)

    @property
    def failed(self) -> int:
        """Number of tool calls that returned a failed result or raised."""
        return sum(isinstance(event, OnToolCallError) or not event.success for event in self.answers)

    @property
    def trajectory(self) -> Trajectory:
        """The agent's steps, calls and final answer."""
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

    def select(self, kind: type[E], *, tool: str | None = None, where: Callable[[E], object] | None = None) -> list[E]:
        """Select the events of a class, in their order.

        Args:
            kind: One of the sixteen event classes.
            tool: Select only events of this tool. For classes of tool events.
            where: Select only events for which this function returns a true value.

        Raises:
            HookUsageError: If `kind` is not an event class, or has no tool although `tool` is given.
        """
        return EventQuery(kind, tool=tool, where=where).of(self.events)

    def first(self, kind: type[E], *, tool: str | None = None, where: Callable[[E], object] | None = None) -> E:
        """Return the first event that `select` finds.

        Raises:
            UnseenEventError: If there is none. The message lists the events.
            HookUsageError: If an argument is invalid.
        """
        return self._select_some(EventQuery(kind, tool=tool, where=where))[0]

    def last(self, kind: type[E], *, tool: str | None = None, where: Callable[[E], object] | None = None) -> E:
        """Return the last event that `select` finds.

        Raises:
            UnseenEventError: If there is none. The message lists the events.
            HookUsageError: If an argument is invalid.
        """
        return self._select_some(EventQuery(kind, tool=tool, where=where))[-1]

    def assert_called(self, tool: str, args: object = None, times: int | None = None) -> None:
        """Fail unless a tool was called.

        Args:
            tool: The tool.
            args: All arguments of the calls that count, or any object that can be compared with a dict.
            times: How often exactly; `None` for at least once.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
            HookUsageError: If an argument is invalid.
        """
        __tracebackhide__ = True
        assert_called(self.calls, tool, args, times, note=self._note())

    def assert_not_called(self, tool: str) -> None:
        """Fail if a tool was called.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assert_not_called(self.calls, tool, note=self._note())

    def assert_called_once_with(self, tool: str, args: object) -> None:
        """Fail unless a tool was called exactly once, and with these arguments.

        Args:
            tool: The tool.
            args: All arguments, or any object that can be compared with a dict.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assert_called_once_with(self.calls, tool, args, note=self._note())

    def assert_called_before(self, first: str, second: str) -> None:
        """Fail unless two tools were called, the first call of one before the first call of the other.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        assert_called_before(self.calls, first, second, note=self._note())

    def assert_no_unmocked(self) -> None:
        """Fail if a tool call was not answered by a hook, or was refused because nothing answered it.

        Raises:
            AssertionError: If the assertion fails. The message lists all calls.
        """
        __tracebackhide__ = True
        answers = self._answer_of()

        def mocked(call: BeforeToolCall) -> bool:
            answer = answers.get(_key(call))
            return answer is not None and answer.mocked and not answer.metadata.get("unmocked")

        assert_no_unmocked(self.calls, mocked, note=self._note())

    def _select_some(self, query: EventQuery[E]) -> list[E]:
        found = query.of(self.events)
        if not found:
            raise UnseenEventError(f"{query} in operation {self.operation_id!r}", event_lines(self.events))
        return found

    def _answer_of(self) -> dict[CallKey, AfterToolCall | OnToolCallError]:
        return {_key(answer): answer for answer in self.answers}

    def _note(self) -> Callable[[BeforeToolCall], str]:
        answers = self._answer_of()

        def note(call: BeforeToolCall) -> str:
            answer = answers.get(_key(call))
            return _outcome(answer) if answer else "no answer"

        return note


class EventRecorder:
    """Records all sixteen events of the runs that it is attached to, and the time of every handler run.

    Pass `recorder.hooks` to any number of runs. Handler runs are recorded inside `with recorder:`, those of other
    hooks too.

    Args:
        id: Name of the bundle; part of its hooks' ids.
        inherit: Whether the operations of sub-agents are recorded too.
    """

    def __init__(self, id: str = "recorder", *, inherit: bool = False) -> None:  # noqa: A002
        self.hooks = Hooks(id, inherit=inherit)
        self._operations: dict[str, RecordedOperation] = {}
        self._events: list[Event] = []
        self._waits: list[EventWait[Any]] = []
        for kind in EVENTS.values():
            self.hooks.on(kind, id=f"{id}.{kind.hook_type}")(self._record_event)

    def __enter__(self) -> Self:
        hook_executed.connect(self._record_execution, weak=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hook_executed.disconnect(self._record_execution)

    @property
    def operations(self) -> dict[str, RecordedOperation]:
        """The operations with at least one recorded event, by id."""
        return {key: operation for key, operation in self._operations.items() if operation.events}

    @property
    def events(self) -> list[Event]:
        """The events of all operations, in the order in which they happened."""
        return list(self._events)

    @property
    def only(self) -> RecordedOperation:
        """The one operation that was recorded. Operations of its sub-agents are not counted.

        Raises:
            NotOneOperationError: If none or several were recorded. The message lists them.
        """
        operations = self.operations
        roots = [each for each in operations.values() if each.parent_operation_id not in operations]
        if len(roots) != 1:
            raise NotOneOperationError([each.operation_id for each in roots])
        return roots[0]

    def of(self, operation_id: str) -> RecordedOperation:
        """Return the recorded operation with an id.

        Raises:
            UnrecordedOperationError: If nothing was recorded of it. The message lists the recorded operations.
        """
        found = self._operations.get(operation_id)
        if found is None:
            raise UnrecordedOperationError(operation_id, list(self.operations))
        return found

    def __getitem__(self, operation_id: str) -> RecordedOperation:
        return self.of(operation_id)

    def clear(self) -> None:
        """Forget everything recorded so far. Calls of `wait_for` keep waiting."""
        self._operations.clear()
        self._events.clear()

    def forget(self, operation_id: str) -> None:
        """Forget what was recorded of one operation. Calls of `wait_for` keep waiting."""
        if self._operations.pop(operation_id, None) is not None:
            self._events = [event for event in self._events if event.operation_id != operation_id]

    async def wait_for(
        self,
        kind: type[E],
        *,
        operation_id: str | None = None,
        tool: str | None = None,
        where: Callable[[E], object] | None = None,
        count: int = 1,
        timeout: float | None = 5.0,
    ) -> E:
        """Wait until an event has happened. Returns at once if it already has.

        Call it on the event loop on which the operation runs.

        Args:
            kind: One of the sixteen event classes.
            operation_id: Wait only for events of this operation.
            tool: Wait only for events of this tool. For classes of tool events.
            where: Wait only for events for which this function returns a true value.
            count: The number of events to wait for, from 1.
            timeout: Seconds to wait at most; `None` to wait forever.

        Returns:
            The `count`-th of these events.

        Raises:
            EventWaitError: If it does not happen in time. It is a `TimeoutError`, and lists the events that did happen.
            HookUsageError: If an argument is invalid.
        """
        _check_wait(count, timeout)
        wait = EventWait(EventQuery(kind, tool=tool, where=where, operation_id=operation_id), count)
        for event in self._events:
            wait.see(event)
        if not wait.over.is_set():
            self._waits.append(wait)
            try:
                with anyio.move_on_after(timeout):
                    await wait.over.wait()
            finally:
                self._waits.remove(wait)
        if wait.failure is not None:
            raise wait.failure
        if wait.found is None:
            raise EventWaitError(str(wait.query), timeout or math.inf, count, wait.met, event_lines(self._events))
        return wait.found

    def _of(self, operation_id: str) -> RecordedOperation:
        found = self._operations.get(operation_id)
        if found is None:
            found = self._operations[operation_id] = RecordedOperation(operation_id)
        return found

    def _record_event(self, event: Event) -> None:
        self._of(event.operation_id).events.append(event)
        self._events.append(event)
        for wait in self._waits:
            wait.see(event)

    def _record_execution(self, sender: Any, *, execution: HookExecution) -> None:
        # Another hook may run before the recorder's own sees the first event of the operation.
        timed = TimedExecution(execution=execution, ended_unix_nano=time.time_ns())
        self._of(execution.operation_id).executions.append(timed)


CallKey = tuple[str, str, int]
"""An operation, a tool's path and the call's index, which name one call."""


def _key(event: BeforeToolCall | AfterToolCall | OnToolCallError) -> CallKey:
    return event.operation_id, path_of(event), event.call_index


def _outcome(answer: AfterToolCall | OnToolCallError) -> str:
    origin = [f"{key} {answer.metadata[key]}" for key in ("rule", "fault", "cassette") if answer.metadata.get(key)]
    mocked = f"mocked by {', '.join(origin) or answer.answered_by or 'a hook'}"
    words = [mocked] if answer.mocked else ["real", *origin]
    if isinstance(answer, OnToolCallError):
        words.append(f"raised {answer.error_type}")
    elif not answer.success:
        words.append("refused, since nothing answered it" if answer.metadata.get("unmocked") else "failed")
    return ", ".join(words)


def _check_wait(count: int, timeout: float | None) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise HookUsageError(f"`count` says which of the events is waited for, from 1; got {count!r}.")
    if timeout is not None and not timeout >= 0:
        raise HookUsageError(f"`timeout` is a number of seconds from 0, or None to wait forever; got {timeout!r}.")
