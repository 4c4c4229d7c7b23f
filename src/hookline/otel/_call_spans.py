"""Decide at each event of a run, and at each model call, which spans begin and end."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import time_ns
from typing import Any

from opentelemetry.trace import SpanKind

from hookline.calls import Call, CompactCall, Denial, ModelCall, ModelResponse, SubAgentCall, ToolCall
from hookline.errors import message_of
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCallAgent,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    BeforeToolCall,
    Event,
    OnCallAgentError,
    OnCompactError,
    OnStopByHumanIntervention,
    OnToolCallError,
    is_interrupted,
)
from hookline.instrumentation import StreamTimes
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean, count, error_type
from hookline.otel._content import Content, answer_parts, split_system, tool_definitions
from hookline.otel._context import get_value
from hookline.otel._instruments import keep
from hookline.otel._logs import LogEvents
from hookline.otel._open_spans import KeptAttributes, OpenSpan, OperationSpans, merge

__all__ = ["ACTIONS", "KEYS", "add_chat", "begin_chat", "denial_attributes", "end_chat", "tool_key"]

STOPPED = ("interrupted", "max_steps", "cost_limit", "waiting_for_human")
"""Why a sub-agent may end without having done its work, and without an error."""


def before_step(spans: OperationSpans, event: BeforeStep, content: Content) -> None:
    """Begin the span of a step."""
    key = ("step", event.step_index)
    attributes = {names.OPERATION_ID: spans.id, names.STEP_INDEX: event.step_index}
    step = spans.begin(key, names.AGENT_STEP, names.AGENT_STEP, spans.root, event.time_unix_nano, attributes)
    spans.step = step or spans.step


def after_step(spans: OperationSpans, step: OpenSpan | None, event: AfterStep, content: Content) -> None:
    """End the span of a step, and those under it that are still open.

    Sub-agents of other runtimes may outlive the step that started them; then its span ends with the last one.
    """
    spans.input_tokens = event.total_input_tokens - spans.totals_from[0]
    spans.output_tokens = event.total_output_tokens - spans.totals_from[1]
    if step is None:
        return
    at = spans.at(event.time_unix_nano)
    outlived = False
    if len(spans.open) > 1:
        for child in spans.children(step):
            if spans.runs_agent(child):
                outlived = True
            elif child.kind == names.HUMAN_INTERVENTION:
                spans.end(child, at, {names.OUTCOME: "waiting_for_human"})
            else:
                spans.cut(child, at, "step_ended")
    attributes: dict[str, Any] = {
        names.STEP_TYPE: clean(event.step_type),
        names.STEP_SHOULD_CONTINUE: event.should_continue,
        names.STEP_TOOL_CALLS: len(event.tools_calling),
    }
    if step.outcome is not None:
        attributes[names.OUTCOME] = step.outcome
    if outlived:
        step.ending = attributes, step.error_type
    else:
        spans.end(step, at, attributes, error_type=step.error_type)


def tool_key(event: BeforeToolCall | AfterToolCall | OnToolCallError) -> tuple[object, ...]:
    """Return the key of a tool call in the table of open spans: its id, where it has one."""
    if event.tool_call_id:
        return ("tool", event.tool_call_id)
    return ("tool", event.toolset, event.tool_name, event.call_index)


def before_tool_call(spans: OperationSpans, event: BeforeToolCall, content: Content) -> None:
    """Begin the span of a tool call."""
    if not spans.common.tool_spans:
        return
    kept = spans.common.tools.get((spans.agent, event.tool_name))
    if kept is None or kept.toolset != event.toolset:
        kept = keep_tool(spans, event)
    attributes: dict[str, Any] = {}
    if content.on_spans:
        content.put(attributes, names.EXECUTE_TOOL, names.TOOL_CALL_ARGUMENTS, event.args)
    description = spans.descriptions.get(event.tool_name)
    if description:
        attributes[names.TOOL_DESCRIPTION] = description
    # The most important last: a span that has too many attributes forgets the oldest.
    attributes[names.OPERATION_ID] = spans.id
    attributes[names.TOOL_CALL_ID] = clean(event.tool_call_id)
    attributes.update(kept.attributes)
    step = spans.step_of(event.step_index)
    spans.begin(tool_key(event), names.EXECUTE_TOOL, kept.name, step, event.time_unix_nano, attributes)


def keep_tool(spans: OperationSpans, event: BeforeToolCall) -> KeptAttributes:
    """Keep the attributes that say which tool is called."""
    name = clean(event.tool_name)
    attributes = {
        names.TOOL_IDENTIFIER: clean(event.toolset),
        names.AGENT_NAME: spans.agent,
        names.TOOL_TYPE: "function",
        names.TOOL_NAME: name,
        names.OPERATION_NAME: names.EXECUTE_TOOL,
    }
    made = KeptAttributes(f"{names.EXECUTE_TOOL} {name}", attributes, event.toolset)
    return keep(spans.common.tools, (spans.agent, event.tool_name), made)


def after_tool_call(spans: OperationSpans, opened: OpenSpan | None, event: AfterToolCall, content: Content) -> None:
    """End the span of a tool call that has a result, or was denied or answered by a hook."""
    if opened is None:
        record_on_step(spans, event, content)
        return
    attributes = answer_attributes(event)
    denied = event.answered_by is not None and not event.mocked
    if denied:
        unexplained = Denial(hook_id=event.answered_by or "", reason=event.content)
        denial, cause = spans.denials.pop(event.tool_call_id, (unexplained, None))
        attributes[names.TOOL_OUTCOME] = "denied"
        attributes |= denial_attributes(names.EXECUTE_TOOL, ToolCall, denial, cause, content)
    elif content.on_spans:
        content.put(attributes, names.EXECUTE_TOOL, names.TOOL_CALL_RESULT, event.content)
    failed = not event.success and not denied
    spans.end(opened, event.time_unix_nano, attributes, error_type="tool_error" if failed else None)


def on_tool_call_error(
    spans: OperationSpans, opened: OpenSpan | None, event: OnToolCallError, content: Content
) -> None:
    """End the span of a tool call that failed or was interrupted."""
    if opened is None:
        record_on_step(spans, event, content)
        return
    attributes = answer_attributes(event)
    if is_interrupted(event):
        attributes[names.TOOL_OUTCOME] = "interrupted"
        spans.end(opened, event.time_unix_nano, attributes)
        return
    message = content.message(names.EXECUTE_TOOL, names.ERROR_MESSAGE, event.error)
    spans.end(opened, event.time_unix_nano, attributes, error_type=error_type(event.error_type), message=message)


def record_on_step(spans: OperationSpans, event: AfterToolCall | OnToolCallError, content: Content) -> None:
    """Add the denial or the answer of a tool call to the step's span, where tool calls have no spans."""
    if spans.common.tool_spans or event.answered_by is None:
        return
    call = {names.TOOL_NAME: clean(event.tool_name), names.TOOL_CALL_ID: clean(event.tool_call_id)}
    if event.mocked:
        name = names.ANSWERED_EVENT
        attributes = {**call, **answer_attributes(event), names.ANSWER_HOOK: clean(event.answered_by)}
        attributes[names.ANSWER_CALL] = ToolCall.__name__
    elif isinstance(event, AfterToolCall):
        unexplained = Denial(hook_id=event.answered_by, reason=event.content)
        denial, cause = spans.denials.pop(event.tool_call_id, (unexplained, None))
        name = names.DENIED_EVENT
        attributes = {**call, **denial_attributes(names.AGENT_STEP, ToolCall, denial, cause, content)}
    else:
        return
    spans.step_of(event.step_index).span.add_event(name, attributes, spans.at(event.time_unix_nano))


