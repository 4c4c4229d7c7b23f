"""`TracingHooks`: trace runs with OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextvars import Token
from time import time_ns
from typing import Any, Literal

import msgspec
from msgspec import structs
from opentelemetry._logs import LoggerProvider
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider, get_current_span, get_tracer_provider, set_span_in_context

from hookline.calls import (
    AddedContext,
    Call,
    CompactCall,
    Denial,
    ModelCall,
    ModelResponse,
    StepCall,
    SubAgentCall,
    ToolCall,
)
from hookline.errors import HookUsageError
from hookline.events import EVENTS, Event, OnComplete, OnError
from hookline.hooks import Hook, Hooks
from hookline.instrumentation import (
    EvaluationResult,
    Instrumentation,
    SegmentInfo,
    StreamTimes,
    awaited_verdicts,
)
from hookline.otel import _attributes as names
from hookline.otel._attributes import error_type
from hookline.otel._call_spans import ACTIONS, KEYS, add_chat, begin_chat, end_chat
from hookline.otel._content import Content, Redact, capture_mode
from hookline.otel._context import (
    OPERATION,
    PLACE,
    Activation,
    attach,
    check_flags,
    check_one_of,
    check_positive,
    check_provider,
    detach,
    put_value,
    set_value,
    traceparent_of,
)
from hookline.otel._evaluations import add_verdicts, log_verdicts
from hookline.otel._hook_spans import executions, hook_event, hook_span, unregistrations
from hookline.otel._instruments import SCOPE, Failures, instruments_of
from hookline.otel._logs import LogEvents
from hookline.otel._metrics import MEASURED, MeasuredCall, MetricsHooks, SegmentMeasures, enter_call
from hookline.otel._open_spans import MODEL_CALLS, Common, OpenSpan, OperationSpans
from hookline.otel._pairing import end_pairing, pair_tracing
from hookline.otel._run_spans import (
    Roots,
    Segments,
    descriptions,
    end_open,
    note_event_time,
    reason_of,
    segment_of_event,
)
from hookline.signals import HookExecution

__all__ = ["TracingHooks"]


Entered = tuple[OpenSpan | None, Token[Context], Call]
"""What `leave` needs of `enter`: the span, if it is the call's own; the context before it; and the call."""


class Paired(msgspec.Struct, eq=False):
    """The state that `enter` hands to `leave` where metrics of the call are measured as well."""

    traced: Entered | None
    metrics: MetricsHooks
    measured: MeasuredCall


END_OF_TIME = 2**63
"""What a span's time must be below, in nanoseconds since 1970."""


