"""Delete operations that ended long ago with everything that belongs to them, in small steps that stop nobody.

On PostgreSQL, the events of a day are dropped with their partition once nothing in it is needed any more. Operations of
that day that are still needed are moved out of it before: those that have not ended, have ended since, or still have
something to deliver.
"""

from collections.abc import Collection, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import anyio
from sqlalchemy import Row, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._database import Database
from hookline.store._partitions import DAY, GIVEN_UP, KEPT, day_of, drop_day, find_partitions, move_rows
from hookline.store._reading import LIVE
from hookline.store._tables import (
    attempts,
    dead_letters,
    decisions,
    deliveries,
    events,
    model_calls,
    operation_tags,
    operations,
    relay_queue,
    state_rows,
)

__all__ = ["give_way", "prune_operations"]

UNSETTLED = ("waiting", "pending")
BATCH_SIZE = 200
"""Operations that are deleted or moved in one transaction at most, so that other transactions do not wait for long."""
EVENTS = {"sqlite": 1000, "postgresql": 5000}
"""Events that are deleted or moved in one transaction, about."""
PAUSE = 0.005
"""Shortest pause, in seconds, between two transactions, so that other writers get their turn."""


class Deadline(NamedTuple):
    """The bounds of what is old enough to be deleted.

    Attributes:
        older_than: Seconds since an operation was last written.
        first_kept_day: The first day that has not wholly passed that long ago.
        present_day: The present day.
    """

    older_than: float
    first_kept_day: int
    present_day: int


async def prune_operations(database: Database, older_than: float) -> int:
    """Delete operations that ended long ago and have nothing left to deliver or to relay.

    Args:
        database: The database.
        older_than: Seconds since the operations were last written. On PostgreSQL, from a day on, an operation is
            deleted when that long has passed since the end of the day on which it began, if this is later.

    Returns:
        The number of deleted operations.
    """
    days: set[int] = set()
    now = await database.now()
    deadline = Deadline(older_than, day_of(now - max(0.0, older_than)), day_of(now))
    if database.dialect == "postgresql":
        async with database.reading() as connection:
            days = {day for day in await find_partitions(connection, "events") if day < deadline.first_kept_day}
    count = 0
    began = monotonic()
    while (deleted := await _delete_batch(database, deadline, days)) is not None:
        count += deleted
        await give_way(database.dialect, began)
        began = monotonic()
    for day in sorted(days):
        await _keep_events(database, day)
        await drop_day(database, ["events"], day, is_needed=partial(_has_operations, day=day))
    if database.dialect == "postgresql":
        await _drop_empty_days(database, deadline)
    return count


async def give_way(dialect: str, began: float) -> None:
    """Pause after a transaction, for as long as it took on SQLite, where another process looks only now and then.

    Args:
        dialect: The kind of database.
        began: When the transaction began, by `time.monotonic`.
    """
    await anyio.sleep(max(PAUSE, monotonic() - began if dialect == "sqlite" else 0.0))


async def _delete_batch(database: Database, deadline: Deadline, days: Collection[int]) -> int | None:
    """Delete some operations in a transaction, without their events in partitions that are dropped later.

    Returns:
        The number of deleted operations; `None` if there are none left.
    """
    async with database.writing() as connection:
        found = (await connection.execute(_select_old(database, deadline))).all()
        if not found:
            return None
        most = EVENTS[database.dialect]
        rows = _take_some(found, most, days)
        if database.dialect == "postgresql":
            rows = await _keep_settled(connection, rows)
            if not rows:
                return 0
        first = rows[0]
        if first.day not in days and first.events > most and await _delete_first_events(connection, first, most):
            return 0
        ids = [row.operation_id for row in rows]
        # Both are by the clock of the database, so that no delivery is older than its operation.
        since = day_of(min(row.created_at for row in rows)) if all(row.day for row in rows) else KEPT
        its = deliveries.c.operation_id.in_(ids) & or_(deliveries.c.day <= GIVEN_UP, deliveries.c.day >= since)
        theirs = attempts.c.delivery_id.in_(select(deliveries.c.id).where(its))
        where = or_(attempts.c.day <= GIVEN_UP, attempts.c.day >= since)
        await connection.execute(delete(attempts).where(theirs, where))
        await connection.execute(delete(deliveries).where(its))
        for day in {KEPT, *(row.day for row in rows)}.difference(days):
            names = [row.operation_id for row in rows if day in (KEPT, row.day)]
            await connection.execute(delete(events).where(events.c.day == day, events.c.operation_id.in_(names)))
        for table in (decisions, dead_letters, state_rows, model_calls, operation_tags, operations):
            await connection.execute(delete(table).where(table.c.operation_id.in_(ids)))
    return len(ids)


