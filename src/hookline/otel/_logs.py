"""Log records of runs: the trace and operation on every record of `logging`, and OpenTelemetry events."""

from __future__ import annotations

import logging
import traceback
from typing import Any

from opentelemetry._logs import LoggerProvider, SeverityNumber, get_logger_provider
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    get_current_span,
    set_span_in_context,
)

from hookline.errors import message_of
from hookline.events import OnError
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean, error_type
from hookline.otel._content import Content
from hookline.otel._context import current_operation

__all__ = ["LogEvents", "RunContextFilter"]


class RunContextFilter(logging.Filter):
    """Add the ids of the current run and trace to every record of a logging handler.

    Add it to a handler, which sees the records of all loggers: `handler.addFilter(RunContextFilter())`. Records get
    `operation_id`, `trace_id`, `span_id` and `trace_sampled`, for formats such as `%(trace_id)s`. Outside of a traced
    run they are empty (and False). In hooks, tools and models of a run with `TracingHooks` they are those of the run,
    also in worker threads and queued hooks.

    A record that already has one of these attributes keeps it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes to a record; no record is dropped."""
        try:
            context = get_current_span().get_span_context()
        except Exception:  # a record must not fail because of a broken tracer
            context = INVALID_SPAN_CONTEXT
        valid = context.is_valid
        found = record.__dict__
        found.setdefault("operation_id", current_operation() or "")
        found.setdefault("trace_id", f"{context.trace_id:032x}" if valid else "")
        found.setdefault("span_id", f"{context.span_id:016x}" if valid else "")
        found.setdefault("trace_sampled", valid and context.trace_flags.sampled)
        return True


class LogEvents:
    """Emits events through a logger provider, by default the process's; without one, nothing is emitted."""

    def __init__(self, provider: LoggerProvider | None, scope: str) -> None:
        self._logger = (provider or get_logger_provider()).get_logger(scope)

    def emit(
        self,
        event_name: str,
        context: Context,
        attributes: dict[str, Any],
        *,
        at: int | None = None,
        severity: SeverityNumber = SeverityNumber.INFO,
    ) -> None:
        """Emit one event."""
        self._logger.emit(
            timestamp=at, context=context, severity_number=severity, attributes=attributes, event_name=event_name
        )

    def exception(self, context: Context, attributes: dict[str, Any], error: BaseException, content: Content) -> None:
        """Emit the event of a failed model call; with the exception's message only where content is recorded."""
        attributes = {**attributes, names.EXCEPTION_TYPE: qualified_name(type(error))}
        if content.on_events:
            content.put(attributes, names.CHAT, names.EXCEPTION_MESSAGE, message_of(error))
            content.put(
                attributes, names.CHAT, names.EXCEPTION_STACKTRACE, "".join(traceback.format_exception(error)[-20:])
            )
        self.emit(names.MODEL_EXCEPTION_EVENT, context, attributes, severity=SeverityNumber.WARN)

    def run_failed(self, event: OnError, root: SpanContext, content: Content) -> None:
        """Emit the event of a run that ended with an error, in the context of its root span."""
        attributes: dict[str, Any] = {
            names.OPERATION_ID: clean(event.operation_id),
            names.ERROR_TYPE: error_type(event.error_type),
        }
        if event.step_index is not None:
            attributes[names.STEP_INDEX] = event.step_index
        if content.on_events:
            content.put(attributes, names.INVOKE_AGENT, names.ERROR_MESSAGE, event.error_message)
        context = set_span_in_context(NonRecordingSpan(root), Context())
        self.emit(names.ERROR_EVENT, context, attributes, at=event.time_unix_nano, severity=SeverityNumber.ERROR)


def qualified_name(kind: type[BaseException]) -> str:
    """Return an exception's class as the conventions name it: with its module, unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
