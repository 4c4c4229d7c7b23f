"""Add hook executions to a trace, as spans or as span events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import time_ns
from typing import Any

import blinker
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, set_span_in_context

from hookline.otel import _attributes as names
from hookline.otel._attributes import clean
from hookline.otel._content import Content
from hookline.otel._logs import LogEvents
from hookline.otel._open_spans import Common, OpenSpan, OperationSpans
from hookline.signals import HookExecution, hook_executed, operation_unregistered

__all__ = ["error_type_of", "executions", "hook_event", "hook_span", "unregistrations"]

Receiver = Callable[[str, Any], None]
"""Called with the operation, and with the record of a handler run, if the signal carries one."""


class SignalFeed:
    """Passes a signal on to the receivers of its operation.

    Args:
        signal: The signal; its one keyword is an operation's id, or a record with `operation_id`.
    """

    def __init__(self, signal: blinker.Signal) -> None:
        self._signal = signal
        self._receivers: dict[str, tuple[Receiver, ...]] = {}
        self._lock = threading.Lock()

    def watch(self, operation_id: str, receiver: Receiver) -> None:
        """Call a receiver for every signal of an operation."""
        with self._lock:
            if not self._receivers:
                self._signal.connect(self._receive, weak=False)
            present = self._receivers.get(operation_id, ())
            if receiver not in present:
                self._receivers[operation_id] = (*present, receiver)

    def unwatch(self, operation_id: str, receiver: Receiver) -> None:
        """Stop calling a receiver; an unknown one is ignored."""
        with self._lock:
            present = list(self._receivers.pop(operation_id, ()))
            if receiver in present:
                present.remove(receiver)
            if present:
                self._receivers[operation_id] = tuple(present)
            elif not self._receivers:
                self._receivers.clear()
                self._signal.disconnect(self._receive)

    def _receive(self, sender: object, **keywords: Any) -> None:
        [subject] = keywords.values()
        operation_id, record = (subject, None) if isinstance(subject, str) else (subject.operation_id, subject)
        for receiver in self._receivers.get(operation_id, ()):
            receiver(operation_id, record)


executions = SignalFeed(hook_executed)
unregistrations = SignalFeed(operation_unregistered)


ENDS = {"afterToolCall": 1, "onToolCallError": 1, "afterStep": 2, "onComplete": 3, "onError": 3}
"""Hooks of events that end something run after its end: how many of tool, step and segment are over by then."""


def hook_span(
    common: Common, execution: HookExecution, spans: OperationSpans | None, root: SpanContext | None, content: Content
) -> None:
    """Add one handler run to the trace as a span.

    It goes under the innermost span that was open when it began and is open still, so that no span outlives the one
    above it. What runs when the segment is over, as observers of its end and slow ones in their lanes do, begins a
    trace of its own, with a link.

    Args:
        common: Makes the span.
        execution: The run.
        spans: The operation's open spans, while its segment lasts.
        root: Where the segment's root is, or was.
        content: Whether what a hook said may be recorded.
    """
    began = execution.time_unix_nano
    end = max(began, time_ns())  # it is announced when it ends; its own time is less for one that surrounds a call
    attributes = attributes_of(execution, content)
    if common.kinds:
        attributes[names.OPENINFERENCE_KIND] = common.kinds[names.HOOK]
    parent = parent_of(spans, execution) if spans is not None else None
    if parent is not None and spans is not None:
        context, links = spans.inside(parent), []
        spans.at(end)
    else:
        context, links = Context(), [Link(root)] if root is not None else []
    span = common.tracer.start_span(
        f"{names.HOOK} {attributes[names.HOOK_ID]}", context, attributes=attributes, links=links, start_time=began
    )
    if names.ERROR_TYPE in attributes:
        span.set_status(Status(StatusCode.ERROR))
    span.end(end)


def hook_event(
    logs: LogEvents, execution: HookExecution, spans: OperationSpans | None, root: SpanContext | None, content: Content
) -> None:
    """Add one handler run to the trace as an event of the innermost open span.

    Where none is open any more it becomes a log event that points to the segment's root.
    """
    end = max(execution.time_unix_nano, time_ns())
    if spans is not None:
        parent = parent_of(spans, execution) or spans.root
        parent.span.add_event(names.HOOK_EVENT, attributes_of(execution, content), spans.at(end))
    elif root is not None:
        attributes = attributes_of(execution, content, in_log=True)
        context = set_span_in_context(NonRecordingSpan(root), Context())
        logs.emit(names.HOOK_EVENT, context, attributes, at=end)


def attributes_of(execution: HookExecution, content: Content, *, in_log: bool = False) -> dict[str, Any]:
    """Return attributes with the hook's id, its status, its decision and the call that it judged."""
    attributes: dict[str, Any] = {
        names.OPERATION_ID: clean(execution.operation_id),
        names.HOOK_ID: clean(execution.hook_id),
        names.HOOK_TYPE: clean(execution.hook_type),
        names.HOOK_STATUS: execution.status,
        names.HOOK_DURATION: execution.duration_ms / 1e3,
    }
    if execution.tool_call_id:
        attributes[names.TOOL_CALL_ID] = clean(execution.tool_call_id)
    if execution.decision:
        attributes[names.HOOK_DECISION] = execution.decision
    if execution.revision:
        attributes[names.HOOK_REVISION] = execution.revision
    if execution.status in ("error", "timeout"):
        attributes[names.ERROR_TYPE] = error_type_of(execution)
    if execution.error and (content.on_events if in_log else content.on_spans):
        name = names.DENIAL_REASON if execution.status == "denied" else names.HOOK_ERROR
        content.put(attributes, names.HOOK, name, execution.error)
    elif execution.reason and (content.on_events if in_log else content.on_spans):
        content.put(attributes, names.HOOK, names.DENIAL_REASON, execution.reason)
    return attributes


def parent_of(spans: OperationSpans, execution: HookExecution) -> OpenSpan | None:
    """Return the innermost open span that a hook ran in."""
    ended = ENDS.get(execution.hook_type, 0)
    tool = spans.open.get(("tool", execution.tool_call_id)) if execution.tool_call_id else None
    step = spans.open.get(("step", execution.step_index)) if execution.step_index is not None else spans.step
    for each in (tool, step, spans.root)[ended:]:
        if each is None or each.began > execution.time_unix_nano:
            continue
        if each is spans.root or spans.open.get(each.key) is each:
            return each
    return None


def error_type_of(execution: HookExecution) -> str:
    """Return the class name of the exception that a handler raised."""
    if execution.status == "timeout":
        return "timeout"
    kind, colon, _ = (execution.error or "").partition(":")
    return clean(kind) if colon and kind.isidentifier() else names.OTHER
