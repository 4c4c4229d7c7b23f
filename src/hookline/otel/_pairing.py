"""Pair the tracing of a segment with its metrics, so that one observer serves both.

The points of a call are then recorded while its span is open, in the context of that span, so exemplars lead to it.
A run dispatches each event to one handler, and calls one bundle around its work.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from hookline.instrumentation import SegmentInfo

__all__ = ["end_pairing", "pair_metrics", "pair_tracing"]


class Measures(Protocol):
    """The measurements of a segment.

    Attributes:
        observed: Whether the bundle that measures it observes it itself.
    """

    observed: bool


class SegmentTracer(Protocol):
    """A bundle that traces segments."""

    def _take_up(self, operation_id: str, measures: Any) -> bool: ...


class Beginning(NamedTuple):
    """A segment whose bundles begin one after the other.

    Attributes:
        segment: The segment.
        measures: What is measured of it, if the bundle that measures came first.
        tracing: The bundle that traces it, if one has begun.
    """

    segment: SegmentInfo
    measures: Measures | None = None
    tracing: SegmentTracer | None = None


_beginning: dict[str, Beginning] = {}
"""By operation, until all bundles have begun; without tracing, until the segment ends."""


def pair_metrics(segment: SegmentInfo, measures: Measures) -> None:
    """Note that metrics of a segment begin; a bundle that traces it already takes them up."""
    found = _find(segment)
    if found is not None and found.tracing is not None:
        measures.observed = not found.tracing._take_up(segment.operation_id, measures)
    else:
        _beginning[segment.operation_id] = Beginning(segment, measures=measures)


def pair_tracing(segment: SegmentInfo, tracing: SegmentTracer) -> None:
    """Note that the tracing of a segment begins; it takes up metrics that began before."""
    found = _find(segment)
    if found is not None and found.measures is not None and found.measures.observed:
        found.measures.observed = not tracing._take_up(segment.operation_id, found.measures)
    _beginning[segment.operation_id] = Beginning(segment, tracing=tracing)


def end_pairing(operation_id: str) -> None:
    """Forget the beginning of a segment."""
    _beginning.pop(operation_id, None)


def _find(segment: SegmentInfo) -> Beginning | None:
    found = _beginning.get(segment.operation_id)
    # Two threads may each run a segment of the same name.
    return found if found is not None and found.segment is segment else None
