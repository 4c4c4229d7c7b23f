"""`PastCalls`: rebuild the calls of a stored operation, as hooks saw them, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hookline.calls import AgentResult, Call, StepCall, StepResult, SubAgentCall, ToolCall, ToolResult
from hookline.errors import EventDecodeError
from hookline.events import (
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    EventFields,
    HookType,
    OnToolCallError,
    PendingTool,
    decode,
)
from hookline.hooks import Kind
from hookline.store import PastEvent, PastEvents

__all__ = [
    "ALONG",
    "EMPTY_RESULTS",
    "JUDGED_KINDS",
    "CallNotRunError",
    "PastCall",
    "PastCalls",
    "PersonDecision",
    "UnreadableEvent",
    "event_types_of",
]

JUDGED_KINDS: Mapping[type[Call], frozenset[Kind]] = {
    ToolCall: frozenset({"before", "guard", "after", "around"}),
    SubAgentCall: frozenset({"before", "guard", "around"}),
    StepCall: frozenset({"before", "guard", "after", "around"}),
}
"""The kinds of interceptors for which the store has what they judge, by the class of the calls."""
EMPTY_RESULTS: Mapping[type[Call], msgspec.Struct] = {
    ToolCall: ToolResult(content=""),
    SubAgentCall: AgentResult(output=""),
    StepCall: StepResult(should_continue=True),
}
"""Stands for the results of calls for hooks that do not look at them."""
TYPES: Mapping[type[Call], tuple[HookType, ...]] = {
    ToolCall: (HookType.BEFORE_TOOL_CALL, HookType.BEFORE_HUMAN_INTERVENTION, HookType.AFTER_HUMAN_INTERVENTION),
    SubAgentCall: (HookType.BEFORE_CALL_AGENT,),
    StepCall: (HookType.BEFORE_STEP,),
}
RESULT_TYPES: Mapping[type[Call], tuple[HookType, ...]] = {
    ToolCall: (HookType.AFTER_TOOL_CALL, HookType.ON_TOOL_CALL_ERROR),
    StepCall: (HookType.AFTER_STEP,),
}
ALONG = {HookType.BEFORE_HUMAN_INTERVENTION.value: HookType.AFTER_STEP.value}
"""Where calls waited for a person, `afterStep` has the order in which the model asked for the calls of the step."""


LARGEST_STEP = 1_000
"""Calls of a step that are put in order, where an operation is read in parts; some frameworks have no steps."""
UNNUMBERED = 0
"""The index of a call that waited for a person, until the calls before it are known."""


class CallNotRunError(Exception):
    """Stands for the result of a call that did not run, or whose result is not stored: no `after` hook sees it."""


class PastCall(msgspec.Struct, kw_only=True, eq=False):
    """A call that once happened.

    Attributes:
        call: The call, with its final arguments.
        number: The number of its event in the operation, from 1.
        at: When it happened, in unix seconds.
        waited: Whether it waited for a person.
        result: Its result; `None` if it is not known.
    """

    call: Call
    number: int
    at: float
    waited: bool = False
    result: msgspec.Struct | None = None


class PersonDecision(NamedTuple):
    """A person's decision about a call that comes before it.

    Attributes:
        tool_call_id: The call.
        allowed: Whether the person approved it.
    """

    tool_call_id: str
    allowed: bool


class UnreadableEvent(NamedTuple):
    """A stored event that this version of hookline cannot read.

    Attributes:
        number: The number of the event in the operation.
        problem: Why.
    """

    number: int
    problem: str


PastItem = PastCall | PersonDecision | UnreadableEvent


def event_types_of(calls: Iterable[type[Call]], *, results: bool) -> set[str]:
    """Return the types of the events from which calls are rebuilt.

    Args:
        calls: The classes of the calls.
        results: Whether their results are needed too.
    """
    types = {each.value for call in calls for each in TYPES[call]}
    return types | ({each.value for call in calls for each in RESULT_TYPES.get(call, ())} if results else set())


class PastCalls:
    """Rebuilds the calls of one operation, in the order in which its hooks saw them.

    A call that waited for a person comes once: where the model asked for it, with the arguments that the person saw,
    which are those that run; with results, where it ran.

    Args:
        results: Whether calls are to have their results.
    """

    def __init__(self, *, results: bool) -> None:
        self._results = results
        self._items: list[PastItem] = []
        self._step_begins = 0
        self._waiting: dict[str, PastCall] = {}
        self._indices: dict[tuple[str, str], int] = {}
        self._has_waited = False
        self._may_order = False
        self._open: dict[tuple[str, int, str], PastCall] = {}
        self._step: PastCall | None = None

    def read(self, part: PastEvents) -> list[PastItem]:
        """Read events, and return what is complete, in order.

        Args:
            part: The next events of the operation.
        """
        self._may_order |= not part.is_last
        for stored in part.events:
            try:
                event = decode(stored.wire)
            except EventDecodeError as error:
                self._items.append(UnreadableEvent(stored.number, str(error)))
                continue
            if event.__class__ is BeforeToolCall:
                self._add_tool_call(event, stored)
            else:
                self._add(event, stored)
        if part.is_last and not self._may_order:  # no call waited, and the whole operation is here
            return self._items
        if part.is_last or len(self._items) - self._step_begins > LARGEST_STEP:
            self._end_step(())
        return self._take_ready(is_last=part.is_last)

    def _take_ready(self, *, is_last: bool) -> list[PastItem]:
        """Take what comes before the present step, and before the first call whose result may still come."""
        end = self._step_begins
        if self._results and not is_last:
            open_calls = (*self._open.values(), *self._waiting.values(), *([self._step] if self._step else ()))
            unfinished = {id(each) for each in open_calls}
            end = next((nth for nth, each in enumerate(self._items[:end]) if id(each) in unfinished), end)
        ready, self._items = self._items[:end], self._items[end:]
        self._step_begins -= end
        return ready

    def _add(self, event: Event, stored: PastEvent) -> None:
        match event:
            case AfterToolCall() | OnToolCallError():
                self._add_result(event)
            case BeforeHumanIntervention():
                for pending in event.pending_tools:
                    if pending.tool_call_id not in self._waiting:
                        waiting = ToolCall(**_ids_of(event), **_fields_of(pending), step_index=event.step_index)
                        self._waiting[pending.tool_call_id] = self._append(waiting, event, stored, waited=True)
            case AfterHumanIntervention() if event.tool_call_id is not None:
                if event.action != "approve":
                    self._waiting.pop(event.tool_call_id, None)
                self._items.append(PersonDecision(event.tool_call_id, event.action == "approve"))
            case BeforeCallAgent():
                call = SubAgentCall(**_ids_of(event), callee_id=event.callee_id, instruction=event.instruction)
                self._append(call, event, stored)
            case BeforeStep():
                self._end_step(())
                step = StepCall(**_ids_of(event), step_index=event.step_index)
                self._step = self._append(step, event, stored)
            case AfterStep():
                if self._step is not None:
                    self._step.result = StepResult(should_continue=event.should_continue, content=event.content)
                    self._step = None
                self._end_step([each.tool_call_id for each in event.tools_calling])

    def _add_tool_call(self, event: BeforeToolCall, stored: PastEvent) -> None:
        past = self._waiting.pop(event.tool_call_id, None)
        if past is not None and not self._results:
            return
        if past is not None:  # `after` hooks see it as it runs, in a later step
            self._step_begins -= self._items.index(past) < self._step_begins
            self._items.remove(past)
        call = ToolCall(
            operation_id=event.operation_id,
            agent_id=event.agent_id,
            user_id=event.user_id,
            tenant_id=event.tenant_id,
            parent_operation_id=event.parent_operation_id,
            tags=event.tags,
            metadata={},
            toolset=event.toolset,
            tool_name=event.tool_name,
            args=event.args,
            tool_call_id=event.tool_call_id,
            call_index=event.call_index,
            step_index=event.step_index,
        )
        past = self._append(call, event, stored, waited=past is not None)
        if self._results:
            self._open[_key_of(event)] = past

    def _append(self, call: Call, event: EventFields, stored: PastEvent, *, waited: bool = False) -> PastCall:
        past = PastCall(call=call, number=stored.number, at=event.time_unix_nano / 1e9, waited=waited)
        self._items.append(past)
        if waited:
            self._has_waited = self._may_order = True
        return past

    def _add_result(self, event: AfterToolCall | OnToolCallError) -> None:
        past = self._open.pop(_key_of(event), None)
        if past is None:
            return
        if isinstance(event, OnToolCallError):
            past.result = ToolResult(
                content=event.error, success=False, error_type=event.error_type, metadata=event.metadata
            )
        elif event.mocked or event.answered_by is None:
            past.result = ToolResult(content=event.content, success=event.success, metadata=event.metadata)

    def _end_step(self, order: Sequence[str]) -> None:
        """Put the tool calls of a step into the order in which the model asked for them, and number those that waited.

        Args:
            order: The ids of the calls in that order, where it matters.
        """
        step = self._items[self._step_begins :]
        if self._has_waited:
            self._items[self._step_begins :] = step = _order_calls(step, order)
        indices = self._indices
        for past in step:
            if past.__class__ is PastCall and (call := past.call).__class__ is ToolCall:
                tool = call.toolset, call.tool_name
                if call.call_index == UNNUMBERED:
                    past.call = call = msgspec.structs.replace(call, call_index=indices.get(tool, 0) + 1)
                if call.call_index > indices.get(tool, 0):
                    indices[tool] = call.call_index
        self._step_begins = len(self._items)
        self._has_waited = False


def _order_calls(step: Sequence[PastItem], order: Sequence[str]) -> list[PastItem]:
    """Put the tool calls of a step into an order; everything else stays at its place."""
    places = {name: nth for nth, name in enumerate(order)}

    def place_of(past: PastCall) -> tuple[int, int]:
        call = past.call
        assert isinstance(call, ToolCall)
        return call.step_index, places.get(call.tool_call_id, len(places))

    calls = [each for each in step if isinstance(each, PastCall) and isinstance(each.call, ToolCall)]
    ordered, are_calls = iter(sorted(calls, key=place_of)), {id(each) for each in calls}
    return [next(ordered) if id(each) in are_calls else each for each in step]


def _ids_of(event: EventFields) -> dict[str, Any]:
    """Return the fields that a call has in common with its event."""
    return {
        "operation_id": event.operation_id,
        "agent_id": event.agent_id,
        "user_id": event.user_id,
        "tenant_id": event.tenant_id,
        "parent_operation_id": event.parent_operation_id,
        "tags": event.tags,
        "metadata": {},
    }


def _fields_of(pending: PendingTool) -> dict[str, Any]:
    return {
        "toolset": pending.toolset,
        "tool_name": pending.tool_name,
        "tool_call_id": pending.tool_call_id,
        "args": pending.args,
        "call_index": UNNUMBERED,
    }


def _key_of(event: BeforeToolCall | AfterToolCall | OnToolCallError) -> tuple[str, int, str]:
    return event.tool_call_id, event.call_index, f"{event.toolset}/{event.tool_name}"
