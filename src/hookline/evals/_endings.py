"""Notice the end of operations, so that what is kept of them can be dropped.

There is one connection to the signal, however many operations are watched.

A receiver per cassette would be called for every operation of the process; with thousands of parallel cases, each with
a cassette of its own, that is quadratic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from hookline.events import AfterToolCall, BeforeToolCall, OnComplete, OnToolCallError
from hookline.signals import operation_unregistered

__all__ = ["OperationEndings"]


class OperationEndings:
    """Calls a function when a watched operation has ended, by `onComplete` or because it was unregistered.

    An operation that waits for a person is not over.

    Args:
        forget: Called with each operation that is over, once or more often.

    Attributes:
        used: Whether any operation has called a tool or ended.
    """

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self.used = False
        self._parents: dict[str, str | None] = {}
        self._waiting: set[str] = set()

    def attend(self, event: BeforeToolCall | AfterToolCall | OnToolCallError) -> None:
        """Watch for the end of an event's operation, and of the operation that called it as a sub-agent."""
        self.used = True
        if event.operation_id in self._parents:
            return
        parent = event.parent_operation_id
        self._waiting.discard(event.operation_id)
        self._parents[event.operation_id] = parent
        _watch(event.operation_id, self._gone)
        if parent is not None and parent not in self._parents:
            self._parents[parent] = None
            _watch(parent, self._gone)

    def completed(self, event: OnComplete) -> None:
        """Handle the end of a run or of one of its segments."""
        self.used = True
        if event.reason == "waiting_for_human":
            self._waiting.add(event.operation_id)
        else:
            self._waiting.discard(event.operation_id)
            self._forget(event.operation_id)

    def _gone(self, operation_id: str, live: Collection[str]) -> None:
        parent = self._parents.pop(operation_id, None)
        if operation_id not in self._waiting:
            self._forget(operation_id)
        # There is no signal for the end of a parent that runs in another process or not at all.
        if parent is not None and parent not in live and parent not in self._waiting:
            _unwatch(parent, self._gone)
            self._parents.pop(parent, None)
            self._forget(parent)


Ending = Callable[[str, Collection[str]], None]
"""Called with the operation that is gone and those of its dispatcher that are still live."""

_watching: dict[str, tuple[Ending, ...]] = {}
_lock = threading.Lock()


def _watch(operation_id: str, ending: Ending) -> None:
    with _lock:
        if not _watching:
            operation_unregistered.connect(_receive, weak=False)
        present = _watching.get(operation_id, ())
        if ending not in present:
            _watching[operation_id] = (*present, ending)


def _unwatch(operation_id: str, ending: Ending) -> None:
    with _lock:
        left = tuple(each for each in _watching.pop(operation_id, ()) if each != ending)
        if left:
            _watching[operation_id] = left
        elif not _watching:
            operation_unregistered.disconnect(_receive)


def _receive(sender: object, *, operation_id: str) -> None:
    for ending in _watching.get(operation_id, ()):
        _unwatch(operation_id, ending)
        ending(operation_id, getattr(sender, "operations", ()))