def answer_attributes(event: AfterToolCall | OnToolCallError) -> dict[str, Any]:
    """Return attributes that say whether a hook answered instead of the tool, and which one."""
    if not event.mocked:
        return {}
    attributes: dict[str, Any] = {names.MOCKED: True, names.ANSWERED_BY: clean(event.answered_by or "")}
    for key, name in names.MOCK_PROVENANCE.items():
        if isinstance(value := event.metadata.get(key), str):
            attributes[name] = clean(value)
    return attributes


def before_human_intervention(spans: OperationSpans, event: BeforeHumanIntervention, content: Content) -> None:
    """Begin the span of a wait for a person."""
    attributes = {
        names.OPERATION_ID: spans.id,
        names.HUMAN_KIND: "tool_approval",
        names.PENDING_COUNT: len(event.pending_tools),
    }
    kind = names.HUMAN_INTERVENTION
    spans.begin(
        ("human", event.step_index), kind, kind, spans.step_of(event.step_index), event.time_unix_nano, attributes
    )


def after_human_intervention(spans: OperationSpans, event: AfterHumanIntervention, content: Content) -> None:
    """Record a person's decision."""
    record_decision(spans, event, content, event.action)


def on_stop_by_human_intervention(spans: OperationSpans, event: OnStopByHumanIntervention, content: Content) -> None:
    """Record the rejection that stopped the run, unless that is done."""
    if event.tool_call_id not in spans.decided:  # its own event has told the decision already
        record_decision(spans, event, content, "reject")


