"""Give a task a time limit, also one that does not stop when it is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio

from hookline._deadlines import runs_on_asyncio

__all__ = ["GRACE", "TaskTimeoutError", "finish_within"]

logger = logging.getLogger("hookline")

GRACE = 5.0
"""Seconds that a task has to stop after it was cancelled."""

T = TypeVar("T")

_left_behind: set[asyncio.Task[None]] = set()
"""Tasks of asyncio that were started and are not awaited: the event loop keeps no reference to them."""


class TaskTimeoutError(Exception):
    """A task took longer than it may."""

    def __init__(self, seconds: float, *, stopped: bool = True) -> None:
        super().__init__(seconds, stopped)
        self.seconds, self.stopped = seconds, stopped

    def __str__(self) -> str:
        took = f"it took longer than {self.seconds:g} s and was stopped"
        if self.stopped:
            return took
        return f"it took longer than {self.seconds:g} s, and did not stop within {GRACE:g} s of being cancelled"


async def finish_within(
    work: Callable[[], Awaitable[T]], seconds: float | None, *, detach: bool, scopes: set[anyio.CancelScope]
) -> T:
    """Run a task to its end, or cancel it when its time is over.

    Args:
        work: Starts the task.
        seconds: The time that it has; `None` for no limit.
        detach: Whether a task that goes on although it was cancelled is left behind.
        scopes: While the task runs, it contains a scope with its deadline, which others may move.

    Raises:
        TaskTimeoutError: If the task took longer.
    """
    if seconds is None:
        return await work()
    task = _DetachedTask(work) if detach else None
    with anyio.CancelScope(deadline=anyio.current_time() + seconds) as limit:
        scopes.add(limit)
        try:
            return await (work() if task is None else task.result())
        finally:
            scopes.discard(limit)
    left_behind = task is not None and not task.is_over
    if left_behind:
        logger.warning(
            "A task of a run takes longer than %g s and does not stop. It is left running, and the program cannot end "
            "before it does. Tasks in worker processes can be stopped at any time: workers=1.",
            seconds,
        )
    raise TaskTimeoutError(seconds, stopped=not left_behind)


class _DetachedTask:
    """A task that runs outside of every task group, so that nobody has to wait for its end.

    Args:
        work: Starts it.
    """

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self._scope = anyio.CancelScope()
        self._over = anyio.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self._over.is_set()

    async def result(self) -> Any:
        """Run it and return its result. If the caller is cancelled, so is the task, which has a while to stop."""
        _start(self._run)
        try:
            await self._over.wait()
        except anyio.get_cancelled_exc_class():
            self._scope.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(GRACE):
                await self._over.wait()
            raise
        if self._error is not None:
            raise self._error
        return self._result

    async def _run(self) -> None:
        try:
            with self._scope:
                self._result = await self._work()
        except BaseException as error:  # whoever waits for the result raises it
            self._error = error
        finally:
            self._over.set()


def _start(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if runs_on_asyncio():
        task = asyncio.create_task(run())
        _left_behind.add(task)
        task.add_done_callback(_left_behind.discard)
    else:
        import trio

        trio.lowlevel.spawn_system_task(run, context=contextvars.copy_context())
