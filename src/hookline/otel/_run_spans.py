"""Place the segments of a run in a trace: the parent of each, those that are open, and their root spans."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import Any, NamedTuple, get_args

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    get_current_span,
    set_span_in_context,
)

from hookline.calls import (
    AddedContext,
    AgentCall,
    Call,
    CompactCall,
    Denial,
    ModelCall,
    StepCall,
    SubAgentCall,
    ToolCall,
    ToolSpec,
)
from hookline.events import CompletionReason, Event, OnComplete, OnError
from hookline.instrumentation import SegmentInfo
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean, count, error_type
from hookline.otel._call_spans import denial_attributes
from hookline.otel._content import Content, message_parts, tool_definitions
from hookline.otel._context import (
    OPERATION,
    PLACE,
    get_current,
    get_value,
    links_to,
    parse_traceparent,
    set_value,
    traceparent_of,
)
from hookline.otel._instruments import Failures
from hookline.otel._open_spans import MARKS, Common, OpenSpan, OperationSpans

__all__ = [
    "EndedSegment",
    "Roots",
    "SegmentParent",
    "Segments",
    "descriptions",
    "find_parent",
    "reason_of",
    "segment_of_event",
]

Operations = Mapping[str, OperationSpans]


class SegmentParent(NamedTuple):
    """The parent of a segment in a trace.

    Attributes:
        base: The context that the segment begins in.
        at: The start of the segment: not before that of the span above it.
        links: Links to spans that the segment comes from without being inside them.
        parent: The operation that called it as a sub-agent, where that is traced here.
        under: The span of that operation that it is under.
        call: The span of the sub-agent call that it answers.
    """

    base: Context
    at: int
    links: list[Link]
    parent: OperationSpans | None = None
    under: OpenSpan | None = None
    call: OpenSpan | None = None


def find_parent(segment: SegmentInfo, at: int, operations: Operations, key: str, *, own: bool) -> SegmentParent:
    """Find the parent of a segment: the call of a sub-agent, a step, or the span that is current.

    Args:
        segment: The segment.
        at: The time at which it begins.
        operations: The open segments.
        key: The context key under which the bundle keeps the span that code runs in.
        own: Whether it is a run of this package, whose context says in which call it runs. Another runtime's run has
            only the id of its parent.
    """
    current = get_current()
    parent = operations.get(segment.parent_operation_id) if segment.parent_operation_id else None
    mine = get_value(key, current)
    inside = mine if isinstance(mine, OpenSpan) else None
    if parent is not None:
        call = inside if inside is not None and parent.open.get(inside.key) is inside else None
        if call is None and not own:
            calls = (each for each in parent.open.values() if each.kind == names.CALL_AGENT and each.child is None)
            call = next((each for each in calls if each.callee == segment.agent_id), None)
        under = call if call is not None or own else parent.current_step()
        if under is not None:
            base = set_span_in_context(under.span, current if own else parent.base)
            return SegmentParent(base, parent.at(at), [], parent, under, call)
    if inside is not None:
        current = find_own_context(inside, current, operations)
    return find_enclosing_parent(current, at, own=own)


def find_own_context(inside: OpenSpan, current: Context, operations: Operations) -> Context:
    """Return the context of a segment inside a traced run that another bundle traces as well.

    What is current is the span of whichever bundle was last; under that of another one, whose back end may be another,
    the segment would be lost.
    """
    spans = operations.get(inside.operation_id)
    rooted = spans is None or spans.rooted
    if rooted and not inside.span.is_recording() and getattr(inside.span, "end_time", None) is None:
        return set_span_in_context(inside.span, current)  # this bundle is not to see what the other one does
    span = get_current_span(current)
    attributes = getattr(span, "attributes", None) or {}
    if spans is None or spans.has(span):
        return current
    call_id = attributes.get(names.TOOL_CALL_ID)
    if names.OPERATION_ID not in attributes:
        place = get_value(PLACE, current)
        at = span.get_span_context().span_id
        if span.is_recording() or not isinstance(place, tuple) or place[0].get_span_context().span_id != at:
            return current
        call_id = place[1]  # a library without a back end has put a stand-in there
    tool = spans.open.get(("tool", call_id))
    return set_span_in_context((tool or spans.current_step()).span, current)


def find_enclosing_parent(current: Context, at: int, *, own: bool) -> SegmentParent:
    """Return the parent of a segment that no traced run called.

    What an observer of a run's end starts, or one in a lane, finds a span that has ended; what is replayed from a
    recording finds one that begins later. Such a segment gets a trace of its own, with a link, because no span may
    begin before the one above it, or outlive it.
    """
    span = get_current_span(current)
    has_ended = get_value(OPERATION, current) is not None and getattr(span, "end_time", None) is not None
    began = getattr(span, "start_time", None) or 0
    if not has_ended and (own or began <= at):
        return SegmentParent(current, max(at, began), [])
    link = Link(span.get_span_context(), {names.LINK: "started_by"})
    return SegmentParent(set_span_in_context(INVALID_SPAN, current), at, [link])


REMEMBERED = 1000
"""Operations whose last segment is remembered after its end, for events that come later."""

SWEEP_NS = 60_000_000_000
"""Nanoseconds between two searches for segments without events for too long."""


class EndedSegment(NamedTuple):
    """A segment that ended, as later segments of the operation need it.

    Attributes:
        at: The time of its end, in nanoseconds since 1970.
        root: The span context of its root.
        traceparents: Those of the operation's first segment and of this one.
        tokens: Input and output tokens of the operation by then.
    """

    at: int
    root: SpanContext
    traceparents: tuple[str, ...]
    tokens: tuple[int, int]


class Segments:
    """The open and ended segments of one bundle.

    Args:
        failures: Counts what goes wrong, and what is cut.
        max_age_ns: After how long without an event another runtime's segment is ended.

    Attributes:
        open: Those that have begun and not ended, by operation.
    """

    def __init__(self, failures: Failures, max_age_ns: float) -> None:
        self.open: dict[str, OperationSpans] = {}
        self._failures = failures
        self._max_age_ns = max_age_ns
        self._next_sweep = 0.0
        self._ended: OrderedDict[str, EndedSegment] = OrderedDict()
        self._not_sampled: OrderedDict[str, None] = OrderedDict()
        """Operations of other runtimes that are not sampled."""
        self._cut_early: set[str] = set()
        """Runs of this package that were cut before they were over: further events begin nothing."""

    def keep(self, spans: OperationSpans) -> None:
        """Keep a segment that begins, and end one of the same operation that is still open."""
        before = self.open.get(spans.operation_id)
        if before is not None:
            self.cut(before, "restarted", spans.latest)
        now = monotonic_ns()
        spans.last_event_at = now
        if now > self._next_sweep:
            self._next_sweep = now + min(SWEEP_NS, self._max_age_ns)
            for each in list(self.open.values()):
                if not each.own and now - each.last_event_at > self._max_age_ns:
                    self.cut(each, "expired", each.latest)
        self.open[spans.operation_id] = spans

    def take(self, spans: OperationSpans) -> bool:
        """Remove a segment that is about to end; returns whether the caller has to end it."""
        return self.open.pop(spans.operation_id, None) is not None

    def cut(self, spans: OperationSpans, why: str, at: int) -> None:
        """End a segment whose own end was not reported."""
        if self.open.get(spans.operation_id) is not spans:
            return
        del self.open[spans.operation_id]
        if spans.own:
            self._cut_early.add(spans.operation_id)
        try:
            end_open(spans, why, at)
            self._failures.cut(why)
            if spans.parent is not None:
                spans.parent.at(spans.at(at))
                spans.parent.segments.pop(spans.operation_id, None)
            spans.end_root(spans.at(at), {names.SPAN_TRUNCATED: why, names.OUTCOME: why})
        except Exception as error:
            self._failures.note(why, error)
        self.remember(spans)

    def remember(self, spans: OperationSpans) -> None:
        """Remember a segment that has ended."""
        root = spans.root.span.get_span_context()
        latest = traceparent_of(root)
        traceparents = (*spans.traceparents[:1], latest) if latest is not None else spans.traceparents
        tokens = (spans.totals_from[0] + spans.input_tokens, spans.totals_from[1] + spans.output_tokens)
        _remember(self._ended, spans.operation_id, EndedSegment(spans.latest, root, traceparents, tokens))

    def find_ended(self, operation_id: str) -> EndedSegment | None:
        """Return the latest ended segment of an operation, if there is one."""
        return self._ended.get(operation_id)

    def ignore(self, operation_id: str) -> None:
        """Ignore an operation of another runtime, which is not sampled."""
        _remember(self._not_sampled, operation_id, None)

    def forget(self, operation_id: str) -> None:
        """Forget an operation: what comes under its id from now on is a new one."""
        self._not_sampled.pop(operation_id, None)
        self._cut_early.discard(operation_id)

    def is_ignored(self, operation_id: str) -> bool:
        """Whether events of an operation are ignored."""
        return operation_id in self._not_sampled or operation_id in self._cut_early

    def open_kinds(self) -> list[str]:
        """Return the kind of each open span."""
        return [kind for spans in list(self.open.values()) for kind in spans.open_kinds()]


def end_open(spans: OperationSpans, why: str, at: int) -> None:
    """End every span under the root of a segment that ends."""
    for opened in reversed(list(spans.open.values())):
        spans.cut(opened, at, why)
    spans.end_segments(spans.root, at)


def note_event_time(spans: OperationSpans) -> None:
    """Note when an event of another runtime came, for its operation and those that called it."""
    now = monotonic_ns()
    each: OperationSpans | None = spans
    while each is not None:
        each.last_event_at = now
        each = each.parent


def _remember(kept: OrderedDict[str, Any], key: str, value: object) -> None:
    """Keep a value under a key, and forget the oldest where they become too many."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)


