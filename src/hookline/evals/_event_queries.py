"""Which events somebody asks for, and waiting for the one that is still to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import anyio

from hookline._checks import tool_test
from hookline.errors import HookUsageError
from hookline.evals._call_shapes import path_of, shown
from hookline.events import EVENTS, TOOL_EVENTS, AfterToolCall, BeforeToolCall, Event, OnToolCallError

__all__ = ["EventQuery", "EventWait", "told"]

E = TypeVar("E", bound=Event)

SHOWN_EVENTS = 30
"""How many events a message lists."""


class EventQuery(Generic[E]):
    """Events of a class, perhaps of a tool, perhaps of an operation, perhaps with something else about them.

    Args:
        kind: One of the sixteen event classes.
        tool: A path, a bare name or a glob, for the classes that are about a tool.
        where: What else must be true of the event.
        operation_id: The operation; `None` for any.

    Raises:
        HookUsageError: If an argument makes no sense.
    """

    def __init__(
        self,
        kind: type[E],
        *,
        tool: str | None = None,
        where: Callable[[E], object] | None = None,
        operation_id: str | None = None,
    ) -> None:
        if kind not in EVENTS.values():
            raise HookUsageError(f"Events are asked for by their class, as AfterToolCall; got {shown(kind)}.")
        if tool is not None and kind not in TOOL_EVENTS:
            raise HookUsageError(f"{kind.__name__} is not about a tool, so `tool={tool!r}` can fit none.")
        self.kind, self.where, self.operation_id = kind, where, operation_id
        self._tool = tool
        self._fits = None if tool is None else tool_test(tool)

    def __str__(self) -> str:
        parts = [self.kind.__name__]
        parts += [f"of {self._tool}"] if self._tool is not None else []
        parts += [f"of operation {self.operation_id!r}"] if self.operation_id is not None else []
        parts += [f"where {getattr(self.where, '__name__', repr(self.where))}"] if self.where is not None else []
        return " ".join(parts)

    def takes(self, event: Event) -> bool:
        """Whether an event is one of those."""
        if type(event) is not self.kind or self.operation_id not in (None, event.operation_id):
            return False
        if self._fits is not None and not self._fits(path_of(cast(BeforeToolCall, event))):
            return False
        return self.where is None or bool(self.where(cast(E, event)))

    def of(self, events: Sequence[Event]) -> list[E]:
        """Those of them that are asked for, in their order."""
        return [cast(E, event) for event in events if self.takes(event)]


class EventWait(Generic[E]):
    """Somebody who waits until so many events of a query have happened.

    Args:
        query: Which events.
        count: How many of them.
    """

    def __init__(self, query: EventQuery[E], count: int) -> None:
        self.query, self.count = query, count
        self.met = 0
        self.found: E | None = None
        self.failure: Exception | None = None
        """What the query's `where` raised: for whoever waits, not for the run in which the event happened."""
        self.over = anyio.Event()

    def see(self, event: Event) -> None:
        """Take an event into account."""
        if self.over.is_set():
            return
        try:
            if not self.query.takes(event):
                return
        except Exception as error:
            self.failure = error
            self.over.set()
            return
        self.met += 1
        if self.met == self.count:
            self.found = cast(E, event)
            self.over.set()


def told(events: Sequence[Event]) -> list[str]:
    """Events as lines: operation, event, and for tool events the tool; of very many the last ones."""
    lines = [_line(event) for event in events[-SHOWN_EVENTS:]]
    left_out = len(events) - len(lines)
    return [f"… {left_out:,} earlier events", *lines] if left_out else lines


def _line(event: Event) -> str:
    line = f"{event.operation_id}  {type(event).__name__}"
    if isinstance(event, BeforeToolCall | AfterToolCall | OnToolCallError):
        return f"{line} of {path_of(event)} {shown(event.args)}"
    return line