class TracingHooks(Instrumentation):
    """Trace each run as a tree of OpenTelemetry spans.

    One instance can trace any number of runs at the same time, including their sub-agents. It installs nothing global,
    and does nothing without an SDK. Errors of the telemetry are counted and logged once, and never reach the run.

    Args:
        tracer_provider: Where spans go; by default the global one.
        meter_provider: Where the telemetry's own metrics go (open spans, failures); by default the global one.
        logger_provider: Where events go (failed models, failed runs); by default the global one.
        capture_content: Whether to record prompts, answers, arguments, results, reasons and exception messages: True
            (on spans), `"EVENT_ONLY"`, `"SPAN_AND_EVENT"` or False. By default the environment variable
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` decides; without it, nothing is recorded.
        redact: `(kind of span, name of the attribute, value) -> value`, called before content is cut. If it returns
            `None` or raises, the value is not recorded.
        max_content_chars: The most characters of content in one attribute. Longer content is cut inside its structure.
        agent_spans: Whether runs of agents become `invoke_agent` spans. Set it to False if the framework makes these;
            the spans of the run are then below the current span, which is the framework's.
        model_spans: Whether model calls become `chat` spans. Set it to False if the model's library makes these; its
            spans are then below the step.
        tool_spans: Whether tool calls become `execute_tool` spans. Set it to False if the framework makes these; its
            spans are then below the step, which has events for calls that hooks denied or answered.
        hook_spans: Whether each hook of the run becomes a span (True, `"spans"`) or a span event (`"events"`).
        resume: Whether a resumed run begins a new trace with a link (`"link"`) or continues the earlier one
            (`"same_trace"`).
        aggregate_usage: Whether the root also has the tokens of the segment: `"hookline"` under our own names,
            `"gen_ai"` under the conventions' names, which back ends add to those of the `chat` spans.
        conversation_id: The conversation of runs that do not belong to a session.
        user_ids: Whether `user.id` is recorded. It is personal data.
        openinference: Whether spans have `openinference.span.kind`, for viewers that need it.
        max_span_age: Seconds without an event after which a segment of another runtime is ended.
        id: Name of the bundle.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    encloses = frozenset({StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall})

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        meter_provider: MeterProvider | None = None,
        logger_provider: LoggerProvider | None = None,
        capture_content: bool | str | None = None,
        redact: Redact | None = None,
        max_content_chars: int = 16_000,
        agent_spans: bool = True,
        model_spans: bool = True,
        tool_spans: bool = True,
        hook_spans: bool | Literal["spans", "events"] = False,
        resume: Literal["link", "same_trace"] = "link",
        aggregate_usage: Literal["off", "hookline", "gen_ai"] = "off",
        conversation_id: str | None = None,
        user_ids: bool = False,
        openinference: bool = False,
        max_span_age: float = 86_400.0,
        id: str = "tracing",  # noqa: A002
    ) -> None:
        super().__init__(id, inherit=True)
        check_provider("tracer_provider", tracer_provider, "get_tracer")
        check_provider("meter_provider", meter_provider, "get_meter")
        check_provider("logger_provider", logger_provider, "get_logger")
        check_flags(agent_spans=agent_spans, model_spans=model_spans, tool_spans=tool_spans)
        check_flags(user_ids=user_ids, openinference=openinference)
        check_one_of("hook_spans", hook_spans, (True, False, "spans", "events"))
        check_one_of("resume", resume, ("link", "same_trace"))
        check_one_of("aggregate_usage", aggregate_usage, ("off", "hookline", "gen_ai"))
        check_positive("max_content_chars", max_content_chars, whole=True)
        check_positive("max_span_age", max_span_age)
        if conversation_id is not None and not isinstance(conversation_id, str):
            raise HookUsageError(f"`conversation_id` is text or None; got {conversation_id!r}.")
        if redact is not None and not callable(redact):
            raise HookUsageError(f"`redact` is a function of kind, name and value; got {redact!r}.")
        self._tracer = (tracer_provider or get_tracer_provider()).get_tracer(SCOPE)
        self._logs = LogEvents(logger_provider, SCOPE)
        _, self._instruments = instruments_of(meter_provider)
        self._failures = Failures(id, self._instruments)
        self._content = Content(capture_mode(capture_content), redact, max_content_chars, self._failures.note)
        kinds = names.OPENINFERENCE_KINDS if openinference else {}
        self._logged_error: OnError | None = None
        self._segments = Segments(self._failures, max_span_age * 1e9)
        self._common = Common(
            self._tracer,
            self._failures,
            kinds,
            self._segments.cut,
            agent_spans=agent_spans,
            tool_spans=tool_spans,
        )
        self._roots = Roots(
            self._common,
            self._content,
            same_trace=resume == "same_trace",
            aggregate_usage=aggregate_usage,
            conversation_id=conversation_id,
            user_ids=user_ids,
        )
        self._model_spans = model_spans
        self._enter: dict[type[Call], Callable[[OperationSpans, Any], Entered | None]] = {
            StepCall: enter_step,
            ModelCall: self._enter_model_call,
            ToolCall: enter_tool_call,
            SubAgentCall: enter_agent_call,
            CompactCall: enter_compaction,
        }
        self._measured: dict[str, SegmentMeasures] = {}
        """What is measured of the segments that this bundle traces, by operation."""
        self._hook_spans = hook_spans
        self.observers = tuple(
            Hook(id=f"{id}.{kind.hook_type}", type=kind, handler=self._observer(kind)) for kind in EVENTS.values()
        )
        self._instruments.observe_spans(self)

    # What a run of this package does with the bundle.

    def begin(self, segment: SegmentInfo) -> tuple[OperationSpans | None, Hooks | None]:
        """Begin the root span."""
        try:
            spans = self._roots.begin(segment, time_ns(), self._segments.open, own=True)
            if spans.recording:
                self._keep(spans)
                pair_tracing(segment, self)
                self._await_verdicts(spans, segment)
            return spans, self if spans.recording else None
        except Exception as error:
            self._failures.note("begin", error)
            return None, None

    def attach(self, begun: OperationSpans | None) -> None:
        """Make the root span current in the run's task."""
        if begun is None:
            return
        try:
            end_pairing(begun.operation_id)
            context = set_value(self._common.key, begun.root, set_value(OPERATION, begun.id))
            if not is_hollow(begun):
                context = put_value(set_span_in_context(begun.root.span, context), PLACE, (begun.root.span, None))
            begun.token = attach(context)
        except Exception as error:
            self._failures.note("attach", error)

    def end(self, begun: OperationSpans | None) -> None:
        """End spans that no event has ended, and restore the context of the run's task."""
        if begun is None:
            return
        try:
            end_pairing(begun.operation_id)
            if begun.token is not None:
                detach(begun.token)
            if self._hook_spans:
                executions.unwatch(begun.operation_id, self._receive_execution)
            if self._segments.open.get(begun.operation_id) in (begun, None):  # else another segment has begun since
                self._measured.pop(begun.operation_id, None)
            self._segments.cut(begun, "unfinished", time_ns())
            self._segments.forget(begun.operation_id)
        except Exception as error:
            self._failures.note("end", error)

    def carried(self, begun: OperationSpans | None) -> str | None:
        """Return the `traceparent` of the segment, for later segments to link to."""
        try:
            if begun is None or (begun.rooted and is_hollow(begun)):
                return None
            return traceparent_of(begun.root.span.get_span_context())
        except Exception as error:
            self._failures.note("carried", error)
            return None

    def enter(self, call: Call) -> Entered | Paired | None:
        """Make the span of a step, a model call, a tool call, a sub-agent call or a compaction current."""
        entered: Entered | None = None
        try:
            spans = self._segments.open.get(call.operation_id)
            if spans is not None:
                entered = self._enter[call.__class__](spans, call)
        except Exception as error:
            self._failures.note("enter", error)
        if call.__class__ not in MetricsHooks.encloses or (measures := self._measured.get(call.operation_id)) is None:
            return entered
        return Paired(entered, measures.bundle, enter_call(measures, call))

    def leave(self, entered: Entered | Paired | None, result: object, error: BaseException | None) -> None:
        """Restore the context of the run's task, and end a `chat` span, for which there is no event."""
        if entered is None:
            return
        if type(entered) is Paired:
            entered.metrics.leave(entered.measured, result, error)
            if entered.traced is None:
                return
            opened, token, call = entered.traced
        else:
            opened, token, call = entered  # type: ignore[misc]
        detach(token)
        if opened is None or (error is None and call.__class__ is not ModelCall):
            return
        try:
            if isinstance(call, ModelCall):
                spans = self._segments.open.get(call.operation_id)
                if spans is not None:
                    end_chat(spans, opened, call, result, error, self._content, self._logs)
                return
            opened.left = True
            if isinstance(error, Exception):
                opened.error_type = error_type(type(error).__name__)
            else:
                opened.outcome = "interrupted"
        except Exception as problem:
            self._failures.note("leave", problem)

    def streamed(self, call: ModelCall, times: StreamTimes) -> None:
        """Keep the times of a streamed answer until the end of the model call."""
        measures = self._measured.get(call.operation_id)
        if measures is not None:
            measures.stream = times
        spans = self._segments.open.get(call.operation_id)
        opened = None if spans is None else spans.open.get(("chat", call.step_index))
        if opened is not None:
            opened.stream = times

    def reported(self, call: ModelCall, response: ModelResponse, *, provider: str, times: tuple[int, int]) -> None:
        """Add a model call that ended earlier to the trace."""
        try:
            spans = self._segments.open.get(call.operation_id)
            if spans is not None:
                add_chat(spans, call, response, provider, times)
        except Exception as error:
            self._failures.note("reported", error)

    def _take_up(self, operation_id: str, measures: SegmentMeasures) -> bool:
        """Measure an operation with each event and call from now on, unless that is done for another bundle."""
        present = self._measured.get(operation_id)
        if present is not None and present.bundle is not measures.bundle:
            return False
        self._measured[operation_id] = measures
        return True

    def refused(self, call: Call, denial: Denial, *, cause: BaseException | None, ran: bool, stop: bool) -> None:
        """Keep a denial until the event of the call comes."""
        try:
            spans = self._segments.open.get(call.operation_id)
            if spans is not None:
                self._roots.refused(spans, call, denial, cause, ran=ran, stop=stop)
        except Exception as error:
            self._failures.note("refused", error)

    def answered(self, call: Call, hook_id: str) -> None:
        """Add the answer of a hook to the trace."""
        try:
            spans = self._segments.open.get(call.operation_id)
            if spans is not None:
                self._roots.answered(spans, call, hook_id)
        except Exception as error:
            self._failures.note("answered", error)

    def guided(self, call: ModelCall, hook_id: str, feedback: str) -> None:
        """Add the `Guide` of a hook to the trace."""
        try:
            spans = self._segments.open.get(call.operation_id)
            if spans is not None:
                self._roots.guided(spans, hook_id, feedback)
        except Exception as error:
            self._failures.note("guided", error)

    def context_added(self, call: Call, added: AddedContext) -> None:
        """Add a text that a hook has added for the model to the trace."""
        try:
            spans = self._segments.open.get(call.operation_id)
            if spans is not None:
                self._roots.context_added(spans, call, added)
        except Exception as error:
            self._failures.note("context_added", error)

    def record_evaluation(self, operation_id: str, results: Sequence[EvaluationResult]) -> bool:
        """Record verdicts on a run that this bundle has traced: `gen_ai.evaluation.result` events.

        While the run is open, its root span gets them too; `await_verdicts` keeps it open. A run that has ended gets
        log records in the context of its root span, which need a logger provider.

        Args:
            operation_id: The run.
            results: The verdicts.

        Returns:
            Whether the run is known: it is open, or one of the thousand that ended last.
        """
        try:
            spans, ended = self._segments.open.get(operation_id), self._segments.find_ended(operation_id)
            if spans is not None:
                add_verdicts(spans, results, self._content, self._logs)
            elif ended is not None:
                log_verdicts(operation_id, ended.root, results, self._content, self._logs)
            return spans is not None or ended is not None
        except Exception as error:
            self._failures.note("record_evaluation", error)
            return False

    def _await_verdicts(self, spans: OperationSpans, segment: SegmentInfo) -> None:
        """Keep the root span of a run open beyond its end, if somebody is going to judge the run."""
        awaited = awaited_verdicts()
        if awaited is None or segment.parent_operation_id is not None:
            return

        def receive(results: Sequence[EvaluationResult]) -> None:
            try:
                add_verdicts(spans, results, self._content, self._logs)
            except Exception as error:
                self._failures.note("verdicts", error)

        spans.held = True
        awaited.wait(segment.operation_id, receive)

    def _enter_model_call(self, spans: OperationSpans, call: ModelCall) -> Entered | None:
        if not spans.descriptions and call.tools:
            spans.descriptions = descriptions(call.tools)  # of another framework no more is known before
        if not self._model_spans:
            return enter_foreign(spans, call)
        opened = begin_chat(spans, call, self._content)
        if opened is None:
            return None
        # Hooks may have put something of theirs into the present context.
        context = opened.context = set_span_in_context(opened.span)
        return opened, attach(context), call

    # Events, which any runtime may send.

    def _observer(self, kind: type[Event]) -> Callable[[Event], None]:
        find, content, failures = self._segments.open.get, self._content, self._failures
        is_measured = kind in MEASURED
        measures_of = self._measured.pop if kind is OnComplete else self._measured.get
        ends, key_of = kind in KEYS, KEYS.get(kind, no_key)
        action: Callable[..., None] = self._complete if kind in (OnComplete, OnError) else ACTIONS[kind]

        def observe(event: Event) -> None:
            try:
                spans = find(event.operation_id)
                opened = spans.open.get(key_of(event)) if ends and spans is not None else None
                if is_measured and (measures := measures_of(event.operation_id, None)) is not None:
                    context = None
                    if opened is not None and spans is not None:
                        context = opened.context or spans.inside(opened)
                    measures.bundle._measure(measures, event, context)  # first, while the span is open
                at = event.time_unix_nano
                if at.__class__ is not int or not 0 <= at < END_OF_TIME:  # it would spoil a whole batch of spans
                    event = structs.replace(event, time_unix_nano=time_ns())
                if spans is None:
                    spans = self._begin_unannounced(event)
                if spans is None or spans.last_event is event:
                    return
                spans.last_event = event
                if not spans.own:
                    note_event_time(spans)
                if ends:
                    action(spans, opened, event, content)
                else:
                    action(spans, event, content)
            except Exception as error:
                failures.note(str(event.hook_type), error)

        return observe

    def _begin_unannounced(self, event: Event) -> OperationSpans | None:
        """Begin a segment by an event of another runtime; `None` if the event begins none.

        An error that is reported after the end of its operation is logged.
        """
        operation_id = event.operation_id
        ended = self._segments.find_ended(operation_id)
        if isinstance(event, OnError) and ended is not None and event is not self._logged_error:
            self._logged_error = event
            self._logs.run_failed(event, ended.root, self._content)
        begins = str(event.hook_type).startswith("before")
        if ended is not None:
            begins = begins and event.time_unix_nano > ended.at
        else:
            begins = begins or isinstance(event, OnComplete | OnError)
        if not begins or self._segments.is_ignored(operation_id):
            return None
        segment = segment_of_event(event, ended)
        spans = self._roots.begin(segment, event.time_unix_nano, self._segments.open, own=False)
        if not spans.recording:
            self._segments.ignore(operation_id)
            return None
        self._keep(spans)
        unregistrations.watch(operation_id, self._end_unregistered)
        return spans

    def _keep(self, spans: OperationSpans) -> None:
        self._segments.keep(spans)
        if self._hook_spans:
            executions.watch(spans.operation_id, self._receive_execution)

    def _complete(self, spans: OperationSpans, event: OnComplete | OnError, content: Content) -> None:
        if not self._segments.take(spans):
            return
        reason = reason_of(event)
        try:
            end_open(spans, reason, event.time_unix_nano)
            self._roots.complete(spans, event)
        finally:
            self._segments.remember(spans)
        if isinstance(event, OnError):
            self._logs.run_failed(event, spans.root.span.get_span_context(), self._content)

    def _receive_execution(self, operation_id: str, execution: HookExecution | None) -> None:
        if execution is None:
            return
        try:
            spans = self._segments.open.get(operation_id)
            ended = self._segments.find_ended(operation_id)
            root = None
            if spans is not None:
                root = spans.root.span.get_span_context()
            elif ended is not None:
                root = ended.root
            if self._hook_spans == "events":
                hook_event(self._logs, execution, spans, root, self._content)
            else:
                hook_span(self._common, execution, spans, root, self._content)
        except Exception as error:
            self._failures.note("hook_executed", error)

    def _end_unregistered(self, operation_id: str, execution: HookExecution | None) -> None:
        """End the spans of an operation that another runtime has unregistered."""
        try:
            unregistrations.unwatch(operation_id, self._end_unregistered)
            executions.unwatch(operation_id, self._receive_execution)
            self._segments.forget(operation_id)
            spans = self._segments.open.get(operation_id)
            if spans is not None and not spans.own:
                self._segments.cut(spans, "unregistered", spans.latest)
        except Exception as error:
            self._failures.note("operation_unregistered", error)

    # For code that runs tools itself, and for whoever sends the context on.

    def activate(self, operation_id: str, call_id: str | None = None) -> Activation:
        """Make the current span of an operation current inside `with`, for your own runtime.

        Args:
            operation_id: The run. Nothing happens if it is not traced.
            call_id: One of its tool calls; by default the current step.
        """
        spans = self._segments.open.get(operation_id)
        if spans is None:
            return Activation(None)
        tool = spans.open.get(("tool", call_id)) if call_id is not None else None
        context = set_value(OPERATION, spans.id, set_span_in_context((tool or spans.current_step()).span))
        return Activation(context)

    def traceparent(self, operation_id: str) -> str | None:
        """Return the W3C `traceparent` header of a run, to send to other services; `None` if it is not traced."""
        return self.carried(self._segments.open.get(operation_id))

    def close(self, at: int | None = None) -> None:
        """End all open spans. Call it before you shut the provider down; it may be called again.

        Args:
            at: The end time of the spans, in nanoseconds since 1970, but not before the last event; by default now.
        """
        at = time_ns() if at is None else at
        for spans in list(self._segments.open.values()):
            self._segments.cut(spans, "shutdown", at)

    def open_kinds(self) -> list[str]:
        """Return the kind of each open span, for the gauge of open spans."""
        return self._segments.open_kinds()


