"""Events as log records, the form that OpenTelemetry now gives them; correlated to their span by its context."""

from __future__ import annotations

import traceback
from typing import Any

from opentelemetry._logs import LoggerProvider, SeverityNumber, get_logger_provider
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from hookline.errors import message_of
from hookline.events import OnError
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean, error_type
from hookline.otel._content import Content

__all__ = ["LogEvents"]


class LogEvents:
    """Emits events through a logger provider, by default the process's; where there is none, that does nothing."""

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
        """Emit that a model call has failed; what the exception says only where content is recorded."""
        attributes = {**attributes, names.EXCEPTION_TYPE: qualified_name(type(error))}
        if content.on_events:
            content.put(attributes, names.CHAT, names.EXCEPTION_MESSAGE, message_of(error))
            content.put(
                attributes, names.CHAT, names.EXCEPTION_STACKTRACE, "".join(traceback.format_exception(error)[-20:])
            )
        self.emit(names.MODEL_EXCEPTION_EVENT, context, attributes, severity=SeverityNumber.WARN)

    def run_failed(self, event: OnError, root: SpanContext, content: Content) -> None:
        """Emit that a run has ended with an error, at its root."""
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
    """An exception's class as the conventions name it: with its module, unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
