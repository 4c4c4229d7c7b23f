"""Run work of other threads in the main thread of a chat, and handle Ctrl-C there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from hookline.cli._exit_codes import was_terminated

__all__ = ["Foreground", "InterruptedTwice"]

TICK = 0.1
"""Seconds between two checks for Ctrl-C: one that comes just before a thread waits for a lock does not end the wait."""


class InterruptedTwice(Exception):
    """Ctrl-C was pressed a second time, as the interrupted work did not end."""


class Foreground:
    """Runs in the main thread what other threads ask for, in their order.

    While it is open, Ctrl-C is an exception only where a line is read. An exception between any two instructions would
    leave a console or a lock half done.
    """

    def __init__(self) -> None:
        # Its `put` never waits and may be called in a signal handler, in the midst of another call of it.
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pressed = 0
        self._reads = False

    def later(self, work: Callable[[], None]) -> None:
        """Run a function in the main thread, after those before it. May be called from any thread; does not wait."""
        self._queue.put(work)

    def catch_up(self) -> None:
        """Run everything that is queued now."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()()

    def until(self, future: Future[Any], interrupt: Callable[[], bool], remind: Callable[[], None]) -> None:
        """Run what is queued until a future is done.

        Args:
            future: The work in another thread.
            interrupt: Called after the first Ctrl-C until it returns that it interrupted something. It must not wait.
            remind: Called once if the work has not ended a moment later.

        Raises:
            InterruptedTwice: At the second Ctrl-C.
        """
        self._pressed = 0
        interrupted = reminded = False
        future.add_done_callback(lambda _: self.later(_nothing))
        while not future.done() or not self._queue.empty():
            try:
                self._queue.get(timeout=TICK)()
            except Empty:
                if interrupted and not reminded:
                    reminded = True
                    remind()
            if self._pressed > 1:
                raise InterruptedTwice
            if self._pressed and not interrupted:
                interrupted = interrupt()

    @property
    def pressed(self) -> bool:
        """Whether Ctrl-C was pressed since the last wait began."""
        return self._pressed > 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let Ctrl-C raise `KeyboardInterrupt` while a line is read in this context."""
        self._reads = True
        try:
            if was_terminated():  # it came while nothing was read, when it only interrupts an answer
                raise KeyboardInterrupt
            yield
        finally:
            self._reads = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self._reads:
            raise KeyboardInterrupt
        self._pressed += 1
        self.later(_nothing)


def _nothing() -> None:
    """Do nothing: wakes a thread that waits for work."""
