"""Signals by operation: one connection to each signal, however many operations are watched at the same time.

A receiver per bundle would be called for every operation of the process; with thousands of traced runs, each with a
bundle of its own, that is quadratic. While nobody watches, nothing is connected, and records are not even built.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import blinker

from hookline.signals import HookExecution, hook_executed, operation_unregistered

__all__ = ["executions", "unregistrations"]

Receiver = Callable[[str, HookExecution | None], None]
"""Called with the operation and, of a handler run, its record."""


class Feed:
    """Who wants to hear a signal of which operation."""

    def __init__(self, signal: blinker.Signal) -> None:
        self._signal = signal
        self._receivers: dict[str, tuple[Receiver, ...]] = {}
        self._lock = threading.Lock()

    def watch(self, operation_id: str, receiver: Receiver) -> None:
        """Call a receiver whenever the signal speaks of an operation."""
        with self._lock:
            if not self._receivers:
                self._signal.connect(self._receive, weak=False)
            present = self._receivers.get(operation_id, ())
            if receiver not in present:
                self._receivers[operation_id] = (*present, receiver)

    def unwatch(self, operation_id: str, receiver: Receiver) -> None:
        """Stop calling a receiver; one that was not watching is ignored."""
        with self._lock:
            present = list(self._receivers.pop(operation_id, ()))
            if receiver in present:
                present.remove(receiver)
            if present:
                self._receivers[operation_id] = tuple(present)
            elif not self._receivers:
                self._receivers.clear()
                self._signal.disconnect(self._receive)

    def _receive(
        self, sender: object, *, execution: HookExecution | None = None, operation_id: str | None = None
    ) -> None:
        key = (execution.operation_id if execution is not None else operation_id) or ""
        for receiver in self._receivers.get(key, ()):
            receiver(key, execution)


executions = Feed(hook_executed)
unregistrations = Feed(operation_unregistered)
