"""Forgetting what is old, a little at a time, so that nobody who writes waits for it."""

from time import time
from typing import Any

import anyio
from sqlalchemy import ColumnElement, Table, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.registry._logs_rows import first_key
from hookline.registry._statistics import too_old
from hookline.store import SqlStore, execution_hooks, executions, statistics

__all__ = ["prune"]

TOGETHER = 200
"""Rows that one transaction forgets."""
PAUSE = 0.005
"""Seconds between two transactions, in which others get their turn."""


async def prune(store: SqlStore, *, retention_seconds: float, max_rows: int) -> int:
    """Forget executions that are too old or too many, and sums that are too old.

    Args:
        store: Where they are.
        retention_seconds: How long they are kept.
        max_rows: How many are kept.

    Returns:
        How many executions were forgotten.
    """
    oldest = time() - retention_seconds
    async with store.reading() as connection:
        surplus = select(executions.c.id).order_by(executions.c.id.desc()).offset(max_rows).limit(1)
        too_many = (await connection.execute(surplus)).scalar()
    old = executions.c.id < max(first_key(oldest), 0 if too_many is None else too_many + 1)
    count = await _forget(store, executions, old)
    for condition in too_old(oldest):
        await _forget(store, statistics, condition)
    return count


async def _forget(store: SqlStore, table: Table, old: ColumnElement[bool]) -> int:
    count = 0
    while True:
        async with store.writing() as connection:
            done = await _forget_some(connection, table, old)
        count += done
        if done < TOGETHER:
            return count
        await anyio.sleep(PAUSE)


async def _forget_some(connection: AsyncConnection, table: Table, old: ColumnElement[bool]) -> int:
    key: list[Any] = list(table.primary_key)
    # Another process may be at it too: then each forgets its share, and neither waits.
    some = select(*key).where(old).limit(TOGETHER).with_for_update(skip_locked=True)
    if table is executions:
        some = some.order_by(executions.c.id)
    keys = [tuple(row) for row in await connection.execute(some)]
    if keys:
        if table is executions:
            its = execution_hooks.c.id.in_([each for (each,) in keys])
            await connection.execute(delete(execution_hooks).where(its))
        await connection.execute(delete(table).where(tuple_(*key).in_(keys)))
    return len(keys)
