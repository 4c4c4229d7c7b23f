"""Ask for the interruption of operations, in whatever process they run, and stop those that run in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import OperationFinishedError, OperationNotFoundError, StoreUnavailableError
from hookline.runtime import FORMAT, interrupt
from hookline.store._changes import write_audit
from hookline.store._database import Database
from hookline.store._lease import is_orphaned_sql
from hookline.store._reading import LIVE, StoredOperation, is_called, read_operation
from hookline.store._rows import check_text, is_storable
from hookline.store._tables import operations
from hookline.store._topics import INTERRUPTS
from hookline.wakeups import Wakeups

__all__ = ["InterruptWatch", "find_unattended_interrupts", "request_interrupt"]

logger = logging.getLogger("hookline")

LOOK_SECONDS = 0.5
"""Seconds between two looks at least: the file of an SQLite database wakes everybody whenever it changes. A look takes
about 3 ms; an operation that commits meanwhile is stopped by its commit."""
MOST_DESCENDANTS = 10_000
"""Sub-agent operations that are interrupted with an operation, at most."""


async def request_interrupt(
    database: Database, operation_id: str, *, by: str, tenant_id: str | None
) -> StoredOperation:
    """Record that an operation and its sub-agents are to be interrupted; the first request counts.

    Args:
        database: The database.
        operation_id: The id of the operation.
        by: Who asks.
        tenant_id: Only if the operation is this tenant's.

    Returns:
        The operation, with who asked first.

    Raises:
        OperationNotFoundError: If there is no such operation, or it is another tenant's.
        OperationFinishedError: If it has ended.
    """
    if not is_storable(operation_id):
        raise OperationNotFoundError(operation_id)
    check_text(operation_id, "`by`", by)

    async def flag(connection: AsyncConnection) -> StoredOperation:
        locked = select(operations.c.tenant_id).where(operations.c.operation_id == operation_id).with_for_update()
        found = (await connection.execute(locked)).first()
        operation = await read_operation(connection, operation_id)
        if found is None or operation is None or tenant_id not in (None, operation.tenant_id):
            raise OperationNotFoundError(operation_id)
        if operation.status not in LIVE:
            raise OperationFinishedError(operation_id, operation.status)
        its = await read_live_family(connection, operation)
        now = database.now_sql()
        flagged = update(operations).where(
            operations.c.operation_id.in_(its),
            operations.c.status.in_(LIVE),
            operations.c.interrupt_asked_at.is_(None),
        )
        await connection.execute(flagged.values(interrupt_asked_at=now, interrupt_asked_by=by, updated_at=now))
        if operation.interrupt_asked_at is None:
            await write_audit(connection, operation.tenant_id, by, "operation.interrupt", operation_id, now=now)
            operation = await read_operation(connection, operation_id)
            assert operation is not None
        return operation

    return await database.write(flag)


async def read_live_family(connection: AsyncConnection, operation: StoredOperation) -> list[str]:
    """Return the id of an operation, and those of its sub-agents that have not ended, level by level.

    A sub-agent that waits for a person outlives its caller, so that callers which have ended are followed too. Only
    operations of the same tenant are, since a run may name any operation as its parent.
    """
    found = {operation.operation_id: None}
    level = [operation.operation_id]
    while level and len(found) < MOST_DESCENDANTS:
        query = select(operations.c.operation_id).where(
            operations.c.parent_operation_id.in_(level), operations.c.tenant_id == operation.tenant_id
        )
        called = (await connection.execute(query.limit(MOST_DESCENDANTS))).scalars()
        level = [each for each in called if each not in found]
        found |= dict.fromkeys(level)
    return sorted(found)


async def find_unattended_interrupts(
    database: Database, connection: AsyncConnection, *, agent_ids: Sequence[str], exclude: Sequence[str], limit: int
) -> list[str]:
    """Find operations whose interruption was asked for and that no process runs: they wait, or are orphans.

    A sub-agent of a running operation is left out, unless it waits: its caller ends it.
    """
    waits = operations.c.status == "waiting_for_human"
    query = (
        select(operations.c.operation_id)
        .where(operations.c.interrupt_asked_at.is_not(None), operations.c.status.in_(LIVE))
        .where(waits | (is_orphaned_sql(database) & ~is_called))
        .where(operations.c.agent_id.in_(agent_ids), operations.c.format <= FORMAT)
        .order_by(operations.c.operation_id)
        .limit(limit)
    )
    if exclude:
        query = query.where(operations.c.operation_id.not_in(exclude))
    return list((await connection.execute(query)).scalars())


class InterruptWatch:
    """Stops the operations that this process runs when somebody asks for that in the database.

    The watch begins with the first operation that runs here. It costs an operation nothing: the database is asked only
    when the store's wake-ups say so, for all operations of this process at once.

    Args:
        database: The database.
        worker_id: The id of this process.
        wakeups: Wakes the watch.
    """

    def __init__(self, database: Database, worker_id: str, wakeups: Wakeups) -> None:
        self._database, self._wakeups = database, wakeups
        self._query = select(operations.c.operation_id).where(
            operations.c.interrupt_asked_at.is_not(None),
            operations.c.status == "running",
            operations.c.owner == worker_id,
        )
        self._interrupted: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to watch, unless that was done before."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def interrupt(self, operation_id: str) -> None:
        """Stop an operation of this process, once."""
        if operation_id not in self._interrupted and interrupt(operation_id):
            self._interrupted.add(operation_id)

    async def aclose(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        woken = asyncio.Event()
        woken.set()
        async with self._wakeups.woken(INTERRUPTS, woken.set):
            while True:
                await woken.wait()
                woken.clear()
                try:
                    await self._look()
                except (StoreUnavailableError, SQLAlchemyError) as error:  # the next wake-up, or the slow net, tries
                    logger.info("Operations that are to be interrupted could not be looked up: %s", error)
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        found = {row.operation_id for row in await self._database.read_rows(self._query)}
        self._interrupted &= found
        for operation_id in found:
            self.interrupt(operation_id)
