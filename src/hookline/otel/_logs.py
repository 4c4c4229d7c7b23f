"""Log records that say which run they are from."""

from __future__ import annotations

import logging

from opentelemetry.trace import INVALID_SPAN_CONTEXT, get_current_span

from hookline.otel._context import current_operation

__all__ = ["RunContextFilter"]


class RunContextFilter(logging.Filter):
    """Gives every log record of a handler the trace and the operation that it was made in.

    Add it to a handler of `logging`, where it sees the records of all loggers: `handler.addFilter(RunContextFilter())`.
    Records get `operation_id`, `trace_id`, `span_id` and `trace_sampled`, for formats such as `%(trace_id)s`; outside
    of every traced run these are empty (and False). Inside of hooks, tools and models of a run with `TracingHooks` they
    are that run's, in worker threads and queued hooks too.

    A record that brings one of these attributes along keeps it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete a record; none is left out."""
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