def no_key(event: Event) -> Hashable:
    """Return no key, for an event that ends no span."""
    return None


def enter_step(spans: OperationSpans, call: StepCall) -> Entered | None:
    """Make the span of the latest step current."""
    opened = spans.step
    if opened is None:
        return None
    context = opened.context = set_span_in_context(opened.span)
    return opened, attach(context), call


def enter_tool_call(spans: OperationSpans, call: ToolCall) -> Entered | None:
    """Make the span of a tool call current, or the step where somebody else makes that span."""
    if not spans.common.tool_spans:
        return enter_foreign(spans, call)
    opened = spans.open.get(("tool", call.tool_call_id))
    if opened is None:
        return None
    context = set_span_in_context(opened.span)
    opened.context = put_value(context, PLACE, (opened.span, call.tool_call_id))
    return opened, attach(context), call


def enter_agent_call(spans: OperationSpans, call: SubAgentCall) -> Entered | None:
    """Make the span of a sub-agent call current."""
    opened = newest(spans, names.CALL_AGENT, call.callee_id)
    if opened is None:
        return None
    context = opened.context = set_span_in_context(opened.span)
    return opened, attach(set_value(spans.common.key, opened, context)), call


def enter_compaction(spans: OperationSpans, call: CompactCall) -> Entered | None:
    """Make the span of a compaction current."""
    opened = newest(spans, names.COMPACT_CONTEXT, "")
    if opened is None:
        return None
    context = opened.context = set_span_in_context(opened.span)
    return opened, attach(context), call