def _select_old(database: Database, deadline: Deadline) -> Any:
    """Select operations that may be deleted."""
    undelivered = exists().where(
        deliveries.c.operation_id == operations.c.operation_id,
        deliveries.c.status.in_(UNSETTLED),
        deliveries.c.day == KEPT,
    )
    untold = exists().where(relay_queue.c.operation_id == operations.c.operation_id)
    query = (
        select(operations.c.operation_id, operations.c.events, operations.c.day, operations.c.created_at)
        .where(operations.c.status.not_in(LIVE))
        .where(operations.c.updated_at < database.now_sql() - deadline.older_than, ~undelivered, ~untold)
        .limit(BATCH_SIZE)
    )
    if database.dialect == "postgresql" and deadline.older_than >= DAY:
        # Those of the last of these days wait until it is dropped; a clock that was ahead has made later days.
        day = operations.c.day
        query = query.where(or_(day < deadline.first_kept_day, day > deadline.present_day))
    return query


def _take_some(found: Sequence[Any], most: int, days: Collection[int] = ()) -> list[Row[Any]]:
    """Return the first operations, up to a number of events that are to be deleted."""
    taken: list[Row[Any]] = []
    count = 0
    for row in found:
        count += 0 if row.day in days else row.events
        if taken and count > most:
            break
        taken.append(row)
    return taken


async def _keep_settled(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[Row[Any]]:
    """Lock the deliveries of operations, and return the operations that still have nothing left to deliver.

    Between the first query and the lock, somebody may have replayed one of their deliveries.
    """
    ids = [row.operation_id for row in rows]
    theirs = select(deliveries.c.operation_id, deliveries.c.status).where(deliveries.c.operation_id.in_(ids))
    locked = (await connection.execute(theirs.order_by(deliveries.c.seq).with_for_update())).all()
    # A delivery that was replayed before it could be locked is another row by now, which the lock does not show.
    again = theirs.where(deliveries.c.day == KEPT, deliveries.c.status.in_(UNSETTLED))
    undelivered = {row.operation_id for row in locked if row.status in UNSETTLED}
    undelivered |= {row.operation_id for row in await connection.execute(again)}
    return [row for row in rows if row.operation_id not in undelivered]


async def _delete_first_events(connection: AsyncConnection, row: Row[Any], most: int) -> bool:
    """Delete the first events of an operation that has many, and return whether there may be more."""
    its = (events.c.day == row.day) & (events.c.operation_id == row.operation_id)
    some = select(events.c.number).where(its).order_by(events.c.number).limit(most)
    return (await connection.execute(delete(events).where(its, events.c.number.in_(some)))).rowcount == most


async def _keep_events(database: Database, day: int) -> None:
    """Move the events of the operations of a day that are still needed out of its partition.

    An operation is locked meanwhile, so that its next commit finds the day that its events have then.
    """
    while True:
        async with database.writing() as connection:
            some = (
                select(operations.c.operation_id, operations.c.events, operations.c.day)
                .where(operations.c.day == day)
                .order_by(operations.c.operation_id)
                .limit(BATCH_SIZE)
                .with_for_update(skip_locked=True)
            )
            rows = _take_some((await connection.execute(some)).all(), EVENTS[database.dialect])
            if not rows:
                return
            ids = [row.operation_id for row in rows]
            # Events that an `EventLog` stored before the operation itself was stored; nothing shows them.
            await connection.execute(delete(events).where(events.c.day == KEPT, events.c.operation_id.in_(ids)))
            await connection.execute(
                move_rows(events, (events.c.day == day) & events.c.operation_id.in_(ids), lambda _: {"day": KEPT})
            )
            await connection.execute(update(operations).where(operations.c.operation_id.in_(ids)).values(day=KEPT))
        await anyio.sleep(PAUSE)


async def _has_operations(connection: AsyncConnection, day: int) -> bool:
    return (await connection.execute(select(func.count()).where(operations.c.day == day))).scalar_one() > 0


async def _drop_empty_days(database: Database, deadline: Deadline) -> None:
    """Drop the partitions of deliveries from which everything was deleted."""

    async def holds_rows(connection: AsyncConnection, day: int) -> bool:
        # Through the tables and not their partitions, which another process may drop at this moment.
        found = select(exists().where(deliveries.c.day == day) | exists().where(attempts.c.day == day))
        return bool((await connection.execute(found)).scalar_one())

    async with database.reading() as connection:
        days = [day for day in await find_partitions(connection, "deliveries") if day < deadline.first_kept_day]
        empty = [day for day in days if not await holds_rows(connection, day)]
    for day in empty:
        await drop_day(
            database,
            ["deliveries", "attempts"],
            day,
            is_needed=partial(holds_rows, day=day),
        )
