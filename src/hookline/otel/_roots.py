"""The root span of a segment: where it belongs in a trace, and what it says of the run at its beginning and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from opentelemetry.trace import (
    NonRecordingSpan,
    SpanKind,
    get_current_span,
    set_span_in_context,
)

from hookline.calls import AgentCall, Call, CompactCall, Denial, ModelCall, StepCall, SubAgentCall, ToolCall, ToolSpec
from hookline.events import CompletionReason, Event, OnComplete, OnError
from hookline.instrumentation import Segment
from hookline.otel import _attributes as names
from hookline.otel._actions import denial_attributes
from hookline.otel._content import Content, message_parts, tool_definitions
from hookline.otel._context import OPERATION, set_value
from hookline.otel._links import links_to, parsed
from hookline.otel._places import place_of
from hookline.otel._segments import Over
from hookline.otel._spans import MARKS, Common, OpenSpan, OperationSpans
from hookline.otel._text import clean, count, error_type

__all__ = ["Roots", "descriptions", "reason_of", "segment_of_event"]

DESCRIPTION_CHARACTERS = 1000
"""How much of a tool's description its spans carry."""

ENDS_THE_RUN: tuple[type[Call], ...] = (AgentCall, StepCall, ModelCall)
"""Calls whose denial is the end of the run."""

REASONS = get_args(CompletionReason)

Operations = Mapping[str, OperationSpans]


