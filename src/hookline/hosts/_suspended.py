"""A hooked call that a coding agent makes itself, between two processes that it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["SuspendedCall"]


class SuspendedCall:
    """A call whose hooks run in a task, which waits while the coding agent makes the call.

    Attributes:
        given: The arguments, instruction or call that hooks left for the agent.
        reached: Whether hooks let the call happen.
        result: What the hooked call returned.
    """

    def __init__(self) -> None:
        self.given: Any = None
        self.reached = False
        self.result: Any = None
        self._progress, self._resumed = asyncio.Event(), asyncio.Event()
        self._value: Any = None
        self._error: Exception | None = None
        self._raised: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def work(self, given: Any, *_: object) -> Any:
        """Wait while the agent makes the call; pass this as the work of a hooked call."""
        self.given, self.reached = given, True
        self._progress.set()
        await self._resumed.wait()
        if self._error is not None:
            raise self._error
        return self._value

    async def begin(self, hooked_call: Coroutine[Any, Any, Any]) -> bool:
        """Run the hooks up to the call; return whether the agent should make it.

        If not, hooks answered or denied it, and `result` is set. If this is cancelled, so is the call.
        """
        self._task = asyncio.create_task(self._run(hooked_call))
        try:
            await self._progress.wait()
        except asyncio.CancelledError:
            await self.cancel()
            raise
        if self._raised is not None:
            raise self._raised
        return self.reached

    async def end(self, value: Any = None, error: Exception | None = None) -> Any:
        """Resume the hooks with the outcome of the call; return the result of the hooked call.

        Args:
            value: The outcome.
            error: What the call failed with.
        """
        self._value, self._error = value, error
        self._resumed.set()
        if self._task is not None:
            await asyncio.shield(self._task)
        return self.result

    async def cancel(self) -> None:
        """Cancel the hooks, and wait for their end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, hooked_call: Coroutine[Any, Any, Any]) -> None:
        try:
            self.result = await hooked_call
        except BaseException as error:
            self._raised = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._progress.set()