def record_decision(
    spans: OperationSpans, event: AfterHumanIntervention | OnStopByHumanIntervention, content: Content, decision: str
) -> None:
    """End the span of a wait for a person, or begin and end one in the segment that goes on after it."""
    spans.decided.add(event.tool_call_id)
    attributes: dict[str, Any] = {names.HUMAN_DECISION: clean(decision)}
    if event.tool_call_id:
        attributes[names.TOOL_CALL_ID] = clean(event.tool_call_id)
    if content.on_spans and event.rejection_reason:
        content.put(attributes, names.HUMAN_INTERVENTION, names.HUMAN_REASON, event.rejection_reason)
    waited = next((each for each in spans.open.values() if each.kind == names.HUMAN_INTERVENTION), None)
    since = waited.began if waited is not None else spans.waiting_since
    if since is not None:
        attributes[names.HUMAN_WAIT] = max(0, event.time_unix_nano - since) / 1e9
    if waited is not None:
        spans.end(waited, event.time_unix_nano, attributes)
        return
    attributes = {names.OPERATION_ID: spans.id, names.HUMAN_KIND: "tool_approval", **attributes}
    kind = names.HUMAN_INTERVENTION
    moment = spans.begin(
        ("decision", event.tool_call_id),
        kind,
        kind,
        spans.current_step(),
        event.time_unix_nano,
        attributes,
        links=spans.previous,
    )
    if moment is not None:
        spans.end(moment, event.time_unix_nano)


def before_compact(spans: OperationSpans, event: BeforeCompact, content: Content) -> None:
    """Begin the span of a compaction."""
    attributes = {
        names.OPERATION_ID: spans.id,
        names.MESSAGES_BEFORE: event.message_count,
        names.TOKENS_BEFORE: event.token_count,
    }
    kind = names.COMPACT_CONTEXT
    spans.begin(
        ("compact", event.step_index), kind, kind, spans.step_of(event.step_index), event.time_unix_nano, attributes
    )


def after_compact(spans: OperationSpans, opened: OpenSpan | None, event: AfterCompact, content: Content) -> None:
    """End the span of a compaction that succeeded."""
    spans.compacted = True
    if opened is None:
        return
    attributes: dict[str, Any] = {names.MESSAGES_AFTER: event.messages_after}
    if content.on_spans:
        content.put(attributes, names.COMPACT_CONTEXT, names.SUMMARY, event.summary)
    spans.end(opened, event.time_unix_nano, attributes)


def on_compact_error(spans: OperationSpans, opened: OpenSpan | None, event: OnCompactError, content: Content) -> None:
    """End the span of a compaction that failed, was denied or was interrupted."""
    denied = spans.denials.pop(CompactCall, None)
    if opened is None:
        return
    if denied is not None:
        attributes = denial_attributes(names.COMPACT_CONTEXT, CompactCall, *denied, content)
        spans.end(opened, event.time_unix_nano, attributes)
    elif opened.outcome is not None:
        spans.end(opened, event.time_unix_nano, {names.OUTCOME: opened.outcome})
    else:
        message = content.message(names.COMPACT_CONTEXT, names.ERROR_MESSAGE, event.error)
        spans.end(opened, event.time_unix_nano, error_type=opened.error_type or names.OTHER, message=message)


