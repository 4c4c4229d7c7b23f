"""What is kept of a segment so that later ones, in whatever process, can point to it."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import INVALID_SPAN, Link, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hookline.otel import _attributes as names

__all__ = ["links_to", "parsed", "traceparent_of"]

LONGEST = 512
"""How long a `traceparent` may be; those of future versions may be longer than today's 55 characters."""

_propagator = TraceContextTextMapPropagator()


def traceparent_of(context: SpanContext) -> str | None:
    """A span's place as W3C `traceparent`; `None` for one that is in no trace."""
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parsed(traceparent: object) -> SpanContext | None:
    """The span that a stored `traceparent` names; `None` for anything that is none."""
    if not isinstance(traceparent, str) or len(traceparent) > LONGEST or not traceparent.isascii():
        return None
    # Without INVALID_SPAN in the default, a header that cannot be read would give the caller's own span.
    context = _propagator.extract({"traceparent": traceparent.lower()}, context={})  # type: ignore[arg-type]
    found = get_current_span(context).get_span_context() if context else INVALID_SPAN.get_span_context()
    return found if found.is_valid else None


def links_to(traceparents: Sequence[str]) -> list[Link]:
    """Links to an operation's first segment and, where that is another one, to its latest."""
    links: list[Link] = []
    for traceparent, relation in zip(traceparents, ("first_segment", "previous_segment"), strict=False):
        context = parsed(traceparent)
        if context is not None and all(link.context.span_id != context.span_id for link in links):
            links.append(Link(context, {names.LINK: relation}))
    return links
