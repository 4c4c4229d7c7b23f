"""Record verdicts on runs: an event of the root span, and a log record in its context, for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from hookline.instrumentation import EvaluationResult
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean
from hookline.otel._content import Content
from hookline.otel._logs import LogEvents
from hookline.otel._open_spans import OperationSpans

__all__ = ["add_verdicts", "log_verdicts"]


def add_verdicts(spans: OperationSpans, results: Sequence[EvaluationResult], content: Content, logs: LogEvents) -> None:
    """Add verdicts to the root span of a segment, which has ended but for them, and end it.

    Args:
        spans: The segment.
        results: The verdicts; none if there are none.
        content: Says whether explanations are recorded.
        logs: Where the log records go.
    """
    try:
        root = spans.root
        if spans.rooted:
            for result in results:
                # The verdict is later than the run. A span's events lie within it, the time of the log record is true.
                root.span.add_event(
                    names.EVALUATION_EVENT, _attributes(result, content, explain=content.on_spans), spans.held_until
                )
        log_verdicts(spans.operation_id, root.span.get_span_context(), results, content, logs)
    finally:
        spans.release()


def log_verdicts(
    operation_id: str, root: SpanContext, results: Sequence[EvaluationResult], content: Content, logs: LogEvents
) -> None:
    """Emit a log record for each verdict, in the context of the root span of the run."""
    context = set_span_in_context(NonRecordingSpan(root), Context())
    for result in results:
        attributes = _attributes(result, content, explain=content.on_events)
        logs.emit(names.EVALUATION_EVENT, context, {names.OPERATION_ID: clean(operation_id), **attributes})


def _attributes(result: EvaluationResult, content: Content, *, explain: bool) -> dict[str, Any]:
    attributes: dict[str, Any] = {names.EVALUATION_NAME: clean(result.name)}
    if result.score is not None and math.isfinite(result.score):
        attributes[names.EVALUATION_SCORE] = float(result.score)
    if result.label:
        attributes[names.EVALUATION_LABEL] = clean(result.label)
    if result.check:
        attributes[names.EVALUATION_CHECK] = clean(result.check)
    if explain and result.explanation:
        content.put(attributes, names.INVOKE_AGENT, names.EVALUATION_EXPLANATION, result.explanation)
    return attributes
