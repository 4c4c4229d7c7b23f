"""The exit codes of all commands, and signals that end one: the one place that defines them.

It imports nothing but the standard library, since it is needed before the command line is known to be installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType

__all__ = [
    "CANNOT_TELL",
    "DIFFERS",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "MEANINGS",
    "MISUSED",
    "NOT_JUDGED",
    "SPANS_LOST",
    "TERMINATED",
    "end_at_second_interrupt",
    "exit_code_of",
    "handle_sigterm",
    "interrupted_code",
    "run_until_stopped",
    "was_terminated",
]

DONE, FAILED, MISUSED, NOT_JUDGED, SPANS_LOST, CANNOT_TELL, DIFFERS = range(7)
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM

MEANINGS = {
    DONE: "done, or passed",
    FAILED: "failed, refused, or worse than before",
    MISUSED: "wrong use: an option, a name, or a file or store that does not exist",
    NOT_JUDGED: "not judged: no task has a check, runs share none, or a test was not run",
    SPANS_LOST: "passed, but spans did not arrive where they were sent",
    CANNOT_TELL: "cannot tell whether a run got worse (with --fail-on-cannot-tell)",
    DIFFERS: "a file differs from what is stored (hooks diff)",
    INTERRUPTED: "interrupted by Ctrl-C",
    TERMINATED: "ended by SIGTERM",
}
"""What each code means, as the help and the documentation say it."""

HINT_SECONDS = 3.0
"""Seconds after an interrupt, if the program has not ended, until it says how to end it at once."""

_terminated = False


def exit_code_of(*, ok: bool, judged: bool = True, arrived: bool = True, conclusive: bool = True) -> int:
    """Choose the exit code of a command that ran to its end; the worst that happened decides.

    Args:
        ok: Whether it did what it was asked for, or what it ran passed.
        judged: Whether anything was judged.
        arrived: Whether spans arrived where they were sent.
        conclusive: Whether a comparison could tell if a run got worse, where that is asked for.
    """
    if not ok:
        return FAILED
    if not judged:
        return NOT_JUDGED
    if not conclusive:
        return CANNOT_TELL
    return DONE if arrived else SPANS_LOST


def handle_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does, from now on; a program that ignores SIGTERM goes on ignoring it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        with contextlib.suppress(ValueError):  # only the main thread may ask for signals
            signal.signal(signal.SIGTERM, _terminate)


def run_until_stopped(serving: Coroutine[object, object, None]) -> None:
    """Run a coroutine until Ctrl-C or SIGTERM, and let it end what is under way.

    `asyncio.run` cancels the coroutine first, and other tasks after it, but only at a SIGINT that nobody ignores. A
    script starts its background processes with SIGINT ignored; there SIGTERM would cancel all tasks at once.

    Raises:
        KeyboardInterrupt: After either signal, once the coroutine has ended.
    """
    import asyncio

    async def run() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def terminate() -> None:
            global _terminated
            _terminated = True
            assert task is not None
            task.cancel()

        with contextlib.suppress(NotImplementedError, RuntimeError):  # Windows, and threads, have no such handlers
            if handled:
                loop.add_signal_handler(signal.SIGTERM, terminate)
        await serving

    handled = signal.getsignal(signal.SIGTERM) is _terminate
    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        if handled:  # asyncio sets the default when it closes the event loop
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, _terminate)


@contextlib.contextmanager
def end_at_second_interrupt() -> Iterator[None]:
    """Let a second Ctrl-C or SIGTERM end the program at once, in case the first one cannot.

    Enter it in the event loop, which has a way of its own to take the first one.
    """
    first = signal.getsignal(signal.SIGINT)
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            os.write(2, b"hookline: ended at once\n")
            os._exit(interrupted_code())
        interrupted = True
        hint.start()
        if callable(first):
            first(number, frame)

    if not callable(first) or threading.current_thread() is not threading.main_thread():
        yield
        return
    hint = threading.Timer(HINT_SECONDS, os.write, (2, b"hookline: tasks are stopping; Ctrl-C again ends at once\n"))
    hint.daemon = True
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, first)
        hint.cancel()


def was_terminated() -> bool:
    """Whether SIGTERM has come."""
    return _terminated


def interrupted_code() -> int:
    """Return the exit code of a command that a signal has ended."""
    return TERMINATED if _terminated else INTERRUPTED


def _terminate(number: int, frame: FrameType | None) -> None:
    global _terminated
    _terminated = True
    # Not `signal.raise_signal`: scripts start their background processes with SIGINT ignored.
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        raise KeyboardInterrupt
