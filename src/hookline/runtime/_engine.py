"""`Engine`: what says which process runs an operation, and when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = ["Engine", "Segment"]

Segment: TypeAlias = Callable[[str], Awaitable[None]]
"""Runs an operation of the store, by its id, until it ends or waits for a person. Returns at once if it cannot run."""


@runtime_checkable
class Engine(Protocol):
    """The interface of what says which process runs an operation, and when.

    An engine keeps nothing of an operation but its id: the state, its events and its deliveries are in the store, which
    lets one process at a time write them. An engine calls whole segments, and neither repeats nor replays their model
    calls, tool calls and hooks.

    After each `begin` and each `wake` of an operation that can go on, the engine calls `segment(operation_id)` at least
    once in a living process that serves the agent, and again if that process dies. It may call it too often.
    """

    async def begin(self, operation_id: str, *, agent_id: str, agent_version: str = "", queue: str = "") -> None:
        """Have a new operation run. Its first state is stored already, and belongs to no process.

        Args:
            operation_id: The operation.
            agent_id: Its agent.
            agent_version: The version of the agent; `""` for any.
            queue: The queue of the engine; `""` for its default.
        """
        ...

    async def wake(self, operation_id: str, *, not_before: float | None = None) -> None:
        """Have an operation run again, now or later.

        Args:
            operation_id: The operation.
            not_before: When, in unix seconds; `None` for now. An engine may do it earlier.
        """
        ...

    def serve(
        self,
        agents: Collection[str],
        segment: Segment,
        *,
        concurrency: int,
        agent_versions: Collection[str] | None = None,
    ) -> AbstractAsyncContextManager[None]:
        """Run operations in this process until the context is left; segments that run then reach their end.

        If the context is left by an exception, they are cancelled.

        Args:
            agents: Ids of the agents that this process can run.
            segment: Runs an operation. The engine calls it in the event loop that entered the context.
            concurrency: Number of segments at a time.
            agent_versions: The versions of these agents that it can run, besides `""`; `None` for all.
        """
        ...
