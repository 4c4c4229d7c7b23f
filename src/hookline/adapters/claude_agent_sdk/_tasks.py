"""Tasks of their own, on either event loop, for what Claude begins in one callback and ends in another."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any

import anyio

from hookline._deadlines import runs_on_asyncio

__all__ = ["Between", "Detached", "Mail"]


class Detached:
    """Work in a task of its own, which any task may cancel and wait for.

    A task group does not serve: it must be left by the task that entered it, and generators are closed by any.

    Args:
        work: The work. What it raises is its own affair.
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._scope, self._over = anyio.CancelScope(), anyio.Event()
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
            self._over.set()

    def cancel(self) -> None:
        """Have it end."""
        self._scope.cancel()

    async def wait(self) -> None:
        """Wait for its end."""
        await self._over.wait()


class Between:
    """Work that hookline leads in a task of its own, while Claude does it between two callbacks."""

    def __init__(self) -> None:
        self._turned, self._came = anyio.Event(), anyio.Event()
        self._value: Any = None
        self._error: Exception | None = None
        self._raised: BaseException | None = None
        self.given: Any = None
        self.done: Any = None

    async def work(self, given: Any, *_: object) -> Any:
        """Stand for the work: let it begin, and wait for what comes of it."""
        self.given = given
        self._turned.set()
        await self._came.wait()
        if self._error is not None:
            raise self._error
        return self._value

    async def begin(self, leading: Coroutine[Any, Any, Any]) -> bool:
        """Lead it to the work; False if it is over without."""
        self._led = Detached(self._lead(leading))
        try:
            await self._turned.wait()
        except BaseException:  # the callback was cancelled: nobody would ever end it
            self._led.cancel()
            raise
        if self._raised is not None:
            raise self._raised
        return self.done is None

    async def _lead(self, leading: Coroutine[Any, Any, Any]) -> None:
        try:
            self.done = await leading
        except BaseException as error:
            self._raised = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._turned.set()

    async def end(self, value: Any = None, error: Exception | None = None) -> Any:
        """Claude has done the work; what hookline makes of it, `None` where that is the same error."""
        self._value, self._error = value, error
        self._came.set()
        await self._led.wait()
        return self.done


class Mail:
    """What one task leaves for another, which need not be there yet, nor ever come."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._news, self._closed = anyio.Event(), False

    def put(self, item: object) -> None:
        """Leave something."""
        self._items.append(item)
        self._tell()

    def close(self) -> None:
        """Nothing more will come."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def __aiter__(self) -> Mail:
        return self

    async def __anext__(self) -> Any:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            await self._news.wait()
        return self._items.popleft()
