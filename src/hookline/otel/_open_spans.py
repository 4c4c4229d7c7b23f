"""Start and end the spans of one segment: each is under its parent and ends once.

No span is ever made current here. Each is given its parent, so that it does not matter in which task, in which order or
for which of several parallel calls an event arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from opentelemetry.context import Context, create_key
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from hookline.calls import Call, Denial
from hookline.instrumentation import StreamTimes
from hookline.otel import _attributes as names
from hookline.otel._instruments import Failures

__all__ = ["MARKS", "MODEL_CALLS", "Common", "KeptAttributes", "OpenSpan", "OperationSpans", "finish", "merge"]


MODEL_CALLS = ("chat", "generate_content", "text_completion")
"""What the conventions call the asking of a model, in `gen_ai.operation.name`."""

CALLS = (*MODEL_CALLS, names.EXECUTE_TOOL)


class OpenSpan(msgspec.Struct, eq=False):
    """An open span: it has begun and not ended.

    Attributes:
        key: Its place in the table.
        kind: What kind of work it is.
        span: The span.
        parent: The one above; `None` for the root.
        began: When, in nanoseconds since 1970.
        stamp: When, by the event that said so.
        attributes: Those it was made with: they must still be there at its end.
        context: With the span in it, made when it is first asked for.
        operation_id: Whose it is.
        callee: Of a call of a sub-agent: its id.
        child: The operation that this became.
        outcome: Why that ended.
        error_type: What it failed with.
        left: Of a call of a sub-agent: whether its work has failed, and only its event is still to come.
        around: Where agents have no spans: the span of somebody else that it is inside.
        stream: Of a model call: the times of its streamed answer; `None` if it is not streamed.
        ending: Of a step that is over while sub-agents that it has started run on: its last attributes, and what it
            failed with. The span ends with the last of them.
    """

    key: Hashable
    kind: str
    span: Span
    parent: OpenSpan | None
    began: int
    stamp: int
    attributes: dict[str, Any]
    operation_id: str
    around: Span | None = None
    context: Context | None = None
    callee: str = ""
    child: str | None = None
    outcome: str | None = None
    error_type: str | None = None
    left: bool = False
    stream: StreamTimes | None = None
    ending: tuple[dict[str, Any], str | None] | None = None

    def not_after_around(self, at: int) -> int:
        """Return a time, or the end of the foreign span around this one, if that is earlier."""
        return at if self.around is None else min(at, getattr(self.around, "end_time", None) or at)


class KeptAttributes(NamedTuple):
    """Name and last attributes of spans that many calls share, so nothing may change them.

    Attributes:
        name: The name of the span.
        attributes: The attributes that say what it is.
        toolset: Of a tool: where it comes from.
    """

    name: str
    attributes: Mapping[str, str]
    toolset: str = ""


class Common:
    """The tracer and the settings that all segments of a bundle share.

    Args:
        tracer: Makes the spans.
        failures: Counts what goes wrong.
        kinds: What OpenInference calls each kind of span, where that is wanted.
        cut: Ends a segment whose own end was not reported: the segment, why, when.
        agent_spans: Whether runs of agents have spans.
        tool_spans: Whether tool calls have spans.
    """

    def __init__(
        self,
        tracer: Tracer,
        failures: Failures,
        kinds: Mapping[str, str],
        cut: Callable[[OperationSpans, str, int], None],
        *,
        agent_spans: bool,
        tool_spans: bool,
    ) -> None:
        self.tracer = tracer
        self.failures = failures
        self.kinds = kinds
        self.cut = cut
        self.agent_spans = agent_spans
        self.tool_spans = tool_spans
        self.tools: dict[tuple[str, str], KeptAttributes] = {}
        """Attributes of tool calls, by agent and tool."""
        self.chats: dict[tuple[str, str], KeptAttributes] = {}
        """Attributes of model calls, by provider and model."""
        self.key = create_key("hookline-span")
        """Where the context says inside which root or call of a sub-agent it is; two bundles have two of them."""


class OperationSpans:
    """The open spans of one segment.

    Attributes:
        operation_id: The run.
        id: The run as attributes have it.
        agent: Its agent, as attributes have it.
        open: The spans under the root, by key, in the order in which they began.
        root: The span of the segment; where agents have none, what stands for it is the span that it began in.
        latest: The latest time seen: time never runs backwards in a trace, whatever the machine's clock does.
        denials: What hooks have denied, by the class of the call or a tool call's id, until its event comes.
    """

    __slots__ = (
        "agent",
        "base",
        "call",
        "common",
        "compacted",
        "conversation_id",
        "decided",
        "denials",
        "descriptions",
        "finish_reason",
        "fixed",
        "held",
        "held_until",
        "id",
        "input_tokens",
        "last_event",
        "last_event_at",
        "latest",
        "model",
        "next_call",
        "open",
        "operation_id",
        "output_tokens",
        "own",
        "parent",
        "previous",
        "provider",
        "recording",
        "root",
        "rooted",
        "segments",
        "step",
        "stopped_by",
        "token",
        "totals_from",
        "traceparents",
        "under",
        "waiting_since",
    )

    def __init__(self, operation_id: str, agent: str, base: Context, common: Common, *, own: bool) -> None:
        self.operation_id = self.id = operation_id
        self.agent = agent
        self.common = common
        self.own = own
        """Whether a run of this package has begun it, and will end it."""
        self.last_event_at = 0
        """Of another runtime's: when the last event came, on this process's own clock."""
        self.last_event: object = None
        """The event that came last: two registrations of a bundle get each event twice."""
        self.base = base
        """The context that the segment began in."""
        self.open: dict[Hashable, OpenSpan] = {}
        self.latest = 0
        self.root: OpenSpan
        self.rooted = common.agent_spans
        """Whether the root is a span of its own."""
        self.recording = True
        """Whether the segment is sampled."""
        self.held = False
        """Whether the root ends only when there is a verdict on the run."""
        self.held_until: int | None = None
        """When the segment of such a root ended."""
        self.fixed = False
        """Whether a segment without a root goes on in the trace of an earlier one, whatever span is current."""
        self.step: OpenSpan | None = None
        self.parent: OperationSpans | None = None
        self.under: OpenSpan | None = None
        """The span of the parent operation that the root is under."""
        self.segments: dict[str, OperationSpans] = {}
        """Segments of sub-agents that are under this one's spans."""
        self.call: OpenSpan | None = None
        """The call of the parent operation that this segment answers."""
        self.token: Any = None
        self.next_call = 0
        self.denials: dict[type[Call] | str, tuple[Denial, BaseException | None]] = {}
        self.stopped_by: tuple[type[Call], Denial, BaseException | None] | None = None
        """Which denial ended the run."""
        self.decided: set[str | None] = set()
        self.descriptions: dict[str, str] = {}
        self.conversation_id: str | None = None
        self.model = self.provider = ""
        self.traceparents: tuple[str, ...] = ()
        self.previous: Sequence[Link] = ()
        """Links to the segments before."""
        self.waiting_since: int | None = None
        self.compacted = False
        self.finish_reason: str | None = None
        self.input_tokens = self.output_tokens = 0
        self.totals_from = (0, 0)
        """Tokens of earlier segments."""

    def at(self, time_unix_nano: int) -> int:
        """Return a time, or the latest one so far, if that is later."""
        if time_unix_nano > self.latest:
            self.latest = time_unix_nano
        return self.latest

    def around(self) -> Context:
        """Return the context of spans under the root, where agents have no spans.

        It is inside the span that is current, such as the framework's own span of the agent; beside it, if that is
        the framework's own span of the call with which a step begins.
        """
        span = get_current_span()
        if not self.own or self.fixed or not span.get_span_context().is_valid or self.has(span):
            return self.inside(self.root)
        attributes = getattr(span, "attributes", None) or {}
        if names.OPERATION_ID in attributes or getattr(span, "end_time", None) is not None:  # another bundle's, or over
            return self.inside(self.root)
        above = getattr(span, "parent", None)
        began = getattr(span, "start_time", None) or 0
        if above is not None and began >= self.root.began and attributes.get(names.OPERATION_NAME) in CALLS:
            span = NonRecordingSpan(above)
        return set_span_in_context(span, self.base)

    def inside(self, opened: OpenSpan) -> Context:
        """Return the context inside a span: its children begin in it."""
        context = opened.context
        if context is None:
            context = opened.context = set_span_in_context(opened.span, self.base)
        return context

    def begin(
        self,
        key: Hashable,
        kind: str,
        name: str,
        parent: OpenSpan,
        at: int,
        attributes: dict[str, Any],
        *,
        span_kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> OpenSpan | None:
        """Begin a span under another one.

        Returns:
            The span; `None` if it was begun by the same event already.
        """
        stamp = at
        if at < self.latest:
            at = self.latest
        self.latest = at
        there = self.open.get(key)
        if there is not None:
            if there.stamp == stamp:
                return None
            self.cut(there, at, "restarted")
        common = self.common
        if common.kinds:
            attributes[names.OPENINFERENCE_KIND] = common.kinds[kind]
        around: Span | None = None
        if self.rooted:
            context = parent.context or self.inside(parent)
        elif parent is self.root:
            context, links = self.around(), links or self.previous
            around = get_current_span(context)
        else:
            context, around = parent.context or self.inside(parent), parent.around
            at = parent.not_after_around(at)
        span = common.tracer.start_span(name, context, span_kind, attributes, links, at)
        opened = self.open[key] = OpenSpan(key, kind, span, parent, at, stamp, attributes, self.operation_id, around)
        return opened

    def end(
        self,
        opened: OpenSpan,
        at: int,
        attributes: dict[str, Any] | None = None,
        *,
        error_type: str | None = None,
        message: str | None = None,
    ) -> bool:
        """End a span, unless that has happened.

        Args:
            opened: The span.
            at: When.
            attributes: What is known of it only now.
            error_type: What it failed with, if it did.
            message: What the failure said, where content may be recorded.
        """
        if self.open.pop(opened.key, None) is None:
            return False
        if self.segments:
            self.end_segments(opened, at)
        if at < self.latest:
            at = self.latest
        self.latest = at
        try:
            finish(opened, at, attributes, error_type, message)
        except Exception as error:
            self.common.failures.note("end", error)
        parent = opened.parent
        if parent is not None and parent.ending is not None and not self.children(parent):
            last, failure = parent.ending
            self.end(parent, at, last, error_type=failure)
        return True

    def end_root(
        self, at: int, attributes: dict[str, Any], error_type: str | None = None, message: str | None = None
    ) -> None:
        """End the root span, unless the segment has none of its own, or waits for a verdict on the run."""
        if self.rooted:
            finish(self.root, at, attributes, error_type, message, end=not self.held)
            if self.held:
                self.held_until = max(self.root.not_after_around(at), self.root.began)

    def release(self) -> None:
        """End a root span that has waited for a verdict, at the time at which its segment ended."""
        if self.held:
            self.held = False
            if self.held_until is not None:
                self.root.span.end(self.held_until)

    def runs_agent(self, opened: OpenSpan) -> bool:
        """Whether a span is the call of a sub-agent that still runs."""
        return any(segment.under is opened for segment in self.segments.values())

    def children(self, opened: OpenSpan) -> list[OpenSpan]:
        """Return the open spans under another one, the newest first."""
        return [each for each in reversed(list(self.open.values())) if each.parent is opened]

    def cut(self, opened: OpenSpan, at: int, why: str) -> None:
        """End a span whose own end was not reported, and all spans under it."""
        for child in self.children(opened):
            self.cut(child, at, why)
        if self.end(opened, at, {names.SPAN_TRUNCATED: why}):
            self.common.failures.cut(why)

    def end_segments(self, opened: OpenSpan, at: int) -> None:
        """End the open segments of sub-agents under a span."""
        for segment in list(self.segments.values()):
            if segment.under is opened:
                self.common.cut(segment, "parent_ended", self.at(at))
                self.at(segment.latest)

    def step_of(self, step_index: int | None) -> OpenSpan:
        """Return the span of a step; without one, that of the latest step, or the root."""
        return self.open.get(("step", step_index)) or self.current_step()

    def current_step(self) -> OpenSpan:
        """Return the span of the latest step, or the root if the step is over."""
        step = self.step
        return step if step is not None and step.ending is None and self.open.get(step.key) is step else self.root

    def has(self, span: Span) -> bool:
        """Whether a span is one of the open ones."""
        return self.root.span is span or any(each.span is span for each in self.open.values())

    def open_kinds(self) -> list[str]:
        """Return the kind of each open span, the root included."""
        root = [names.INVOKE_AGENT] if self.rooted else []
        return [*root, *(each.kind for each in list(self.open.values()))]


def finish(
    opened: OpenSpan,
    at: int,
    attributes: dict[str, Any] | None = None,
    error_type: str | None = None,
    message: str | None = None,
    *,
    end: bool = True,
) -> None:
    """Set the last attributes and the status of a span, and end it, unless `end` is False."""
    span = opened.span
    try:
        if error_type is not None:
            attributes = attributes or {}
            attributes[names.ERROR_TYPE] = error_type
            span.set_status(Status(StatusCode.ERROR, message))
        if attributes:
            if names.CONTENT_TRUNCATED in attributes and names.CONTENT_TRUNCATED in opened.attributes:
                attributes = merge({mark: opened.attributes[mark] for mark in MARKS}, attributes)
            span.set_attributes(attributes)
        # A span holds so many attributes and then forgets the oldest: exactly those that say what it is.
        if getattr(span, "dropped_attributes", 0):
            span.set_attributes(opened.attributes)
            if error_type is not None:
                span.set_attribute(names.ERROR_TYPE, error_type)
    finally:
        if opened.around is not None:
            at = opened.not_after_around(at)
        if end:
            span.end(at if at > opened.began else opened.began)


MARKS = (names.CONTENT_TRUNCATED, names.CONTENT_LENGTH)


def merge(attributes: dict[str, Any], further: dict[str, Any]) -> dict[str, Any]:
    """Add attributes to others, and join what both say about content that was cut."""
    marks = {mark: [*attributes[mark], *further[mark]] for mark in MARKS if mark in attributes and mark in further}
    attributes |= further
    attributes |= marks
    return attributes
