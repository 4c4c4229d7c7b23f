"""Run one coroutine to its end, in the present task, within a time limit.

A cancel scope around every handler would cost more than the handler. On asyncio no scope is opened: the coroutine is
stepped by hand, and only one that suspends gets a timer, which cancels the task. The arithmetic with `cancelling` is
that of `asyncio.timeout`: it tells our own cancellation from somebody else's, and notices a coroutine that swallowed
somebody else's.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from sys import modules
from typing import Any, cast

import anyio

__all__ = [
    "ENDED",
    "Bounded",
    "CoroutineAlarm",
    "HandlerCancelledError",
    "HandlerTimeoutError",
    "bounded_anyio",
    "bounded_asyncio",
    "bounded_for_this_backend",
    "finish_asyncio",
    "new_scope",
    "own_cancellation",
    "present_asyncio_task",
    "runs_on_asyncio",
    "runs_on_trio",
]


ENDED = object()
"""The default with which `next` steps a generator that drives a coroutine: it tells that the first step was the last.

It costs half of the `StopIteration` by which `coroutine.send` tells that.
"""


class HandlerTimeoutError(Exception):
    """The coroutine was still running when its time had passed; it was cancelled."""


class HandlerCancelledError(Exception):
    """The coroutine ended as cancelled although nobody had cancelled the task that runs it."""


Bounded = Callable[[Coroutine[Any, Any, Any], float, Context | None], Awaitable[Any]]
"""`await bounded(coroutine, seconds, context)`: its result, or `HandlerTimeoutError`, or what it raised."""


def bounded_for_this_backend() -> Bounded:
    """Return the implementation for the running event loop."""
    return bounded_asyncio if runs_on_asyncio() else bounded_anyio


def runs_on_asyncio() -> bool:
    """Whether the present thread runs asyncio's code now (and not, say, trio as a guest of an asyncio loop)."""
    return not runs_on_trio()


def runs_on_trio() -> bool:
    """Whether the present thread runs trio's code now.

    It reads where trio itself says so: `trio.lowlevel.in_trio_run`, and asking asyncio for its task, take ten times as
    long. To read it takes 80 ns, so that it looks for trio first: each call asks, and few processes have imported it.
    """
    if "trio" not in modules:
        return False
    sniffio: Any = modules.get("sniffio")  # another thread may be importing both
    return hasattr(sniffio, "thread_local") and sniffio.thread_local.name == "trio"


def present_asyncio_task() -> asyncio.Task[Any] | None:
    """Return the present task of asyncio; `None` on another backend, and outside of tasks."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def new_scope(*, on_asyncio: bool) -> anyio.CancelScope:
    """Return a cancel scope, without anyio's look-up of the backend, which takes several times as long."""
    kind = _scopes.get(on_asyncio)
    if kind is None:
        kind = _scopes[on_asyncio] = type(anyio.CancelScope())
    return kind()


_scopes: dict[bool, type[anyio.CancelScope]] = {}
"""The backends' own classes, by whether it is that of asyncio."""


async def bounded_anyio(coroutine: Coroutine[Any, Any, Any], seconds: float, context: Context | None) -> Any:
    """Run a coroutine on any backend, in a cancel scope that is opened before its first step."""
    if context is not None:
        coroutine = _in_context(coroutine, context)
    if seconds == math.inf:
        return await coroutine
    with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
        result = await coroutine
        if not scope.cancel_called:  # if it was, the coroutine has swallowed it
            return result
    raise HandlerTimeoutError


@types.coroutine
def _in_context(coroutine: Coroutine[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    run = context.run
    try:
        waits_for = run(coroutine.send, None)
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = run(coroutine.throw, error)
            else:
                waits_for = run(coroutine.send, value)
    except StopIteration as stop:
        return stop.value


async def bounded_asyncio(coroutine: Coroutine[Any, Any, Any], seconds: float, context: Context | None) -> Any:
    """Run a coroutine on asyncio, without a scope, and without a timer before it suspends."""
    try:
        waits_for = coroutine.send(None) if context is None else context.run(coroutine.send, None)
    except StopIteration as stop:
        return stop.value
    except asyncio.CancelledError:
        raise_unless_cancelled()
        raise
    alarm = CoroutineAlarm()
    try:
        return await finish_asyncio(coroutine, waits_for, seconds, context, alarm)
    finally:
        alarm.close()


def own_cancellation() -> bool:
    """Whether a `CancelledError` is the callee's own, as nobody cancelled this task; inside of `except` only.

    Only asyncio lets code raise it by itself, by awaiting a future that somebody else cancelled, for instance.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # another backend, or no event loop at all
    return task is not None and not task.cancelling()


def raise_unless_cancelled() -> None:
    """Tell a coroutine's own `CancelledError` from a cancellation of the task that runs it.

    Raises:
        HandlerCancelledError: If nobody asked for the task to be cancelled.
    """
    if own_cancellation():
        raise HandlerCancelledError


class CoroutineAlarm:
    """One clock for the present asyncio task, armed for one coroutine after the other.

    Arming it again only moves the deadline: the timer that is running looks at it when it rings. Whoever makes an alarm
    closes it.
    """

    __slots__ = ("deadline", "expired", "loop", "pending", "task", "timer")

    def __init__(self) -> None:
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.loop = self.task.get_loop()
        self.deadline = math.inf
        self.timer: asyncio.TimerHandle | None = None

    def arm(self, seconds: float) -> None:
        """Cancel the task in so many seconds."""
        self.expired = False
        self.pending = self.task.cancelling()
        if seconds == math.inf:
            return
        self.deadline = deadline = self.loop.time() + seconds
        if self.timer is None or self.timer.when() > deadline:
            self.close()
            self.timer = self.loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self.timer = None
        if self.loop.time() < self.deadline:
            if self.deadline < math.inf:
                self.timer = self.loop.call_at(self.deadline, self._ring)
            return
        self.expired = True
        self.task.cancel()

    def settle(self, *, cancelled: bool) -> None:
        """Take back our own cancellation after the coroutine has ended, and raise its timeout or cancellation.

        Args:
            cancelled: Whether it ended by raising `CancelledError`.

        Raises:
            HandlerTimeoutError: If its time had passed.
            HandlerCancelledError: If it ended as cancelled although nobody had cancelled the task.
            asyncio.CancelledError: If it swallowed a cancellation that was not meant for it.
        """
        self.deadline = math.inf
        if self.expired and self.task.uncancel() <= self.pending:
            raise HandlerTimeoutError
        if self.task.cancelling() > self.pending:
            if not cancelled:
                raise asyncio.CancelledError
        elif cancelled and not self.task.cancelling():
            raise HandlerCancelledError

    def close(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@types.coroutine
def finish_asyncio(
    coroutine: Coroutine[Any, Any, Any], waits_for: Any, seconds: float, context: Context | None, alarm: CoroutineAlarm
) -> Generator[Any, Any, Any]:
    """Finish a coroutine on asyncio that has suspended on `waits_for`, within `seconds` from now."""
    run: Any = None if context is None else context.run
    send: Any = coroutine.send if run is None else partial(run, coroutine.send)
    alarm.arm(seconds)
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = coroutine.throw(error) if run is None else run(coroutine.throw, error)
            else:
                waits_for = send(value)
    except StopIteration as stop:
        alarm.settle(cancelled=False)
        return stop.value
    except asyncio.CancelledError:
        alarm.settle(cancelled=True)
        raise
    except Exception:
        alarm.settle(cancelled=False)
        raise
    finally:
        alarm.deadline = math.inf
