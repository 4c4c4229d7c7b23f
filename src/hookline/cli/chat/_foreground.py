"""The main thread of a chat: it shows what other threads have for it, and Ctrl-C reaches it where it is expected."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self

from hookline.cli._exit_codes import was_terminated

__all__ = ["Foreground", "Impatient"]

TICK = 0.1
"""Seconds between two looks at Ctrl-C: one that comes just before a thread waits for a lock does not end the wait."""


class Impatient(Exception):
    """Ctrl-C was pressed again, because what was interrupted would not end."""


class Foreground:
    """Does in the main thread what other threads ask for, in their order.

    While it is open, Ctrl-C is an exception only where a line is read. An exception between any two instructions would
    leave a console or a lock half done.
    """

    def __init__(self) -> None:
        # Its `put` never waits and may be called in a signal handler, in the midst of another call of it.
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pressed = 0
        self._reads = False

    def later(self, work: Callable[[], None]) -> None:
        """Have the main thread do something, after all that it was given before; from any thread, without waiting."""
        self._queue.put(work)

    def catch_up(self) -> None:
        """Do what there is to do now."""
        with suppress(Empty):
            while True:
                self._queue.get_nowait()()

    def until(self, future: Future[Any], interrupt: Callable[[], bool], remind: Callable[[], None]) -> None:
        """Do what there is to do until something has ended in another thread.

        Args:
            future: What is waited for.
            interrupt: Called at the first Ctrl-C, until it says that it has interrupted something. It must not wait.
            remind: Called once if that takes its time.

        Raises:
            Impatient: At the second Ctrl-C.
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
                raise Impatient
            if self._pressed and not interrupted:
                interrupted = interrupt()

    @property
    def pressed(self) -> bool:
        """Whether Ctrl-C was pressed since the last wait began."""
        return self._pressed > 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read a line in it: here Ctrl-C raises `KeyboardInterrupt`."""
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
    """Wakes a thread that waits for something to do."""
