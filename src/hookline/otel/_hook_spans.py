"""Hooks as spans or span events: which ran, for how long, and what it decided."""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, Tracer

from hookline.otel import _attributes as names
from hookline.otel._content import Content
from hookline.otel._spans import OpenSpan, OperationSpans
from hookline.otel._text import clean
from hookline.signals import HookExecution

__all__ = ["record_hook"]

ENDS = {"afterToolCall": 1, "onToolCallError": 1, "afterStep": 2, "onComplete": 3, "onError": 3}
"""Hooks of events that end something run after its end: how many of tool, step and segment are over by then."""


def record_hook(
    tracer: Tracer,
    execution: HookExecution,
    spans: OperationSpans | None,
    ended: SpanContext | None,
    content: Content,
    *,
    as_events: bool,
) -> None:
    """Put one handler run into the trace.

    It goes under the innermost span that was open when it began and is open still, so that no span outlives the one
    above it. What runs when the segment is over, as observers of its end and slow ones in their lanes do, begins a
    trace of its own, with a link.

    Args:
        tracer: Makes the span.
        execution: The run.
        spans: The operation's open spans, while its segment lasts.
        ended: Where its root was, when it is over.
        content: Whether what a hook said may be recorded.
        as_events: Whether it becomes an event of that span rather than a span.
    """
    began = execution.time_unix_nano
    end = began + int(execution.duration_ms * 1e6)
    attributes: dict[str, Any] = {
        names.OPERATION_ID: clean(execution.operation_id),
        names.HOOK_ID: clean(execution.hook_id),
        names.HOOK_TYPE: clean(execution.hook_type),
        names.HOOK_STATUS: execution.status,
        names.HOOK_DURATION: execution.duration_ms / 1e3,
    }
    failed = execution.status in ("error", "timeout")
    if failed:
        attributes[names.ERROR_TYPE] = error_type_of(execution)
    if content.on_spans and execution.error:
        name = names.DENIAL_REASON if execution.status == "denied" else names.HOOK_ERROR
        content.put(attributes, names.HOOK, name, execution.error)
    parent = parent_of(spans, execution) if spans is not None else None
    if parent is not None and as_events:
        parent.span.add_event(names.HOOK_EVENT, attributes, end)
        return
    if parent is not None and spans is not None:
        context, links = spans.inside(parent), []
        spans.at(end)
    else:
        context, links = Context(), [Link(ended)] if ended is not None else []
    span = tracer.start_span(
        f"{names.HOOK} {attributes[names.HOOK_ID]}", context, attributes=attributes, links=links, start_time=began
    )
    if failed:
        span.set_status(Status(StatusCode.ERROR))
    span.end(end)


def parent_of(spans: OperationSpans, execution: HookExecution) -> OpenSpan | None:
    """The innermost span that the hook ran inside of and that is open still."""
    over = ENDS.get(execution.hook_type, 0)
    tool = spans.open.get(("tool", execution.tool_call_id)) if execution.tool_call_id else None
    step = spans.open.get(("step", execution.step_index)) if execution.step_index is not None else None
    for each in (tool, step or spans.step, spans.root)[over:]:
        if each is None or each.began > execution.time_unix_nano:
            continue
        if each is spans.root or spans.open.get(each.key) is each:
            return each
    return None


def error_type_of(execution: HookExecution) -> str:
    """The class of what a handler raised."""
    if execution.status == "timeout":
        return "timeout"
    kind, colon, _ = (execution.error or "").partition(":")
    return clean(kind) if colon and kind.isidentifier() else names.OTHER
