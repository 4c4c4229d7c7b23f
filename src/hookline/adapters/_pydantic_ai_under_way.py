"""What is under way in a run of Pydantic AI: its scope, its calls, and the agents that its tools call."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
from pydantic_ai.tools import RunContext

from hookline.runtime import ForeignRun

__all__ = ["Caller", "Scope", "UnderWay", "present_caller"]


class Scope:
    """Ends the run in the framework's way when somebody interrupts the operation.

    Attributes:
        cancel_called: Whether its end has been asked for.
        over: Whether the operation has ended.
    """

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx, self.cancel_called, self.over = ctx, False, False

    def cancel(self) -> None:
        """End it."""
        self.cancel_called = True
        self._ctx.cancel()


@dataclass
class Caller:
    """The run whose tool is running, and the operation that the agent which it calls is to be."""

    run: ForeignRun
    scope: Scope
    child: str | None = None


present_caller: ContextVar[Caller | None] = ContextVar("hookline_pydantic_ai_caller", default=None)


class UnderWay:
    """A call that is under way in the present task.

    Attributes:
        unwound: The end of all calls of a run that has ended before them, if it has.
    """

    def __init__(self, calls: dict[asyncio.Task[Any], UnderWay]) -> None:
        self._calls = calls
        self._over = asyncio.Event()
        self.unwound: asyncio.Event | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._calls[task] = self

    async def __aexit__(self, *raised: object) -> None:
        del self._calls[self._task]
        self._over.set()
        if self.unwound is not None:
            # The framework cancels what is left at the end of the first call, and so would interrupt what another one
            # still has to clean up.
            await self.unwound.wait()

    @classmethod
    async def unwind(cls, calls: dict[asyncio.Task[Any], UnderWay]) -> None:
        """Cancel calls, each of them once, and wait until all of them have cleaned up after themselves."""
        unwound, left = asyncio.Event(), dict(calls)
        for task, call in left.items():
            call.unwound = unwound
            task.cancel()
        try:
            with anyio.CancelScope(shield=True):
                for call in left.values():
                    await call._over.wait()
        finally:
            unwound.set()
