"""Run work of other threads in the main thread of a chat, and handle Ctrl-C there."""

from __future__ import annotations

import os
import signal
import threading
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


NUDGE_SECONDS = 0.05
MOST_NUDGES = 20
"""How often a prompt is woken up after a signal; several signals at once are handled once."""


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
        self._nudger = Nudger()
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._nudger.close()

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._nudger.handled.set()
        if self._reads:
            raise KeyboardInterrupt
        self._pressed += 1
        self.later(_nothing)


class Nudger:
    """Wakes the main thread until it has handled a signal, from a thread of its own.

    Python's prompt does not notice a signal that comes just before it waits for a key; the next key would end the wait.

    Attributes:
        handled: To be set when SIGINT or SIGTERM was handled.
    """

    def __init__(self) -> None:
        self.handled = threading.Event()
        self._signals, self._told = os.pipe()
        os.set_blocking(self._told, False)
        self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="hookline-nudger", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while number := os.read(self._signals, 1)[0]:
            if number in (signal.SIGINT, signal.SIGTERM):
                self._nudge()

    def _nudge(self) -> None:
        for _ in range(MOST_NUDGES):
            if self.handled.wait(NUDGE_SECONDS):
                break
            signal.pthread_kill(self._main, signal.SIGWINCH)  # ends the wait, and means nothing by itself
        self.handled.clear()

    def close(self) -> None:
        """End the thread."""
        signal.set_wakeup_fd(self._before)
        self.handled.set()
        os.write(self._told, b"\0")
        self._thread.join()
        os.close(self._signals)
        os.close(self._told)


def _nothing() -> None:
    """Do nothing: wakes a thread that waits for work."""
