"""The segments that are open, and what is remembered of those that are over."""

from __future__ import annotations

from collections import OrderedDict
from time import monotonic_ns
from typing import Any, NamedTuple

from opentelemetry.trace import SpanContext

from hookline.otel import _attributes as names
from hookline.otel._failures import Failures
from hookline.otel._links import traceparent_of
from hookline.otel._spans import OperationSpans

__all__ = ["Over", "Segments"]

REMEMBERED = 1000
"""Of how many operations that are over something is remembered, for what is told of them afterwards."""

SWEEP_NS = 60_000_000_000
"""How often segments are looked for of which nothing has been heard for too long."""


class Over(NamedTuple):
    """What is remembered of an operation whose segment is over.

    Attributes:
        at: When it ended, in nanoseconds since 1970.
        root: Where its root was.
        traceparents: Of the operation's first segment and of this one.
        tokens: Read and written by then.
    """

    at: int
    root: SpanContext
    traceparents: tuple[str, ...]
    tokens: tuple[int, int]


class Segments:
    """The segments of one bundle.

    Args:
        failures: Told of what goes wrong, and of what is cut.
        max_age_ns: After how long without an event another runtime's segment is ended.

    Attributes:
        open: Those that have begun and not ended, by operation.
    """

    def __init__(self, failures: Failures, max_age_ns: float) -> None:
        self.open: dict[str, OperationSpans] = {}
        self._failures = failures
        self._max_age_ns = max_age_ns
        self._next_sweep = 0.0
        self._over: OrderedDict[str, Over] = OrderedDict()
        self._silent: OrderedDict[str, None] = OrderedDict()
        """Operations of other runtimes that are not sampled."""
        self._cut_early: set[str] = set()
        """Runs of this package that were cut before they were over: further events begin nothing."""

    def keep(self, spans: OperationSpans) -> None:
        """A segment has begun; one of the same operation that is open still has not been told its end."""
        before = self.open.get(spans.operation_id)
        if before is not None:
            self.cut(before, "restarted", spans.latest)
        now = monotonic_ns()
        spans.heard = now
        if now > self._next_sweep:
            self._next_sweep = now + min(SWEEP_NS, self._max_age_ns)
            for each in list(self.open.values()):
                if not each.own and now - each.heard > self._max_age_ns:
                    self.cut(each, "expired", each.latest)
        self.open[spans.operation_id] = spans

    def take(self, spans: OperationSpans) -> bool:
        """A segment is about to end; whether it is for the caller to do that."""
        return self.open.pop(spans.operation_id, None) is not None

    def cut(self, spans: OperationSpans, why: str, at: int) -> None:
        """End a segment in place of its own events."""
        if self.open.get(spans.operation_id) is not spans:
            return
        del self.open[spans.operation_id]
        if spans.own:
            self._cut_early.add(spans.operation_id)
        try:
            end_open(spans, why, at)
            self._failures.cut(why)
            if spans.parent is not None:
                spans.parent.at(spans.at(at))
                spans.parent.segments.pop(spans.operation_id, None)
            spans.end_root(spans.at(at), {names.SPAN_TRUNCATED: why, names.OUTCOME: why})
        except Exception as error:
            self._failures.note(why, error)
        self.ended(spans)

    def ended(self, spans: OperationSpans) -> None:
        """Remember a segment that has ended."""
        root = spans.root.span.get_span_context()
        latest = traceparent_of(root)
        traceparents = (*spans.traceparents[:1], latest) if latest is not None else spans.traceparents
        tokens = (spans.totals_from[0] + spans.input_tokens, spans.totals_from[1] + spans.output_tokens)
        _remember(self._over, spans.operation_id, Over(spans.latest, root, traceparents, tokens))

    def over(self, operation_id: str) -> Over | None:
        """What is remembered of an operation whose segment is over."""
        return self._over.get(operation_id)

    def silence(self, operation_id: str) -> None:
        """An operation of another runtime is not sampled."""
        _remember(self._silent, operation_id, None)

    def forget(self, operation_id: str) -> None:
        """An operation is gone: what comes under its id now is another one."""
        self._silent.pop(operation_id, None)
        self._cut_early.discard(operation_id)

    def is_deaf(self, operation_id: str) -> bool:
        """Whether events of an operation begin nothing."""
        return operation_id in self._silent or operation_id in self._cut_early

    def open_kinds(self) -> list[str]:
        """The kind of each open span."""
        return [kind for spans in list(self.open.values()) for kind in spans.open_kinds()]


def end_open(spans: OperationSpans, why: str, at: int) -> None:
    """End everything under the root of a segment that ends."""
    for opened in reversed(list(spans.open.values())):
        spans.cut(opened, at, why)
    spans.end_segments(spans.root, at)


def heard(spans: OperationSpans) -> None:
    """An event of another runtime has come; of a sub-agent it says that whoever called it lives, too."""
    now = monotonic_ns()
    each: OperationSpans | None = spans
    while each is not None:
        each.heard = now
        each = each.parent


def _remember(kept: OrderedDict[str, Any], key: str, value: object) -> None:
    """Keep a value under a key, and forget the oldest where they become too many."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > REMEMBERED:
        kept.popitem(last=False)
