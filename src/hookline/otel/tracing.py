"""`TracingHooks`: runs as spans in OpenTelemetry."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from time import time_ns
from typing import Any, Literal

from msgspec import structs
from opentelemetry._logs import LoggerProvider
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanContext, TracerProvider, get_tracer_provider, set_span_in_context

from hookline._enclosing import EnclosingHooks, Segment
from hookline._hook_records import Hook
from hookline.calls import Call, CompactCall, Denial, ModelCall, StepCall, SubAgentCall, ToolCall
from hookline.errors import HookUsageError
from hookline.events import EVENTS, Event, OnComplete, OnError
from hookline.otel import _attributes as names
from hookline.otel._actions import ACTIONS
from hookline.otel._chats import begin_chat, end_chat
from hookline.otel._content import Content, Redact, capture_mode
from hookline.otel._context import CALL, OPERATION, Activation, attach, detach, set_value
from hookline.otel._failures import Failures
from hookline.otel._feeds import executions, unregistrations
from hookline.otel._hook_spans import hook_event, hook_span
from hookline.otel._instruments import SCOPE, instruments_of
from hookline.otel._links import traceparent_of
from hookline.otel._log_events import LogEvents
from hookline.otel._options import flags, one_of, positive, provider
from hookline.otel._roots import Roots, segment_of_event
from hookline.otel._spans import OpenSpan, OperationSpans, finish
from hookline.otel._text import clean
from hookline.signals import HookExecution

__all__ = ["TracingHooks"]

REMEMBERED = 1000
"""Of how many operations that are over the root is remembered, for what is told of them afterwards."""

END_OF_TIME = 2**63
"""What a span's time must be below, in nanoseconds since 1970."""

SWEEP_NS = 60_000_000_000
"""How often spans are looked for that have become too old."""


