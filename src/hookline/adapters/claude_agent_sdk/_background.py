"""Background tasks, calls and message queues for the Claude Agent SDK, on asyncio and on trio."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any

import anyio

from hookline._deadlines import runs_on_asyncio

__all__ = ["BackgroundCall", "BackgroundTask", "MessageQueue"]


class BackgroundTask:
    """Run a coroutine in a background task that any other task may cancel and wait for.

    A task group does not serve: it must be left by the task that entered it, and generators are closed by any.

    Args:
        work: The coroutine. It handles its own errors.
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._scope, self._ended = anyio.CancelScope(), anyio.Event()
        if runs_on_asyncio():
            self._task: object = asyncio.create_task(self._do(work))  # the loop itself keeps no task alive
        else:
            context = contextvars.copy_context()
            sys.modules["trio"].lowlevel.spawn_system_task(self._do, work, context=context)

    async def _do(self, work: Awaitable[Any]) -> None:
        try:
            with self._scope:
                await work
        finally:
            self._ended.set()

    def cancel(self) -> None:
        """Cancel the task."""
        self._scope.cancel()

    async def wait(self) -> None:
        """Wait until the task has ended."""
        await self._ended.wait()


class BackgroundCall:
    """A call whose hooks run in a background task, because Claude makes the call between two callbacks.

    `SteppedCall` does not serve here: the SDK runs each callback in a task of its own, and the cancel scopes of a
    hook's timeout must be left in the task that entered them.

    Attributes:
        given: The arguments or instruction that hooks left for the call.
        result: What the hooked call returned.
    """

    def __init__(self) -> None:
        self._reached, self._resumed = anyio.Event(), anyio.Event()
        self._value: Any = None
        self._error: Exception | None = None
        self._raised: BaseException | None = None
        self.given: Any = None
        self.result: Any = None

    async def work(self, given: Any, *_: object) -> Any:
        """Suspend the hooks while Claude makes the call; pass this as the work of a hooked call."""
        self.given = given
        self._reached.set()
        await self._resumed.wait()
        if self._error is not None:
            raise self._error
        return self._value

    async def begin(self, hooked_call: Coroutine[Any, Any, Any]) -> bool:
        """Run the hooks up to `work`; return whether Claude should make the call.

        If not, hooks answered or denied it, and `result` is set.
        """
        self._task = BackgroundTask(self._run(hooked_call))
        try:
            await self._reached.wait()
        except BaseException:  # the callback was cancelled, so no other callback will end the call
            self._task.cancel()
            raise
        if self._raised is not None:
            raise self._raised
        return self.result is None

    async def _run(self, hooked_call: Coroutine[Any, Any, Any]) -> None:
        try:
            self.result = await hooked_call
        except BaseException as error:
            self._raised = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._reached.set()

    async def end(self, value: Any = None, error: Exception | None = None) -> Any:
        """Resume the hooks with the outcome of the call and wait for their end.

        Returns `result`; `None` if the call failed and hooks kept its error.
        """
        self._value, self._error = value, error
        self._resumed.set()
        await self._task.wait()
        return self.result


class MessageQueue:
    """An unbounded queue that one task fills and another iterates over until it is closed."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._news, self._closed = anyio.Event(), False

    def put(self, item: object) -> None:
        """Add an item."""
        self._items.append(item)
        self._notify()

    def close(self) -> None:
        """End the iteration once the queue is empty."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def __aiter__(self) -> MessageQueue:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            await self._news.wait()
        return self._items.popleft()
