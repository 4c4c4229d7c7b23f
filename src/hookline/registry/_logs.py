"""`ExecutionLog`: what hooks did, kept in a store for a while, to be read, filtered and added up."""

import asyncio
import logging
from time import time
from types import TracebackType
from typing import Self

import anyio
from sqlalchemy.exc import SQLAlchemyError

from hookline.errors import HookUsageError, StoreUnavailableError
from hookline.registry import _logs_reading as reading
from hookline.registry._logs_pruning import prune
from hookline.registry._logs_rows import ExecutionRow, first_key, key_of
from hookline.registry._logs_writing import LogWriter, Sample
from hookline.registry._statistics import Grouping, Statistic, read_statistics
from hookline.signals import ChainRun, HookExecution, chain_ran, hook_executed
from hookline.store import Page, SqlStore, check_limit

__all__ = ["ExecutionLog"]

logger = logging.getLogger("hookline")

LONGEST_PAGE = 1000
PRUNE_EVERY = 60.0
"""Seconds between two rounds of forgetting."""
CLOSING = 5.0
"""Seconds that closing takes at most."""


class ExecutionLog:
    """Keeps what hooks did: a row for each call that was led through interceptors, and sums over the hooks.

    While it is open with `async with`, it hears of all runs of its process. A run only leaves a note; a task writes
    the notes in batches. If they come faster than the store takes them, or the store is gone, notes wait, and those
    that find no room are dropped and counted. No run ever waits for the log, or fails by it. It can be read without
    being open.

    Args:
        store: Where it is kept; open for as long as the log is used.
        observers: Whether runs of observers become rows and count too, and those of interceptors that nobody waits for.
        max_queued: Notes that may wait to be written.
        retention_hours: How long rows and the sums of minutes are kept; sums of hours are kept for 30 days.
        max_rows: How many rows are kept, about.
        sample: Given a record, says whether it becomes a row; all unless given. Sums have them all.

    Raises:
        HookUsageError: If an argument makes no sense.
    """

    def __init__(
        self,
        store: SqlStore,
        *,
        observers: bool = False,
        max_queued: int = 10_000,
        retention_hours: float = 24.0,
        max_rows: int = 1_000_000,
        sample: Sample | None = None,
    ) -> None:
        for name, number in (("max_queued", max_queued), ("max_rows", max_rows)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise HookUsageError(f"`{name}` is a whole number above 0; got {number!r}.")
        if isinstance(retention_hours, bool) or not isinstance(retention_hours, int | float) or not retention_hours > 0:
            raise HookUsageError(f"`retention_hours` is a number above 0; got {retention_hours!r}.")
        if sample is not None and not callable(sample):
            raise HookUsageError(f"`sample` is a function of one record; got {sample!r}.")
        self._store = store
        self._observers = observers
        self._retention_seconds = min(retention_hours * 3600, 1e10)
        self._max_rows = max_rows
        self._writer = LogWriter(store, max_queued, sample)
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = False

    @property
    def queued(self) -> int:
        """Records that wait to be written."""
        return self._writer.queued

    @property
    def written(self) -> int:
        """Rows that this process has written."""
        return self._writer.written

    @property
    def dropped(self) -> int:
        """Records that this process has not written and never will."""
        return self._writer.dropped

    async def __aenter__(self) -> Self:
        """Hear of runs from now on.

        Raises:
            HookUsageError: If it was opened before.
        """
        if self._opened:
            raise HookUsageError("This ExecutionLog was opened before; make a new one for another `async with`.")
        self._opened = True
        self._tasks = [asyncio.create_task(self._writer.run()), asyncio.create_task(self._keep_pruning())]
        chain_ran.connect(self._chain_ran, weak=False)
        if self._observers:
            hook_executed.connect(self._hook_executed, weak=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See `aclose`."""
        await self.aclose()

    async def aclose(self) -> None:
        """Hear no more, and write what waits, if the store takes it within five seconds; drop the rest."""
        chain_ran.disconnect(self._chain_ran)
        hook_executed.disconnect(self._hook_executed)
        with anyio.move_on_after(CLOSING, shield=True):
            await self._writer.flush()
        for task in self._tasks:
            task.cancel()
        with anyio.move_on_after(CLOSING, shield=True):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.give_up()

    async def flush(self) -> bool:
        """Write what waits now; whether the store took it all."""
        return await self._writer.flush()

    async def logs(
        self,
        tenant_id: str | None,
        *,
        hook_id: str | None = None,
        point: str | None = None,
        status: str | None = None,
        operation_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ExecutionRow]:
        """A part of the log, what ended last first.

        Args:
            tenant_id: Only what ran for this tenant; `None` for all of them.
            hook_id: Only where this hook ran.
            point: Only at this point: the name of a call's class (`"ToolCall"`), or the wire name of an event.
            status: Only what ended so; with a `hook_id`, only where that hook did.
            operation_id: Only of this operation.
            since: Only what ended at this time or later, in seconds since 1970.
            until: Only what ended before this time.
            cursor: Where the part begins; that of the part before.
            limit: How many at most, up to 1000.

        Raises:
            HookUsageError: If an argument makes no sense.
            StoreUnavailableError: If the database cannot be reached.
        """
        check_limit(limit, LONGEST_PAGE)
        which = reading.wanted(
            tenant_id,
            hook_id=hook_id,
            point=point,
            status=status,
            operation_id=operation_id,
            since=since,
            until=until,
            cursor=cursor,
        )
        async with self._store.reading() as connection:
            return await reading.page(connection, which, limit)

    async def log(self, id: str, tenant_id: str | None) -> ExecutionRow | None:  # noqa: A002
        """One row of the log.

        Args:
            id: The row.
            tenant_id: Only if it ran for this tenant; `None` for any.

        Returns:
            The row; `None` if there is none, or it is another tenant's.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        try:
            key = key_of(id)
        except HookUsageError:
            return None
        async with self._store.reading() as connection:
            return await reading.single(connection, key, tenant_id)

    async def statistics(
        self,
        tenant_id: str | None,
        *,
        hook_id: str | None = None,
        point: str | None = None,
        since: float | None = None,
        by: Grouping = "hook",
    ) -> list[Statistic]:
        """What hooks did, added up; the same work however many rows the log has.

        Args:
            tenant_id: Only what ran for this tenant; `None` for all of them.
            hook_id: Only what this hook did.
            point: Only what was done at this point.
            since: Only from the minute of this time on, in seconds since 1970; from its hour on where that is older
                than the log. Unless given: all that is kept; by minutes, those of the last hour.
            by: `"hook"`, `"point"` or `"tenant"`: for each of them, the busiest first; `"minute"`: in order.

        Raises:
            HookUsageError: If an argument makes no sense.
            StoreUnavailableError: If the database cannot be reached.
        """
        if since is not None:
            first_key(since)
        async with self._store.reading() as connection:
            return await read_statistics(
                connection,
                tenant_id,
                hook_id=hook_id,
                point=point,
                since=since,
                by=by,
                minutes_since=time() - self._retention_seconds,
            )

    async def prune(self) -> int:
        """Forget what is too old and too much, a little at a time; while the log is open, that is done every minute.

        Returns:
            How many rows were forgotten.

        Raises:
            StoreUnavailableError: If the database cannot be reached.
        """
        return await prune(self._store, retention_seconds=self._retention_seconds, max_rows=self._max_rows)

    def _chain_ran(self, _: object, ran: ChainRun) -> None:
        self._writer.put(ran)

    def _hook_executed(self, _: object, execution: HookExecution) -> None:
        if not execution.in_chain:
            self._writer.put(execution)

    async def _keep_pruning(self) -> None:
        while True:
            try:
                await self.prune()
            except (StoreUnavailableError, SQLAlchemyError) as error:
                logger.warning("The log of hook executions could not be pruned: %s", error)
            await asyncio.sleep(PRUNE_EVERY)
