"""Dead letters: events that a remote observer could not handle, to be read or told again."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from uuid import uuid4

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._database import insert_into
from hookline.store._relay_queue import encode_hearers
from hookline.store._rows import replace_unstorable
from hookline.store._tables import dead_letters, operations, relay_queue

__all__ = ["DeadLetter", "add_dead_letter", "read_dead_letters", "replay_dead_letters"]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a remote observer could not handle.

    Attributes:
        id: Its id.
        hearer: The name under which it was heard.
        hook_id: The observer; `""` if the event could not be read or carried.
        operation_id: The operation.
        number: The number of the event.
        tenant_id: The tenant.
        tries: How often it was tried.
        error: Why it failed the last time.
        created_at: When it was given up, in unix seconds.
    """

    id: str
    hearer: str
    hook_id: str
    operation_id: str
    number: int
    tenant_id: str
    tries: int
    error: str
    created_at: float


async def add_dead_letter(
    connection: AsyncConnection,
    *,
    hearer: str,
    hook_id: str,
    operation_id: str,
    number: int,
    tenant_id: str,
    tries: int,
    error: str,
    now: ColumnElement[float],
) -> str:
    """Store a dead letter, once for each event and observer, and return its id."""
    key = sha256("\0".join((hearer, hook_id, operation_id, str(number))).encode(errors="surrogatepass")).hexdigest()[
        :16
    ]
    values = {
        "id": key,
        "hearer": hearer[:400],
        "hook_id": replace_unstorable(hook_id)[:400],
        "operation_id": operation_id,
        "number": number,
        "tenant_id": tenant_id,
        "tries": tries,
        "error": replace_unstorable(error),
        "created_at": now,
    }
    newer = {"tries": tries, "error": values["error"], "created_at": now}
    await connection.execute(
        insert_into(connection, dead_letters)
        .values(values)
        .on_conflict_do_update(index_elements=[dead_letters.c.id], set_=newer)
    )
    return key


async def read_dead_letters(
    connection: AsyncConnection, *, hearer: str | None = None, tenant_id: str | None = None, limit: int = 100
) -> list[DeadLetter]:
    """Read dead letters, newest first."""
    query = select(dead_letters).order_by(dead_letters.c.created_at.desc(), dead_letters.c.id).limit(limit)
    for column, value in ((dead_letters.c.hearer, hearer), (dead_letters.c.tenant_id, tenant_id)):
        if value is not None:
            query = query.where(column == value)
    return [DeadLetter(**row._mapping) for row in await connection.execute(query)]


async def replay_dead_letters(
    connection: AsyncConnection, ids: Collection[str] | None, hearer: str | None, *, now: ColumnElement[float]
) -> int:
    """Queue the events of dead letters again, each for the name that could not handle it, and remove the dead letters.

    Args:
        connection: The transaction.
        ids: The dead letters; `None` for all.
        hearer: Only those of this name.
        now: The present time.

    Returns:
        The number of dead letters.
    """
    query = select(dead_letters, operations.c.day).join(
        operations, operations.c.operation_id == dead_letters.c.operation_id
    )
    if ids is not None:
        query = query.where(dead_letters.c.id.in_(ids))
    if hearer is not None:
        query = query.where(dead_letters.c.hearer == hearer)
    found = (await connection.execute(query.order_by(dead_letters.c.operation_id, dead_letters.c.number))).all()
    if not found:
        return 0
    replay = uuid4().hex
    again = {(row.hearer, row.operation_id, row.number): row for row in found}  # one may have failed in two observers
    rows = [
        {
            "operation_id": row.operation_id,
            "first": row.number,
            "number": row.number,
            "tenant_id": row.tenant_id,
            "hearers": encode_hearers({row.hearer: []}),
            "replay": f"{replay}-{nth}"[:40],
            "day": row.day,
        }
        for nth, row in enumerate(again.values())
    ]
    await connection.execute(insert(relay_queue).values(created_at=now), rows)
    gone = delete(dead_letters).where(dead_letters.c.id == bindparam("its_id"))
    await connection.execute(gone, [{"its_id": row.id} for row in found])
    return len(found)