class Roots:
    """Begins and completes root spans, by one policy."""

    def __init__(
        self,
        common: Common,
        content: Content,
        *,
        same_trace: bool,
        aggregate_usage: str,
        conversation_id: str | None,
        user_ids: bool,
    ) -> None:
        self._common = common
        self._content = content
        self._same_trace = same_trace
        self._usage = aggregate_usage
        self._conversation_id = conversation_id
        self._user_ids = user_ids
        self._described: dict[int, tuple[object, dict[str, str]]] = {}

    def begin(self, segment: Segment, at: int, operations: Operations, *, own: bool) -> OperationSpans:
        """Begin the root span of a segment.

        Args:
            segment: What is known of it.
            at: When it began.
            operations: The segments that are open.
            own: Whether it is a run of this package, or one that only events tell of.
        """
        base, at, links, parent, under, call = place_of(segment, at, operations, self._common.key, own=own)
        goes_on = False
        if segment.traceparents and self._same_trace:
            earlier = parsed(segment.traceparents[-1])
            if earlier is not None:
                base, goes_on = set_span_in_context(NonRecordingSpan(earlier), base), True
        elif segment.traceparents:
            links = [*links_to(segment.traceparents), *links]
        agent = clean(segment.agent_id)
        operation_id = clean(segment.operation_id)
        base = set_value(OPERATION, operation_id, base)
        spans = OperationSpans(segment.operation_id, agent, base, self._common, own=own)
        spans.id = operation_id
        spans.traceparents = tuple(segment.traceparents)
        attributes = self._attributes(segment, spans)
        if spans.rooted:
            name = f"{names.INVOKE_AGENT} {agent}" if agent else names.INVOKE_AGENT
            span = self._common.tracer.start_span(name, base, SpanKind.INTERNAL, attributes, links, at)
            spans.recording = span.is_recording()
        else:
            span = get_current_span(base)
            around = span.get_span_context()
            spans.recording = not around.is_valid or around.trace_flags.sampled
            spans.fixed = goes_on
        spans.at(at)
        spans.root = OpenSpan("root", names.INVOKE_AGENT, span, None, at, attributes, segment.operation_id)
        if spans.recording:
            spans.previous = links
            if parent is not None and under is not None:
                spans.parent, spans.under, spans.call = parent, under, call
                parent.segments[segment.operation_id] = spans
            if call is not None:
                call.child = segment.operation_id
            try:
                self._take_up(spans, segment)
            except Exception as error:  # all of that may be missing
                self._common.failures.note("begin", error)
        return spans

    def _take_up(self, spans: OperationSpans, segment: Segment) -> None:
        """What is needed of a segment that is sampled."""
        spans.provider, spans.model = clean(segment.provider) or names.OTHER, clean(segment.model)
        spans.descriptions = self._descriptions(segment)
        spans.totals_from = (segment.input_tokens, segment.output_tokens)
        spans.waiting_since = segment.waiting_since_unix_nano
        if self._content.on_spans and spans.rooted:
            self._put_request(spans.root, segment)

    def complete(self, spans: OperationSpans, event: OnComplete | OnError) -> None:
        """End the root span, for whatever reason the segment ends."""
        reason = reason_of(event)
        failed_with = message = None
        if reason == "error":
            failed_with = error_type(event.error_type)
            message = self._content.message(names.INVOKE_AGENT, names.ERROR_MESSAGE, event.error_message or "") or None
        if spans.call is not None:
            spans.call.outcome, spans.call.error_type = reason, failed_with
        at = spans.at(event.time_unix_nano)
        if spans.parent is not None:
            spans.parent.at(at)
            spans.parent.segments.pop(spans.operation_id, None)
        if not spans.rooted:
            return
        attributes: dict[str, Any] = {names.OUTCOME: reason}
        try:
            self._put_last(attributes, spans, event)
        finally:
            spans.end_root(at, attributes, failed_with, message)

    def _put_last(self, attributes: dict[str, Any], spans: OperationSpans, event: OnComplete | OnError) -> None:
        """What is known of a segment at its end."""
        content = self._content
        if isinstance(event, OnComplete):
            attributes[names.STEPS] = count(event.steps)
            attributes[names.LLM_CALLS] = count(event.llm_calls)
            attributes[names.TOOL_CALLS] = count(event.tool_calls)
            if content.on_spans and event.last_assistant_content:
                parts = [{"type": "text", "content": event.last_assistant_content}]
                output = [{"role": "assistant", "parts": parts, "finish_reason": spans.finish_reason or "stop"}]
                content.put(attributes, names.INVOKE_AGENT, names.OUTPUT_MESSAGES, output)
        if spans.finish_reason is not None:
            attributes[names.RESPONSE_FINISH_REASONS] = (spans.finish_reason,)
        if self._usage != "off":
            hookline = self._usage == "hookline"
            attributes[names.USAGE_INPUT if hookline else names.USAGE_INPUT_TOKENS] = count(spans.input_tokens)
            attributes[names.USAGE_OUTPUT if hookline else names.USAGE_OUTPUT_TOKENS] = count(spans.output_tokens)
        if spans.stopped_by is not None:
            attributes |= denial_attributes(names.INVOKE_AGENT, *spans.stopped_by, content)

    def refused(
        self, spans: OperationSpans, call: Call, denial: Denial, cause: BaseException | None, *, ran: bool, stop: bool
    ) -> None:
        """A hook has denied a call."""
        kind = type(call)
        if stop or kind in ENDS_THE_RUN:
            spans.stopped_by = (kind, denial, cause)
        if isinstance(call, ToolCall) and not ran:
            spans.denials[call.tool_call_id] = (denial, cause)
        elif kind is CompactCall or (kind is SubAgentCall and not ran):
            spans.denials[kind] = (denial, cause)
        elif ran or not spans.rooted or kind not in ENDS_THE_RUN:  # there is no span for it, or that has ended
            attributes = denial_attributes(names.AGENT_STEP, kind, denial, cause, self._content)
            spans.current_step().span.add_event(names.DENIED_EVENT, attributes)

    def answered(self, spans: OperationSpans, call: Call, hook_id: str) -> None:
        """A hook has answered in place of a call; of a tool call its events tell."""
        if not isinstance(call, ToolCall):
            attributes = {names.ANSWER_HOOK: clean(hook_id), names.ANSWER_CALL: type(call).__name__}
            spans.current_step().span.add_event(names.ANSWERED_EVENT, attributes)

    def _attributes(self, segment: Segment, spans: OperationSpans) -> dict[str, Any]:
        # The most important last: a span that has too many forgets the oldest.
        attributes: dict[str, Any] = {names.OPERATION_ID: spans.id}
        if segment.parent_operation_id:
            attributes[names.PARENT_OPERATION_ID] = clean(segment.parent_operation_id)
        if segment.tenant_id:
            attributes[names.TENANT_ID] = clean(segment.tenant_id)
        if segment.user_id and self._user_ids:
            attributes[names.USER_ID] = clean(segment.user_id)
        if segment.resumed:
            attributes[names.RESUMED] = True
        conversation = segment.conversation_id or self._conversation_id
        if conversation is not None:
            spans.conversation_id = attributes[names.CONVERSATION_ID] = clean(conversation)
        if segment.model:
            attributes[names.REQUEST_MODEL] = clean(segment.model)
        if spans.agent:
            attributes[names.AGENT_NAME] = spans.agent
        if self._common.kinds:
            attributes[names.OPENINFERENCE_KIND] = self._common.kinds[names.INVOKE_AGENT]
        attributes[names.OPERATION_NAME] = names.INVOKE_AGENT
        return attributes

    def _descriptions(self, segment: Segment) -> dict[str, str]:
        """The tools' descriptions by name; the same list of tools, which an agent has for life, is looked at once."""
        tools = segment.tools
        if not tools:
            return {}
        found = self._described.get(id(tools))
        if found is None or found[0] is not tools:
            if len(self._described) >= 64:
                self._described.clear()
            found = tools, descriptions(tools)
            self._described[id(tools)] = found
        return found[1]

    def _put_request(self, root: OpenSpan, segment: Segment) -> None:
        attributes: dict[str, Any] = {}
        kind, put = names.INVOKE_AGENT, self._content.put
        if segment.instructions:
            instructions = [{"type": "text", "content": segment.instructions}]
            put(attributes, kind, names.SYSTEM_INSTRUCTIONS, instructions)
        if segment.input:
            put(attributes, kind, names.INPUT_MESSAGES, message_parts(segment.input), newest_first=True)
        if segment.tools:
            put(attributes, kind, names.TOOL_DEFINITIONS, tool_definitions(segment.tools))
        root.span.set_attributes(attributes)
        for mark in MARKS:
            if mark in attributes:
                root.attributes[mark] = attributes[mark]


def descriptions(tools: Sequence[ToolSpec]) -> dict[str, str]:
    """The descriptions of tools, by name."""
    return {tool.name: clean(tool.description, DESCRIPTION_CHARACTERS) for tool in tools}


def segment_of_event(event: Event, over: Over | None) -> Segment:
    """What the first event of an operation says of it, where no run has announced it.

    Args:
        event: The event.
        over: The operation's segment before, if there was one here.
    """
    return Segment(
        operation_id=event.operation_id,
        agent_id=event.agent_id,
        user_id=event.user_id,
        tenant_id=event.tenant_id,
        parent_operation_id=event.parent_operation_id,
        resumed=over is not None,
        traceparents=over.traceparents if over is not None else (),
        input_tokens=over.tokens[0] if over is not None else 0,
        output_tokens=over.tokens[1] if over is not None else 0,
    )


def reason_of(event: OnComplete | OnError) -> str:
    """Why a segment has ended: one of the reasons that there are, whatever another runtime says."""
    reason = event.reason if isinstance(event, OnComplete) else "error"
    return reason if reason in REASONS else names.OTHER