DESCRIPTION_CHARACTERS = 1000
"""How much of a tool's description its spans carry."""

ENDS_THE_RUN: tuple[type[Call], ...] = (AgentCall, StepCall, ModelCall)
"""Calls whose denial is the end of the run."""

REASONS = get_args(CompletionReason)


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

    def begin(self, segment: SegmentInfo, at: int, operations: Operations, *, own: bool) -> OperationSpans:
        """Begin the root span of a segment.

        Args:
            segment: What is known of it.
            at: When it began.
            operations: The segments that are open.
            own: Whether it is a run of this package, or one that is known from events only.
        """
        base, at, links, parent, under, call = find_parent(segment, at, operations, self._common.key, own=own)
        goes_on = False
        if segment.traceparents and self._same_trace:
            earlier = parse_traceparent(segment.traceparents[-1])
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
        spans.root = OpenSpan("root", names.INVOKE_AGENT, span, None, at, at, attributes, segment.operation_id)
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

    def _take_up(self, spans: OperationSpans, segment: SegmentInfo) -> None:
        """Set what the spans of a sampled segment need."""
        spans.provider, spans.model = clean(segment.provider) or names.OTHER, clean(segment.model)
        spans.descriptions = self._descriptions(segment)
        spans.totals_from = (segment.input_tokens, segment.output_tokens)
        spans.waiting_since = segment.waiting_since_unix_nano
        if self._content.on_spans and spans.rooted:
            self._put_request(spans.root, segment)

    def complete(self, spans: OperationSpans, event: OnComplete | OnError) -> None:
        """End the root span of a segment, whatever ended it."""
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
        """Add the totals and the output of a segment to attributes, at its end."""
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
        """Note that a hook denied a call, for the span or the event of that call."""
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
        """Add the answer of a hook to the step's span; that of a tool call is in its events."""
        if not isinstance(call, ToolCall):
            attributes = {names.ANSWER_HOOK: clean(hook_id), names.ANSWER_CALL: type(call).__name__}
            spans.current_step().span.add_event(names.ANSWERED_EVENT, attributes)

    def guided(self, spans: OperationSpans, hook_id: str, feedback: str) -> None:
        """Add the `Guide` of a hook to the step's span; each asking of the model has a span of its own."""
        attributes: dict[str, Any] = {names.GUIDE_HOOK: clean(hook_id)}
        if self._content.on_spans:
            self._content.put(attributes, names.AGENT_STEP, names.GUIDE_FEEDBACK, feedback)
        spans.current_step().span.add_event(names.GUIDED_EVENT, attributes)

    def context_added(self, spans: OperationSpans, call: Call, added: AddedContext) -> None:
        """Add a text of a hook to the span of the step, or of the run."""
        attributes: dict[str, Any] = {
            names.CONTEXT_HOOK: clean(added.hook_id),
            names.CONTEXT_CALL: type(call).__name__,
        }
        if isinstance(call, ToolCall):
            attributes[names.TOOL_CALL_ID] = clean(call.tool_call_id)
        if self._content.on_spans:
            self._content.put(attributes, names.AGENT_STEP, names.CONTEXT_TEXT, added.text)
        spans.current_step().span.add_event(names.CONTEXT_EVENT, attributes)

    def _attributes(self, segment: SegmentInfo, spans: OperationSpans) -> dict[str, Any]:
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

    def _descriptions(self, segment: SegmentInfo) -> dict[str, str]:
        """Return the descriptions of tools by name; a list of tools, which an agent keeps for life, is read once."""
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

    def _put_request(self, root: OpenSpan, segment: SegmentInfo) -> None:
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
    """Return the descriptions of tools by name."""
    return {tool.name: clean(tool.description, DESCRIPTION_CHARACTERS) for tool in tools}


def segment_of_event(event: Event, ended: EndedSegment | None) -> SegmentInfo:
    """Return what the first event of an operation says about its segment, where no run has announced it.

    Args:
        event: The event.
        ended: The operation's segment before, if there was one here.
    """
    return SegmentInfo(
        operation_id=event.operation_id,
        agent_id=event.agent_id,
        user_id=event.user_id,
        tenant_id=event.tenant_id,
        parent_operation_id=event.parent_operation_id,
        tags=event.tags,
        resumed=ended is not None,
        traceparents=ended.traceparents if ended is not None else (),
        input_tokens=ended.tokens[0] if ended is not None else 0,
        output_tokens=ended.tokens[1] if ended is not None else 0,
    )


def reason_of(event: OnComplete | OnError) -> str:
    """Return why a segment ended: a known reason, or `_OTHER` for any other of another runtime."""
    reason = event.reason if isinstance(event, OnComplete) else "error"
    return reason if reason in REASONS else names.OTHER
