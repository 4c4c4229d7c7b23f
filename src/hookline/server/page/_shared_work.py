"""`SharedWork`: do a piece of work once for all who wait for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

__all__ = ["SharedWork"]

T = TypeVar("T")


class SharedWork:
    """Shares work among those who want the same result at the same time.

    Whoever asks while the work is under way gets the result of the next round, which all others who ask meanwhile get
    too. So no result is older than the question, and however many ask at once, there are two rounds at most.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a round of work that begins after this call.

        Args:
            key: Names the work: whoever gives the same key wants the same result.
            work: Does it.

        Raises:
            Exception: What the work has raised.
        """
        task: asyncio.Task[T] | None = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._run(key, work))
            task.add_done_callback(_retrieve_error)
        return await asyncio.shield(task)

    async def _run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait([before])
        task = self._running[key] = self._next.pop(key)
        try:
            return await work()
        finally:
            if self._running.get(key) is task:
                del self._running[key]


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task, so that asyncio does not warn if all who wanted its result have gone away."""
    if not task.cancelled():
        task.exception()
