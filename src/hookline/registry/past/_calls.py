"""`PastCalls`: rebuild the calls of a stored operation, as hooks saw them, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hookline.calls import (
    AgentCall,
    AgentResult,
    Call,
    CompactCall,
    CompactResult,
    ModelCall,
    ModelResponse,
    StepCall,
    StepResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
    is_from_hooks,
)
from hookline.errors import EventDecodeError
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterToolCall,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    EventFields,
    HookType,
    OnCallAgentError,
    OnCompactError,
    OnComplete,
    OnToolCallError,
    PendingTool,
    decode,
)
from hookline.hooks import Kind
from hookline.registry.past._items import (
    PastCall,
    PastItem,
    PersonDecision,
    StepEnd,
    UnreadableEvent,
    decode_step_end,
    ids_of,
)
from hookline.registry.past._questions import MissingFields, PastQuestions
from hookline.runtime import describe_result, stored_result
from hookline.store import PastConversation, PastEvents

__all__ = [
    "ALONG",
    "EMPTY_RESULTS",
    "FAILED_AGENT",
    "JUDGED_KINDS",
    "CallNotRunError",
    "PastCalls",
    "event_types_of",
    "find_sub_operations",
    "needs_conversations",
]

EVERY_KIND: frozenset[Kind] = frozenset({"before", "guard", "after", "around"})
JUDGED_KINDS: Mapping[type[Call], frozenset[Kind]] = dict.fromkeys(
    (AgentCall, StepCall, ModelCall, ToolCall, CompactCall, SubAgentCall), EVERY_KIND
)
"""The kinds of interceptors for which the store has what they judge, by the class of the calls."""
EMPTY_RESULTS: Mapping[type[Call], msgspec.Struct] = {
    AgentCall: AgentResult(output=""),
    StepCall: StepResult(should_continue=True),
    ModelCall: ModelResponse(),
    ToolCall: ToolResult(content=""),
    CompactCall: CompactResult(summary=""),
    SubAgentCall: AgentResult(output=""),
}
"""Stands for the results of calls for hooks that do not look at them."""
TYPES: Mapping[type[Call], tuple[HookType, ...]] = {
    AgentCall: (HookType.BEFORE_STEP, HookType.AFTER_COMPACT, HookType.ON_COMPLETE),
    StepCall: (HookType.BEFORE_STEP,),
    ModelCall: (
        HookType.BEFORE_STEP,
        HookType.AFTER_STEP,
        HookType.AFTER_HUMAN_INTERVENTION,
        HookType.AFTER_COMPACT,
    ),
    ToolCall: (HookType.BEFORE_TOOL_CALL, HookType.BEFORE_HUMAN_INTERVENTION, HookType.AFTER_HUMAN_INTERVENTION),
    CompactCall: (HookType.BEFORE_COMPACT,),
    SubAgentCall: (HookType.BEFORE_CALL_AGENT,),
}
RESULT_TYPES: Mapping[type[Call], tuple[HookType, ...]] = {
    AgentCall: TYPES[ModelCall],
    StepCall: (HookType.AFTER_STEP, HookType.ON_COMPLETE),
    ToolCall: (HookType.AFTER_TOOL_CALL, HookType.ON_TOOL_CALL_ERROR),
    CompactCall: (HookType.AFTER_COMPACT, HookType.ON_COMPACT_ERROR),
    SubAgentCall: (HookType.AFTER_CALL_AGENT, HookType.ON_CALL_AGENT_ERROR),
}
ALONG = {HookType.BEFORE_HUMAN_INTERVENTION.value: HookType.AFTER_STEP.value}
"""Where calls waited for a person, `afterStep` has the order in which the model asked for the calls of the step."""

FAILED_AGENT = "The sub-agent failed or was refused, and what hooks saw of that is not stored."
STOPPED_STEP = "The run was stopped in the step, and what hooks saw of its end is not stored."
NO_AGENT_RESULT = "The operation of the sub-agent, which has its answer, is not stored, or has gone on since."
LARGEST_STEP = 1_000
"""Calls of a step that are put in order, where an operation is read in parts; some frameworks have no steps."""
NO_SUB_AGENTS: Mapping[str, PastConversation] = {}
UNNUMBERED = 0
"""The index of a call that waited for a person, until the calls before it are known."""


class CallNotRunError(Exception):
    """Stands for the result of a call that did not run, or whose result is not stored: no `after` hook sees it."""


def event_types_of(calls: Iterable[type[Call]], *, results: bool) -> set[str]:
    """Return the types of the events from which calls are rebuilt.

    Args:
        calls: The classes of the calls.
        results: Whether their results are needed too.
    """
    types = {each.value for call in calls for each in TYPES[call]}
    return types | ({each.value for call in calls for each in RESULT_TYPES.get(call, ())} if results else set())


def needs_conversations(calls: Iterable[type[Call]]) -> bool:
    """Return whether calls are rebuilt from the conversations of their operations.

    Args:
        calls: The classes of the calls.
    """
    return not {ModelCall, AgentCall}.isdisjoint(calls)


def find_sub_operations(part: PastEvents) -> list[str]:
    """Return the ids of the operations of sub-agents that ended in a part of an operation."""
    found = []
    for _, _, kind, wire in part.events:
        if kind == HookType.AFTER_CALL_AGENT:
            try:
                event = decode(wire)
            except EventDecodeError:
                continue  # it is counted where the events are read
            assert isinstance(event, AfterCallAgent)
            if event.sub_operation_id:
                found.append(event.sub_operation_id)
    return found


class PastCalls:
    """Rebuilds the calls of one operation, in the order in which its hooks saw them.

    A call that waited for a person comes once: where the model asked for it, with the arguments that the person saw,
    which are those that run; with results, where it ran. The `AgentCall` comes first; with results, last.

    Args:
        wanted: The classes of the calls.
        results: Whether calls are to have their results.
        missing: The fields that are not stored.
        questions: Rebuilds model calls and the `AgentCall`, if they are wanted.
    """

    def __init__(
        self,
        wanted: frozenset[type[Call]],
        *,
        results: bool,
        missing: MissingFields,
        questions: PastQuestions | None = None,
    ) -> None:
        self._wanted = wanted
        self._results = results
        self._missing = missing
        self._questions = questions
        self._models = questions if ModelCall in wanted else None
        self._run = questions if AgentCall in wanted else None
        self._newest: tuple[EventFields, int] | None = None
        self._agents: list[PastCall] = []
        self._compaction: PastCall | None = None
        self._last_step: PastCall | None = None
        """The step with which a segment ends, until its end is known."""
        self._items: list[PastItem] = []
        self._step_begins = 0
        self._waiting: dict[str, PastCall] = {}
        self._indices: dict[tuple[str, str], int] = {}
        self._has_waited = False
        self._may_order = False
        self._open: dict[tuple[str, int, str], PastCall] = {}
        self._step: PastCall | None = None

    def read(self, part: PastEvents, sub_agents: Mapping[str, PastConversation] = NO_SUB_AGENTS) -> list[PastItem]:
        """Read events, and return what is complete, in order.

        Args:
            part: The next events of the operation.
            sub_agents: The operations of the sub-agents that ended, by their ids.
        """
        self._sub_agents = sub_agents
        self._may_order |= not part.is_last
        for _, number, kind, wire in part.events:
            try:
                event = decode_step_end(wire) if kind == HookType.AFTER_STEP else decode(wire)
            except EventDecodeError as error:
                self._items.append(UnreadableEvent(number, str(error)))
                continue
            # The most frequent ones first: to match one of many classes takes as long as to decode an event.
            if event.__class__ is BeforeToolCall:
                self._add_tool_call(event, number)
            elif isinstance(event, StepEnd):
                self._close_step(event)
            elif event.__class__ is BeforeStep:
                self._end_step(())
                self._begin_step(event, number)
            else:
                self._add(event, number)
        if part.is_last and self._run is not None and self._newest is not None:
            self._add_agent_call(self._run, *self._newest)  # it has not ended
        if part.is_last and not self._may_order:  # no call waited, and the whole operation is here
            return self._items
        if part.is_last or len(self._items) - self._step_begins > LARGEST_STEP:
            self._end_step(())
        return self._take_ready(is_last=part.is_last)

    def complete(self, past: PastCall) -> Call:
        """Return a call as hooks saw it: a model call with the messages that stood."""
        return self._models.with_messages(past) if self._models is not None and past.messages else past.call

    def _take_ready(self, *, is_last: bool) -> list[PastItem]:
        """Take what comes before the present step, and before the first call whose result may still come."""
        end = self._step_begins
        if self._results and not is_last:
            open_calls = [*self._open.values(), *self._waiting.values(), *self._agents, self._step, self._compaction]
            open_calls.append(self._last_step)
            open_calls.append(self._models.unfinished if self._models is not None else None)
            unfinished = {id(each) for each in open_calls if each is not None}
            end = next((nth for nth, each in enumerate(self._items[:end]) if id(each) in unfinished), end)
        ready, self._items = self._items[:end], self._items[end:]
        self._step_begins -= end
        return ready

    def _add(self, event: Event, number: int) -> None:
        match event:
            case AfterToolCall() | OnToolCallError():
                self._add_result(event)
            case BeforeHumanIntervention():
                for pending in event.pending_tools:
                    if pending.tool_call_id not in self._waiting:
                        waiting = ToolCall(**ids_of(event), **_fields_of(pending), step_index=event.step_index)
                        self._waiting[pending.tool_call_id] = self._append(waiting, event, number, waited=True)
            case AfterHumanIntervention() if event.tool_call_id is not None:
                if event.action != "approve":
                    self._waiting.pop(event.tool_call_id, None)
                self._items.append(PersonDecision(event.tool_call_id, event.action == "approve"))
            case BeforeCallAgent():
                call = SubAgentCall(**ids_of(event), callee_id=event.callee_id, instruction=event.instruction)
                past = self._append(call, event, number)
                if self._results and SubAgentCall in self._wanted:
                    self._agents.append(past)
            case AfterCallAgent():
                self._end_agent(event)
            case OnCallAgentError():
                self._lose_agents(event.callee_id, FAILED_AGENT)
            case BeforeCompact() if CompactCall in self._wanted:
                compaction = CompactCall(
                    messages=self._missing.compacted, token_count=event.token_count, **ids_of(event)
                )
                self._compaction = self._append(compaction, event, number)
            case AfterCompact() if self._compaction is not None:
                self._compaction.result = CompactResult(summary=event.summary)
                self._compaction = None
            case OnCompactError():
                self._compaction = None
            case OnComplete():
                self._end_segment(event, number)

    def _begin_step(self, event: BeforeStep, number: int) -> None:
        self._last_step = None
        if self._run is not None:
            self._newest = event, number
            if not self._results:
                self._add_agent_call(self._run, event, number)
        if StepCall in self._wanted:
            step = StepCall(**ids_of(event), step_index=event.step_index)
            self._step = self._append(step, event, number)
        if self._models is not None:
            self._items += self._models.begin_step(event, number, event.step_index)
        elif self._questions is not None:
            self._questions.begin_step(event, number, event.step_index)

    def _close_step(self, end: StepEnd) -> None:
        if self._step is not None:
            self._step.result = StepResult(should_continue=end.should_continue, content=end.content)
            self._last_step = None if end.should_continue else self._step
            self._step = None
        if self._questions is not None:
            self._questions.end_step(end)
        self._end_step([each.tool_call_id for each in end.tools_calling])

    def _end_segment(self, event: OnComplete, number: int) -> None:
        if self._last_step is not None and event.reason in ("error", "interrupted"):
            self._last_step.result = None  # it has raised
            self._last_step.lost = STOPPED_STEP if event.reason == "interrupted" else ""
        self._last_step = None
        if self._run is not None:
            self._newest = event, number
            if not self._results or event.reason != "waiting_for_human":
                self._add_agent_call(self._run, event, number)

    def _add_agent_call(self, run: PastQuestions, event: EventFields, number: int) -> None:
        """Add the call of the whole run, once."""
        past = run.build_agent_call(event, number)
        if isinstance(past, PastCall) and isinstance(event, OnComplete):
            run.end_run(past, event)
        self._items.append(past)
        self._run = None

    def _end_agent(self, event: AfterCallAgent) -> None:
        """Find the call of a sub-agent that has ended: its operation begins with the instruction."""
        ended = self._sub_agents.get(event.sub_operation_id)
        if ended is None or ended.state is None or ended.state.framework:
            self._lose_agents(event.callee_id, NO_AGENT_RESULT)
            return
        theirs = [each for each in self._agents if _callee_of(each) == event.callee_id]
        first = next((each.content for each in ended.messages if each.role == "user" and not is_from_hooks(each)), None)
        past = next((each for each in theirs if _instruction_of(each) == first), None)
        if past is None and len(theirs) == 1:
            past = theirs[0]  # a hook has changed what it was asked
        state = ended.state
        reason = state.status
        if past is None or reason == "running" or reason == "error" or (reason == "done") is not event.success:
            self._lose_agents(event.callee_id, NO_AGENT_RESULT)
            return
        self._agents.remove(past)
        output = describe_result(event.callee_id, stored_result(state, reason))
        past.result = AgentResult(output=output, reason=reason)

    def _lose_agents(self, callee_id: str, reason: str) -> None:
        """Note that the result of a sub-agent is not known; of several under way, that of all."""
        for past in self._agents:
            if _callee_of(past) == callee_id:
                past.lost = reason
        self._agents = [each for each in self._agents if not each.lost]

    def _add_tool_call(self, event: BeforeToolCall, number: int) -> None:
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
        asked = past
        past = self._append(call, event, number, waited=asked is not None)
        if asked is not None:
            past.asked_at = asked.at
        if self._results:
            self._open[_key_of(event)] = past

    def _append(self, call: Call, event: EventFields, number: int, *, waited: bool = False) -> PastCall:
        past = PastCall(call=call, number=number, at=event.time_unix_nano / 1e9, waited=waited)
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
        else:
            past.denied_by = event.answered_by

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


def _callee_of(past: PastCall) -> str:
    assert isinstance(past.call, SubAgentCall)
    return past.call.callee_id


def _instruction_of(past: PastCall) -> str:
    assert isinstance(past.call, SubAgentCall)
    return past.call.instruction


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
