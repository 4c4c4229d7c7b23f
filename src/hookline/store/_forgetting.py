"""Forgetting operations that ended long ago, with all that is known of them, in small transactions."""

from collections.abc import Sequence

from sqlalchemy import delete, exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._engine import Database
from hookline.store._tables import attempts, decisions, deliveries, events, operations

__all__ = ["prune"]

TOGETHER = 200
"""Operations that are forgotten in one transaction, so that others are not kept waiting for long."""
UNSETTLED = ("waiting", "pending")


async def prune(database: Database, older_than: float) -> int:
    """Forget operations that ended long ago and have nothing left to deliver.

    Args:
        database: Where they are.
        older_than: Seconds since they were written last.

    Returns:
        How many were forgotten.
    """
    open_statuses = ("running", "waiting_for_human")
    undelivered = exists().where(
        deliveries.c.operation_id == operations.c.operation_id, deliveries.c.status.in_(UNSETTLED)
    )
    count = 0
    while True:
        async with database.writing() as connection:
            query = (
                select(operations.c.operation_id)
                .where(operations.c.status.not_in(open_statuses))
                .where(operations.c.updated_at < database.now_sql() - older_than, ~undelivered)
                .limit(TOGETHER)
            )
            ids = list((await connection.execute(query)).scalars())
            if not ids:
                return count
            if database.dialect == "postgresql":
                ids = await _settled(connection, ids)
            theirs = select(deliveries.c.id).where(deliveries.c.operation_id.in_(ids))
            await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(theirs)))
            for table in (deliveries, events, decisions, operations):
                await connection.execute(delete(table).where(table.c.operation_id.in_(ids)))
        count += len(ids)


async def _settled(connection: AsyncConnection, ids: Sequence[str]) -> list[str]:
    """Those of some operations that still have nothing to deliver, once nobody else can replay what they had."""
    theirs = select(deliveries.c.operation_id, deliveries.c.status).where(deliveries.c.operation_id.in_(ids))
    rows = (await connection.execute(theirs.order_by(deliveries.c.seq).with_for_update())).all()
    undelivered = {row.operation_id for row in rows if row.status in UNSETTLED}
    return [each for each in ids if each not in undelivered]