class TracingHooks(EnclosingHooks):
    """A bundle that shows each run as a tree of spans, by OpenTelemetry's conventions for generative AI.

    One instance may trace any number of runs, also at the same time; sub-agents are traced along. Nothing global is
    installed, and without an SDK nothing is done. Whatever goes wrong in here is counted and logged once, and never
    reaches the run.

    Args:
        tracer_provider: Where spans go; the process's unless given.
        meter_provider: Where the telemetry's own metrics go (open spans, failures); the process's unless given.
        logger_provider: Where events go (failed models, failed runs); the process's unless given.
        capture_content: Whether prompts, answers, arguments, results, reasons and what exceptions say are recorded:
            True (on spans), `"EVENT_ONLY"`, `"SPAN_AND_EVENT"` or False. Unless given, the environment variable
            `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` decides, and where it is not set, nothing is.
        redact: `(kind of span, name of the attribute, value) -> value`, called before content is cut; `None` leaves it
            out, and so does an exception.
        max_content_chars: How many characters of content one attribute holds; the rest is cut inside of its structure.
        model_spans: Whether model calls become `chat` spans; False where the model's library makes them itself.
        hook_spans: Whether each hook of the run becomes a span (True, `"spans"`) or an event of one (`"events"`).
        resume: Whether a segment after a pause begins a trace with a link to the earlier ones, or goes on in theirs.
        aggregate_usage: Whether the tokens of a segment stand on its root as well: `"hookline"` under our own names,
            `"gen_ai"` under those of the conventions, which back ends add to those of the `chat` spans.
        conversation_id: Of runs that are no task of a session, which has one itself.
        user_ids: Whether `user.id` is recorded; it is personal data.
        openinference: Whether spans also say their `openinference.span.kind`, for viewers that know no other.
        max_span_age: Seconds after which a segment that was never told to be over is ended.
        id: Name of the bundle.

    Raises:
        HookUsageError: If an argument makes no sense.
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
        model_spans: bool = True,
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
        provider("tracer_provider", tracer_provider, "get_tracer")
        provider("meter_provider", meter_provider, "get_meter")
        provider("logger_provider", logger_provider, "get_logger")
        flags(model_spans=model_spans, user_ids=user_ids, openinference=openinference)
        one_of("hook_spans", hook_spans, (True, False, "spans", "events"))
        one_of("resume", resume, ("link", "same_trace"))
        one_of("aggregate_usage", aggregate_usage, ("off", "hookline", "gen_ai"))
        positive("max_content_chars", max_content_chars, whole=True)
        positive("max_span_age", max_span_age)
        if conversation_id is not None and not isinstance(conversation_id, str):
            raise HookUsageError(f"`conversation_id` is text or None; got {conversation_id!r}.")
        if redact is not None and not callable(redact):
            raise HookUsageError(f"`redact` is a function of kind, name and value; got {redact!r}.")
        self._tracer = (tracer_provider or get_tracer_provider()).get_tracer(SCOPE)
        self._logs = LogEvents(logger_provider, SCOPE)
        _, self._instruments = instruments_of(meter_provider)
        self._failures = Failures(id, self._instruments)
        self._content = Content(capture_mode(capture_content), redact, max_content_chars, self._failures.note)
        self._roots = Roots(
            self._tracer,
            self._content,
            self._failures,
            same_trace=resume == "same_trace",
            aggregate_usage=aggregate_usage,
            conversation_id=conversation_id,
            user_ids=user_ids,
        )
        self._model_spans = model_spans
        self._hook_spans = hook_spans
        self._openinference = openinference
        self._max_age_ns = math.inf if max_span_age == math.inf else int(max_span_age * 1e9)
        self._next_sweep = 0
        self._operations: dict[str, OperationSpans] = {}
        self._over: OrderedDict[str, tuple[int, SpanContext, tuple[str, ...]]] = OrderedDict()
        """When segments ended, where their roots were, and the `traceparent`s of the operation's first and latest."""
        self._silent: OrderedDict[str, None] = OrderedDict()
        """Operations of foreign runtimes that are not sampled."""
        self.observers = tuple(
            Hook(id=f"{id}.{kind.hook_type}", type=kind, handler=self._observer(kind)) for kind in EVENTS.values()
        )
        self._instruments.observe_spans(self)

    # What a run of this package does with the bundle.

    def begin(self, segment: Segment) -> tuple[OperationSpans | None, bool]:
        """Begin the root span, and make it current in the run's task."""
        try:
            at = time_ns()
            spans = self._roots.begin(segment, at, self._operations)
            wanted = spans.root.span.is_recording()
            if wanted:
                self._keep(spans, at)
                if self._hook_spans:
                    executions.watch(segment.operation_id, self._executed)
            spans.token = attach(spans.inside(spans.root))
            return spans, wanted
        except Exception as error:
            self._failures.note("begin", error)
            return None, False

    def end(self, begun: OperationSpans | None) -> None:
        """End what no event has ended, and give the run's task its context back."""
        if begun is None:
            return
        try:
            detach(begun.token, sys.exception())
            if self._hook_spans:
                executions.unwatch(begun.operation_id, self._executed)
            if self._operations.get(begun.operation_id) is begun:
                self._cut(begun, "unfinished", time_ns())
        except Exception as error:
            self._failures.note("end", error)

    def carried(self, begun: OperationSpans | None) -> str | None:
        """Where the segment is in a trace."""
        try:
            return traceparent_of(begun.root.span.get_span_context()) if begun is not None else None
        except Exception as error:
            self._failures.note("carried", error)
            return None

    def enter(self, call: Call) -> tuple[OpenSpan, object, Call] | None:
        """Make the span of a step, a model call, a tool call, a sub-agent call or a compaction current."""
        try:
            spans = self._operations.get(call.operation_id)
            opened = self._span_of(spans, call) if spans is not None else None
            if spans is None or opened is None:
                return None
            context = set_span_in_context(opened.span)  # hooks may have put something of theirs into the present one
            if call.__class__ is SubAgentCall:
                context = set_value(CALL, opened, context)
            return opened, attach(context), call
        except Exception as error:
            self._failures.note("enter", error)
            return None

    def leave(self, entered: tuple[OpenSpan, object, Call] | None, result: object, error: BaseException | None) -> None:
        """Give the run's task its context back, and end a `chat` span, for which there is no event."""
        if entered is None:
            return
        opened, token, call = entered
        detach(token, error)
        try:
            if isinstance(call, ModelCall):
                spans = self._operations.get(call.operation_id)
                if spans is not None:
                    end_chat(spans, opened, call, result, error, self._content, self._logs)
            elif isinstance(error, Exception):
                opened.error_type = clean(type(error).__name__)
            elif error is not None:
                opened.outcome = "interrupted"
        except Exception as problem:
            self._failures.note("leave", problem)

    def refused(self, call: Call, denial: Denial, *, cause: BaseException | None, ran: bool, stop: bool) -> None:
        """Keep who has denied what until the event comes that tells of it."""
        try:
            spans = self._operations.get(call.operation_id)
            if spans is not None:
                self._roots.refused(spans, call, denial, cause, ran=ran, stop=stop)
        except Exception as error:
            self._failures.note("refused", error)

    def _span_of(self, spans: OperationSpans, call: Call) -> OpenSpan | None:
        kind = call.__class__
        if kind is StepCall:
            return spans.step
        if kind is ToolCall:
            return spans.open.get(("tool", call.tool_call_id))  # type: ignore[attr-defined]
        if isinstance(call, ModelCall):
            return begin_chat(spans, call, self._content) if self._model_spans else None
        wanted = names.COMPACT_CONTEXT if kind is CompactCall else names.CALL_AGENT
        callee = call.callee_id if isinstance(call, SubAgentCall) else ""
        found = (each for each in reversed(spans.open.values()) if each.kind == wanted and each.callee == callee)
        return next(found, None)

    # Events, which any runtime may send.

    def _observer(self, kind: type[Event]) -> Callable[[Event], None]:
        find, content, failures = self._operations.get, self._content, self._failures
        action = ACTIONS.get(kind, self._complete)

        def observe(event: Event) -> None:
            try:
                if not 0 <= event.time_unix_nano < END_OF_TIME:  # one such time would spoil a whole batch of spans
                    event = structs.replace(event, time_unix_nano=time_ns())
                spans = find(event.operation_id) or self._unannounced(event)
                if spans is not None:
                    action(spans, event, content)
            except Exception as error:
                failures.note(str(event.hook_type), error)

        return observe

    def _unannounced(self, event: Event) -> OperationSpans | None:
        """An event of an operation that no run has begun here: another runtime's, or one that is over."""
        operation_id = event.operation_id
        over = self._over.get(operation_id)
        if isinstance(event, OnError) and over is not None:
            self._logs.run_failed(event, over[1], self._content)
            return None
        begins = str(event.hook_type).startswith("before") or isinstance(event, OnComplete | OnError)
        if not begins or operation_id in self._silent or (over is not None and event.time_unix_nano <= over[0]):
            return None
        segment = segment_of_event(event, over[2] if over is not None else ())
        spans = self._roots.begin(segment, event.time_unix_nano, self._operations)
        if not spans.root.span.is_recording():
            remember(self._silent, operation_id, None)
            return None
        self._keep(spans, event.time_unix_nano)
        unregistrations.watch(operation_id, self._unregistered)
        if self._hook_spans:
            executions.watch(operation_id, self._executed)
        return spans

    def _complete(self, spans: OperationSpans, event: OnComplete | OnError, content: Content) -> None:
        if self._operations.pop(spans.operation_id, None) is None:
            return
        reason = event.reason if isinstance(event, OnComplete) else "error"
        try:
            self._end_open(spans, reason, event.time_unix_nano)
            self._roots.complete(spans, event)
        finally:
            self._remember(spans)
        if isinstance(event, OnError):
            self._logs.run_failed(event, spans.root.span.get_span_context(), self._content)

    def _executed(self, operation_id: str, execution: HookExecution | None) -> None:
        if execution is None:
            return
        try:
            spans = self._operations.get(operation_id)
            over = self._over.get(operation_id)
            root = spans.root.span.get_span_context() if spans is not None else over[1] if over is not None else None
            if self._hook_spans == "events":
                hook_event(self._logs, execution, spans, root, self._content)
            else:
                hook_span(self._tracer, execution, spans, root, self._content)
        except Exception as error:
            self._failures.note("hook_executed", error)

    def _unregistered(self, operation_id: str, execution: HookExecution | None) -> None:
        """Another runtime has unregistered an operation, perhaps without saying that it is over."""
        try:
            unregistrations.unwatch(operation_id, self._unregistered)
            executions.unwatch(operation_id, self._executed)
            self._silent.pop(operation_id, None)
            spans = self._operations.get(operation_id)
            if spans is not None:
                self._cut(spans, "unregistered", time_ns())
        except Exception as error:
            self._failures.note("operation_unregistered", error)

    # For code that runs tools itself, and for whoever sends the context on.

    def activate(self, operation_id: str, call_id: str | None = None) -> Activation:
        """Make an operation's present span current inside of `with`, for a runtime that is not this package's own.

        Args:
            operation_id: The run; one that is not traced changes nothing.
            call_id: A tool call of it; its present step unless given.
        """
        spans = self._operations.get(operation_id)
        if spans is None:
            return Activation(None)
        tool = spans.open.get(("tool", call_id)) if call_id is not None else None
        context = set_value(OPERATION, operation_id, set_span_in_context((tool or spans.current_step()).span))
        return Activation(context)

    def traceparent(self, operation_id: str) -> str | None:
        """W3C `traceparent` of a run's present segment, to send along; `None` for one that is not traced."""
        return self.carried(self._operations.get(operation_id))

    def close(self, at: int | None = None) -> None:
        """End every span that is open still; call it before the provider is shut down. May be called again.

        Args:
            at: When they are taken to have ended, in nanoseconds since 1970, but none before the latest time that was
                seen; now unless given.
        """
        at = time_ns() if at is None else at
        for spans in list(self._operations.values()):
            self._cut(spans, "shutdown", at)

    def open_kinds(self) -> list[str]:
        """The kind of each open span, for the gauge of open spans."""
        return [kind for spans in list(self._operations.values()) for kind in spans.open_kinds()]

    # Keeping house.

    def _keep(self, spans: OperationSpans, at: int) -> None:
        spans.kinds = names.OPENINFERENCE_KINDS if self._openinference else {}
        before = self._operations.get(spans.operation_id)
        if before is not None:
            self._cut(before, "restarted", at)
        if at > self._next_sweep:
            self._next_sweep = at + SWEEP_NS
            for each in list(self._operations.values()):
                if at - each.latest > self._max_age_ns:
                    self._cut(each, "expired", at)
        self._operations[spans.operation_id] = spans

    def _cut(self, spans: OperationSpans, why: str, at: int) -> None:
        """End a segment in place of its own events."""
        if self._operations.get(spans.operation_id) is not spans:
            return
        del self._operations[spans.operation_id]
        try:
            self._end_open(spans, why, at)
            self._failures.cut(why)
            finish(spans.root, spans.at(at), {names.SPAN_TRUNCATED: why, names.OUTCOME: why})
        except Exception as error:
            self._failures.note(why, error)
        self._remember(spans)

    def _end_open(self, spans: OperationSpans, why: str, at: int) -> None:
        for opened in reversed(list(spans.open.values())):
            spans.cut(opened, at, why)

    def _remember(self, spans: OperationSpans) -> None:
        root = spans.root.span.get_span_context()
        latest = traceparent_of(root)
        traceparents = (*spans.traceparents[:1], latest) if latest is not None else spans.traceparents
        remember(self._over, spans.operation_id, (spans.latest, root, traceparents))


def remember(kept: OrderedDict[str, Any], key: str, value: object) -> None:
    """Keep a value under a key, and forget the oldest where they become too many."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