def before_call_agent(spans: OperationSpans, event: BeforeCallAgent, content: Content) -> None:
    """Begin the span of a sub-agent call."""
    callee = clean(event.callee_id)
    attributes: dict[str, Any] = {names.OPERATION_ID: spans.id, names.CALLEE: callee}
    if content.on_spans:
        content.put(attributes, names.CALL_AGENT, names.INSTRUCTION, event.instruction)
    spans.next_call += 1
    opened = spans.begin(
        ("call", spans.next_call),
        names.CALL_AGENT,
        f"{names.CALL_AGENT} {callee}",
        spans.current_step(),
        event.time_unix_nano,
        attributes,
    )
    if opened is not None:
        opened.callee = event.callee_id


def after_call_agent(spans: OperationSpans, event: AfterCallAgent, content: Content) -> None:
    """End the span of a sub-agent call that has a result."""
    opened = find_agent_call(
        spans, event.callee_id, event.sub_operation_id, unrun=spans.own and not event.sub_operation_id
    )
    if opened is None:
        return
    attributes: dict[str, Any] = {}
    if event.sub_operation_id:
        attributes[names.SUB_OPERATION_ID] = clean(event.sub_operation_id)
    outcome = opened.outcome
    if outcome is None and spans.own and not event.success:
        outcome = "interrupted"  # a run of this package reports a failure by the other event
    if outcome is not None:
        attributes[names.OUTCOME] = outcome
    failed = not event.success and outcome in (None, "error")
    spans.end(opened, event.time_unix_nano, attributes, error_type="agent_error" if failed else None)


def on_call_agent_error(spans: OperationSpans, event: OnCallAgentError, content: Content) -> None:
    """End the span of a sub-agent call that failed or was denied."""
    denied = spans.denials.pop(SubAgentCall, None)
    opened = find_agent_call(spans, event.callee_id, None, unrun=denied is not None)
    if opened is None:
        return
    if denied is not None:
        attributes = denial_attributes(names.CALL_AGENT, SubAgentCall, *denied, content)
        spans.end(opened, event.time_unix_nano, attributes)
        return
    attributes = {names.SUB_OPERATION_ID: clean(opened.child)} if opened.child else {}
    if opened.outcome in STOPPED:
        attributes[names.OUTCOME] = opened.outcome
        spans.end(opened, event.time_unix_nano, attributes)
        return
    message = content.message(names.CALL_AGENT, names.ERROR_MESSAGE, event.error)
    kind = opened.error_type or names.OTHER
    spans.end(opened, event.time_unix_nano, attributes, error_type=kind, message=message)


def find_agent_call(spans: OperationSpans, callee_id: str, child: str | None, *, unrun: bool) -> OpenSpan | None:
    """Find the open span of the sub-agent call that an event is about; `None` if there is none.

    In a run of this package it is the call in the context, since the event is dispatched inside it. Otherwise a call
    that never ran is the newest, since it begins and ends at once; any other is found by the operation id of its child.
    Without one it is the call whose work has just failed, or whose child has, or the one that began first.
    """
    current = get_value(spans.common.key)
    if isinstance(current, OpenSpan) and spans.open.get(current.key) is current and current.callee == callee_id:
        return current
    calls = [each for each in spans.open.values() if each.kind == names.CALL_AGENT and each.callee == callee_id]
    if unrun:
        return next((each for each in reversed(calls) if each.child is None), None)
    if child:
        known = [each for each in calls if each.child == child]
        return next(iter(known or (each for each in calls if each.child is None)), None)
    order = {each: (not each.left, each.outcome != "error", each.child is not None) for each in calls}
    return min(calls, key=order.__getitem__, default=None)


def denial_attributes(
    kind: str, call: type[Call], denial: Denial, cause: BaseException | None, content: Content
) -> dict[str, Any]:
    """Return attributes of a denial: its hook, whether that failed, and the reason where content is recorded."""
    attributes: dict[str, Any] = {
        names.DENIED_BY: clean(denial.hook_id),
        names.DENIAL_CALL: call.__name__,
        names.DENIAL_CAUSE: "decision" if cause is None else type(cause.__cause__ or cause).__name__,
    }
    if content.on_spans:
        content.put(attributes, kind, names.DENIAL_REASON, denial.reason)
    return attributes