def enter_foreign(spans: OperationSpans, call: ModelCall | ToolCall) -> Entered | None:
    """Make the step current for a call whose span somebody else makes."""
    within = spans.step_of(call.step_index)
    return None if is_inside(within, spans) else (None, attach(set_span_in_context(within.span)), call)


def newest(spans: OperationSpans, kind: str, callee: str) -> OpenSpan | None:
    """Return the open span of a kind that began last."""
    found = (each for each in reversed(spans.open.values()) if each.kind == kind and each.callee == callee)
    return next(found, None)


def is_inside(within: OpenSpan, spans: OperationSpans) -> bool:
    """Whether foreign spans are inside a step without a change of the current context.

    An adapter cannot stand around a step, so that there the run is current, or the framework's own span of it. A span
    that has begun since the step did is inside it: one of a hook, or the framework's own of the call.
    """
    if within is spans.root:
        return True
    span = get_current_span()
    if span is within.span:
        return True
    attributes = getattr(span, "attributes", None) or {}
    if not span.is_recording() or names.OPERATION_ID in attributes:
        return False
    return (getattr(span, "start_time", None) or 0) >= within.began or attributes.get(
        names.OPERATION_NAME
    ) in MODEL_CALLS


def is_hollow(spans: OperationSpans) -> bool:
    """Whether the root is only a copy of the span that the segment began in, as the tracer does nothing."""
    context = spans.root.span.get_span_context()
    return not context.is_valid or context.span_id == get_current_span(spans.base).get_span_context().span_id
