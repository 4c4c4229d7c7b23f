"""Where in a trace a segment begins: under the call that it answers, in the span that is current, or by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, get_current_span, set_span_in_context

from hookline.instrumentation import Segment
from hookline.otel import _attributes as names
from hookline.otel._context import OPERATION, PLACE, get_current, get_value
from hookline.otel._spans import OpenSpan, OperationSpans

__all__ = ["Place", "place_of"]

Operations = Mapping[str, OperationSpans]


class Place(NamedTuple):
    """Where a segment begins.

    Attributes:
        base: The context.
        at: When: not before the span above it.
        links: To what it is not inside of, but comes from.
        parent: The operation that it is a sub-agent's segment of, where that is traced here.
        under: The span of that operation that it is under.
        call: The call of a sub-agent that it answers.
    """

    base: Context
    at: int
    links: list[Link]
    parent: OperationSpans | None = None
    under: OpenSpan | None = None
    call: OpenSpan | None = None


def place_of(segment: Segment, at: int, operations: Operations, key: str, *, own: bool) -> Place:
    """Where a segment begins.

    Args:
        segment: What is known of it.
        at: When it begins.
        operations: The segments that are open.
        key: Where the context says inside of which of the bundle's spans it is.
        own: Whether it is a run of this package: such a one says by its context inside of which call it runs. Of
            another runtime's there is only the parent's id.
    """
    current = get_current()
    parent = operations.get(segment.parent_operation_id) if segment.parent_operation_id else None
    mine = get_value(key, current)
    inside = mine if isinstance(mine, OpenSpan) else None
    if parent is not None:
        call = inside if inside is not None and parent.open.get(inside.key) is inside else None
        if call is None and not own:
            calls = (each for each in parent.open.values() if each.kind == names.CALL_AGENT and each.child is None)
            call = next((each for each in calls if each.callee == segment.agent_id), None)
        under = call if call is not None or own else parent.current_step()
        if under is not None:
            base = set_span_in_context(under.span, current if own else parent.base)
            return Place(base, parent.at(at), [], parent, under, call)
    if inside is not None:
        current = among_bundles(inside, current, operations)
    return enclosed_place(current, at, own=own)


def among_bundles(inside: OpenSpan, current: Context, operations: Operations) -> Context:
    """The context of a segment that begins inside of a traced run, if another bundle traces that run as well.

    What is current is the span of whichever bundle was last; under that of another one, whose back end may be another,
    the segment would be lost.
    """
    spans = operations.get(inside.operation_id)
    rooted = spans is None or spans.rooted
    if rooted and not inside.span.is_recording() and getattr(inside.span, "end_time", None) is None:
        return set_span_in_context(inside.span, current)  # this bundle is not to see what the other one does
    span = get_current_span(current)
    attributes = getattr(span, "attributes", None) or {}
    if spans is None or spans.has(span):
        return current
    call_id = attributes.get(names.TOOL_CALL_ID)
    if names.OPERATION_ID not in attributes:
        place = get_value(PLACE, current)
        if span.is_recording() or not isinstance(place, tuple) or place[0] != span.get_span_context().span_id:
            return current
        call_id = place[1]  # a library without a back end has put a stand-in there
    tool = spans.open.get(("tool", call_id))
    return set_span_in_context((tool or spans.current_step()).span, current)


def enclosed_place(current: Context, at: int, *, own: bool) -> Place:
    """The place of a segment that nothing of a traced run calls.

    What an observer of a run's end starts, or one in a lane, finds a span that has ended; what is replayed from a
    recording finds one that begins later. Such a segment gets a trace of its own, with a link, because no span may
    begin before the one above it, or outlive it.
    """
    span = get_current_span(current)
    over = get_value(OPERATION, current) is not None and getattr(span, "end_time", None) is not None
    began = getattr(span, "start_time", None) or 0
    if not over and (own or began <= at):
        return Place(current, max(at, began), [])
    link = Link(span.get_span_context(), {names.LINK: "started_by"})
    return Place(set_span_in_context(INVALID_SPAN, current), at, [link])