ACTIONS: dict[type[Event], Callable[..., None]] = {
    BeforeStep: before_step,
    AfterStep: after_step,
    BeforeToolCall: before_tool_call,
    AfterToolCall: after_tool_call,
    OnToolCallError: on_tool_call_error,
    BeforeHumanIntervention: before_human_intervention,
    AfterHumanIntervention: after_human_intervention,
    OnStopByHumanIntervention: on_stop_by_human_intervention,
    BeforeCompact: before_compact,
    AfterCompact: after_compact,
    OnCompactError: on_compact_error,
    BeforeCallAgent: before_call_agent,
    AfterCallAgent: after_call_agent,
    OnCallAgentError: on_call_agent_error,
}
"""What each event does to the open spans; `OnComplete` and `OnError` end the segment, in `TracingHooks`.

The action of an event in `KEYS` is called with the span that the event ends, if it is open, before the event.
"""

KEYS: dict[type[Event], Callable[[Any], Hashable]] = {
    AfterStep: lambda event: ("step", event.step_index),
    AfterToolCall: tool_key,
    OnToolCallError: tool_key,
    AfterCompact: lambda event: ("compact", event.step_index),
    OnCompactError: lambda event: ("compact", event.step_index),
}
"""The key of the span that an event ends, in the table of open spans."""


def begin_chat(spans: OperationSpans, call: ModelCall, content: Content) -> OpenSpan | None:
    """Begin the span of a model call; retries of the same call are part of it."""
    kept = spans.common.chats.get((spans.provider, call.model or spans.model))
    if kept is None:
        kept = keep_chat(spans, call)
    attributes: dict[str, Any] = {}
    if content.on_spans:
        content.building(put_request, attributes, call, content)
    attributes[names.OPERATION_ID] = spans.id
    if spans.conversation_id is not None:
        attributes[names.CONVERSATION_ID] = spans.conversation_id
    if spans.compacted:
        attributes[names.CONVERSATION_COMPACTED] = True
    if call.settings:
        for key, value in call.settings.items():
            setting = names.REQUEST_SETTINGS.get(key)
            if setting is not None and (isinstance(value, bool | int | float | str) or _is_texts(value)):
                attributes[setting] = as_setting(value)
    # The most important last: a span that has too many attributes forgets the oldest.
    attributes.update(kept.attributes)
    return spans.begin(
        ("chat", call.step_index),
        names.CHAT,
        kept.name,
        spans.step_of(call.step_index),
        time_ns(),
        attributes,
        span_kind=SpanKind.CLIENT,
    )


def keep_chat(spans: OperationSpans, call: ModelCall) -> KeptAttributes:
    """Keep the attributes that say which model is asked."""
    model = clean(call.model) or spans.model
    attributes = {names.PROVIDER_NAME: spans.provider}
    if model:
        attributes[names.REQUEST_MODEL] = model
    attributes[names.OPERATION_NAME] = names.CHAT
    made = KeptAttributes(f"{names.CHAT} {model}" if model else names.CHAT, attributes)
    return keep(spans.common.chats, (spans.provider, call.model or spans.model), made)


def add_chat(
    spans: OperationSpans, call: ModelCall, response: ModelResponse, provider: str, times: tuple[int, int]
) -> None:
    """Add the span of a model call that ended earlier.

    It goes under its step if that is open and had begun then, else under the root.
    """
    model, usage = clean(call.model) or spans.model, response.usage
    attributes: dict[str, Any] = {names.OPERATION_ID: spans.id}
    if spans.conversation_id is not None:
        attributes[names.CONVERSATION_ID] = spans.conversation_id
    if usage.input_tokens or usage.output_tokens:
        attributes[names.USAGE_INPUT_TOKENS] = count(usage.input_tokens)
        attributes[names.USAGE_OUTPUT_TOKENS] = count(usage.output_tokens)
    if model:
        attributes[names.REQUEST_MODEL] = model
    if response.model:
        attributes[names.RESPONSE_MODEL] = clean(response.model)
    if spans.common.kinds:
        attributes[names.OPENINFERENCE_KIND] = spans.common.kinds[names.CHAT]
    attributes[names.PROVIDER_NAME] = clean(provider) or spans.provider
    attributes[names.OPERATION_NAME] = names.CHAT
    began, ended = times
    step = spans.open.get(("step", call.step_index))
    parent = step if step is not None and step.began <= began else spans.root
    began = max(began, parent.began)
    ended = max(ended, began)
    spans.at(ended)
    name = f"{names.CHAT} {model}" if model else names.CHAT
    tracer = spans.common.tracer
    context = spans.inside(parent)
    tracer.start_span(name, context, kind=SpanKind.CLIENT, attributes=attributes, start_time=began).end(ended)


