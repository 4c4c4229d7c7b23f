"""`OperationSummaries`: what operations did and cost, read at most every few seconds for all readers together."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store import (
    OperationFilter,
    OperationSummary,
    SqlStore,
    read_clock,
    read_known_names,
    summarize_operations,
)

__all__ = ["RANGES", "OperationSummaries", "RangeName"]

T = TypeVar("T")

RangeName: TypeAlias = Literal["1h", "24h", "7d", "30d"]
RANGES: dict[RangeName, tuple[int, int]] = {
    "1h": (3600, 60),
    "24h": (86_400, 48),
    "7d": (7 * 86_400, 56),
    "30d": (30 * 86_400, 30),
}
"""Length of each range in seconds, and the number of its time spans."""
assert tuple(RANGES) == get_args(RangeName)

SUMMARY_SECONDS, NAMES_SECONDS = 5.0, 20.0
"""Seconds for which a result is kept at least."""
LEISURE = 20.0
"""A result is kept for this many times the time that it took to read, so that reading takes 5 % of the time at most."""
MOST_RESULTS = 200
MOST_NAMES = 200


class OperationSummaries:
    """Reads summaries of operations and the names of agents and tenants, and keeps them for some seconds.

    Args:
        store: The store of the operations.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._kept: dict[tuple[Any, ...], tuple[float, asyncio.Task[Any]]] = {}

    async def read(self, tenant_id: str | None, agent_id: str | None, length: RangeName) -> OperationSummary:
        """Read the summary of a range that ends with the present minute, half an hour, three hours or day.

        Args:
            tenant_id: Only operations of this tenant.
            agent_id: Only operations of this agent.
            length: The length of the range.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """

        async def summarize() -> OperationSummary:
            seconds, spans = RANGES[length]
            step = seconds / spans

            async def read(connection: AsyncConnection) -> OperationSummary:
                now = await read_clock(connection)
                until = math.floor(now / step) * step + step
                return await summarize_operations(
                    connection,
                    OperationFilter(tenant_id=tenant_id, agent_id=agent_id),
                    since=until - seconds,
                    until=until,
                    spans=spans,
                    now=now,
                )

            return await self._store.read(read)

        return await self.cached(("summary", tenant_id, agent_id, length), SUMMARY_SECONDS, summarize)

    async def names(self, column: Literal["agent_id", "tenant_id"], tenant_id: str | None) -> list[str]:
        """Read the agents or tenants of the newest operations, in alphabetical order; 200 at most.

        Args:
            column: Which of the two.
            tenant_id: Only of operations of this tenant.
        """

        async def read() -> list[str]:
            query = partial(read_known_names, column=column, tenant_id=tenant_id, most=MOST_NAMES)
            return await self._store.read(query)

        return await self.cached(("names", column, tenant_id), NAMES_SECONDS, read)

    async def cached(self, key: tuple[Any, ...], seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return a kept result, or read it. Concurrent callers share one reading.

        Args:
            key: What is read, and for whom.
            seconds: Seconds for which the result is kept at least.
            read: Reads it.
        """
        kept = self._kept.get(key)
        if kept is not None and monotonic() < kept[0]:
            return await asyncio.shield(kept[1])

        async def read_and_keep() -> T:
            began = monotonic()
            try:
                result = await read()
            except BaseException:
                self._kept.pop(key, None)
                raise
            ended = monotonic()
            self._kept[key] = ended + max(seconds, LEISURE * (ended - began)), task
            return result

        while len(self._kept) >= MOST_RESULTS:
            del self._kept[next(iter(self._kept))]
        task = asyncio.create_task(read_and_keep())
        self._kept[key] = math.inf, task
        return await asyncio.shield(task)
