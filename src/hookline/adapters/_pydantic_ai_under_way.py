"""What is under way in a run of Pydantic AI: its scope, its calls, and the agents that its tools call."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

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
        over: Set at its end, if somebody waits for that.
    """

    def __init__(self, calls: dict[asyncio.Task[Any], UnderWay]) -> None:
        self._calls = calls
        self.over: asyncio.Event | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._calls[task] = self

    def __exit__(self, *raised: object) -> None:
        del self._calls[self._task]
        if self.over is not None:
            self.over.set()