def end_chat(
    spans: OperationSpans,
    opened: OpenSpan,
    call: ModelCall,
    result: object,
    error: BaseException | None,
    content: Content,
    logs: LogEvents,
) -> None:
    """End the span of a model call, which answered, failed or was interrupted."""
    at = time_ns()
    attributes = {} if opened.stream is None else stream_attributes(opened.stream)
    if isinstance(error, Exception):
        message = content.message(names.CHAT, names.ERROR_MESSAGE, message_of(error)) if content.on_spans else None
        spans.end(opened, at, attributes, error_type=error_type(type(error).__name__), message=message)
        logs.exception(spans.inside(opened), {names.OPERATION_NAME: names.CHAT}, error, content)
        return
    if not isinstance(result, ModelResponse):
        attributes[names.OUTCOME] = "interrupted"
        spans.end(opened, at, attributes)
        return
    spans.finish_reason = clean(result.finish_reason)
    attributes[names.RESPONSE_FINISH_REASONS] = (spans.finish_reason,)
    if result.model:
        attributes[names.RESPONSE_MODEL] = clean(result.model)
    if result.response_id:
        attributes[names.RESPONSE_ID] = clean(result.response_id)
    usage = result.usage
    if usage.input_tokens or usage.output_tokens:
        attributes[names.USAGE_INPUT_TOKENS] = count(usage.input_tokens)
        attributes[names.USAGE_OUTPUT_TOKENS] = count(usage.output_tokens)
    details = {**opened.attributes, **attributes} if content.on_events else None
    if content.on_spans or details is not None:
        answer: dict[str, Any] = {}
        content.building(put_answer, answer, result, content)
        if content.on_spans:
            attributes |= answer
        elif details is not None:
            content.building(put_request, details, call, content)
        if details is not None:
            merge(details, answer)
    spans.end(opened, at, attributes)
    if details is not None:
        logs.emit(names.INFERENCE_DETAILS_EVENT, spans.inside(opened), details, at=at)


def stream_attributes(times: StreamTimes) -> dict[str, Any]:
    """Return attributes that say that an answer was streamed, and when it began to arrive."""
    attributes: dict[str, Any] = {names.REQUEST_STREAM: True}
    if times.first is not None:
        attributes[names.RESPONSE_TIME_TO_FIRST_CHUNK] = times.first
    return attributes


def put_answer(attributes: dict[str, Any], response: ModelResponse, content: Content) -> None:
    """Add a model's answer to attributes, where content is recorded."""
    content.put(attributes, names.CHAT, names.OUTPUT_MESSAGES, answer_parts(response))


def put_request(attributes: dict[str, Any], call: ModelCall, content: Content) -> None:
    """Add a model's request to attributes, where content is recorded."""
    instructions, messages = split_system(call.messages)
    if instructions:
        content.put(attributes, names.CHAT, names.SYSTEM_INSTRUCTIONS, instructions)
    content.put(attributes, names.CHAT, names.INPUT_MESSAGES, messages, newest_first=True)
    if call.tools:
        content.put(attributes, names.CHAT, names.TOOL_DEFINITIONS, tool_definitions(call.tools))


def as_setting(value: Any) -> Any:
    """Return a setting of a model as the value of an attribute."""
    if isinstance(value, list | tuple):
        return tuple(clean(each) for each in value)
    if isinstance(value, str):
        return clean(value)
    return count(value) if value.__class__ is int else value


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
