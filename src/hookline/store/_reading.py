"""What is asked of the stored operations: single ones, those that nobody runs, and pages for people who look."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Row, and_, delete, exists, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.events import HookType
from hookline.runtime import FORMAT, JournalEntry, OperationState
from hookline.store._database import Database
from hookline.store._rows import is_storable, state_of
from hookline.store._tables import attempts, decisions, deliveries, events, operations, workers

__all__ = ["Page", "StoredOperation", "prune"]

T = TypeVar("T")


class StoredOperation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a stored operation without reading its state.

    Attributes:
        operation_id: The run.
        agent_id: The agent that runs.
        tenant_id: The tenant for whom it runs.
        user_id: The user for whom it runs.
        parent_operation_id: The run that called it as a sub-agent.
        status: `"running"`, `"waiting_for_human"`, or why it ended.
        version: Counts its writes.
        owner: The process that runs it, while it is running.
        steps: Steps so far.
        llm_calls: Model calls so far.
        tool_calls: Tool calls so far.
        total_tokens: What the model calls used.
        cost_usd: What they cost.
        events: How many events of it are stored.
        failed_delivery: What became of a delivery that it was for, if that failed.
        missing_hooks: Ids of interceptors that it was started with and that a worker which wanted to go on with it did
            not have; it waits for one that has them.
        created_at: When it was stored first, in seconds since 1970.
        updated_at: When it was stored last.
    """

    operation_id: str
    agent_id: str
    tenant_id: str
    user_id: str
    parent_operation_id: str | None
    status: str
    version: int
    owner: str | None
    steps: int
    llm_calls: int
    tool_calls: int
    total_tokens: int
    cost_usd: float
    events: int
    failed_delivery: str | None
    missing_hooks: list[str]
    created_at: float
    updated_at: float


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True, rename="camel"):
    """A part of a long list.

    Attributes:
        items: The part.
        cursor: Where the next part begins; `None` at the end.
    """

    items: list[T]
    cursor: str | None = None


_shown = tuple(operations.c[name] for name in StoredOperation.__struct_fields__)
_kept = (operations.c.operation_id, operations.c.format, operations.c.state)


async def load(connection: AsyncConnection, operation_id: str) -> OperationState | None:
    """The last state of an operation."""
    if not is_storable(operation_id):
        return None
    query = select(*_kept).where(operations.c.operation_id == operation_id)
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else state_of(*row)


async def children(connection: AsyncConnection, operation_id: str) -> list[OperationState]:
    """The states of the operations that one has called and that have not ended."""
    query = (
        select(*_kept)
        .where(operations.c.parent_operation_id == operation_id)
        .where(operations.c.status.in_(("running", "waiting_for_human")))
        .order_by(operations.c.created_at, operations.c.operation_id)
    )
    return [state_of(*row) for row in await connection.execute(query)]


def deserted(database: Database) -> ColumnElement[bool]:
    """Whether an operation is running in no process that is alive, in SQL."""
    alive = exists().where(workers.c.worker_id == operations.c.owner, workers.c.alive_until > database.now_sql())
    return and_(operations.c.status == "running", or_(operations.c.owner.is_(None), ~alive))


async def orphaned(database: Database, connection: AsyncConnection, operation_id: str) -> bool:
    """Whether an operation is running in no process that is alive."""
    if not is_storable(operation_id):
        return False
    query = select(operations.c.operation_id).where(operations.c.operation_id == operation_id, deserted(database))
    return (await connection.execute(query)).first() is not None


async def orphans(
    database: Database,
    connection: AsyncConnection,
    *,
    limit: int,
    agent_ids: Sequence[str] | None,
    exclude: Sequence[str] = (),
) -> list[str]:
    """Operations that run in no process that is alive; not those which a running one has called."""
    parent = operations.alias("parent")
    called = exists().where(parent.c.operation_id == operations.c.parent_operation_id, parent.c.status == "running")
    query = (
        select(operations.c.operation_id)
        .where(deserted(database), ~called, operations.c.format <= FORMAT)
        .order_by(operations.c.updated_at, operations.c.operation_id)
        .limit(limit)
    )
    if exclude:
        query = query.where(operations.c.operation_id.not_in(exclude))
    if agent_ids is not None:
        query = query.where(operations.c.agent_id.in_(agent_ids))
    return list((await connection.execute(query)).scalars())


async def operation(connection: AsyncConnection, operation_id: str) -> StoredOperation | None:
    """What is known of one operation."""
    if not is_storable(operation_id):
        return None
    row = (await connection.execute(select(*_shown).where(operations.c.operation_id == operation_id))).one_or_none()
    return None if row is None else shown(row)


async def page(
    connection: AsyncConnection, *, wanted: Mapping[str, str | None], cursor: str | None, limit: int
) -> Page[StoredOperation]:
    """Operations, the newest first: those whose columns have the wanted values."""
    query = select(*_shown)
    for name, value in wanted.items():
        if value is not None:
            query = query.where(operations.c[name] == value)
    if cursor is not None:
        query = query.where(tuple_(operations.c.created_at, operations.c.operation_id) < tuple_(*place_of(cursor)))
    query = query.order_by(operations.c.created_at.desc(), operations.c.operation_id.desc()).limit(limit + 1)
    found = [shown(row) for row in await connection.execute(query)]
    more = len(found) > limit
    return Page(items=found[:limit], cursor=cursor_at(found[limit - 1]) if more else None)


async def events_of(connection: AsyncConnection, operation_id: str, *, after: int, limit: int) -> list[JournalEntry]:
    """Events of an operation, in order."""
    if not is_storable(operation_id):
        return []
    query = (
        select(events.c.number, events.c.type, events.c.time_unix_nano, events.c.wire)
        .where(events.c.operation_id == operation_id, events.c.number > after)
        .order_by(events.c.number)
        .limit(limit)
    )
    return [
        JournalEntry(number=row.number, type=HookType(row.type), time_unix_nano=row.time_unix_nano, wire=row.wire)
        for row in await connection.execute(query)
    ]


def shown(row: Row[*tuple[object, ...]]) -> StoredOperation:
    """What is known of the operation of a row."""
    known: dict[str, Any] = dict(row._mapping)
    noted = known["missing_hooks"]
    known["missing_hooks"] = [] if noted is None else msgspec.json.decode(noted, type=list[str])
    return StoredOperation(**known)


async def missing_hooks(connection: AsyncConnection, *, limit: int) -> dict[str, list[str]]:
    """The interceptors that are missing, by operation."""
    query = (
        select(operations.c.operation_id, operations.c.missing_hooks)
        .where(operations.c.missing_hooks.is_not(None))
        .order_by(operations.c.operation_id)
        .limit(limit)
    )
    return {name: msgspec.json.decode(noted, type=list[str]) for name, noted in await connection.execute(query)}


def cursor_at(last: StoredOperation) -> str:
    """Names the place after an operation."""
    return urlsafe_b64encode(msgspec.json.encode((last.created_at, last.operation_id))).decode()


def place_of(cursor: str) -> tuple[float, str]:
    """The place that a cursor names.

    Raises:
        HookUsageError: If it names none.
    """
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor.encode()), type=tuple[float, str])
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise HookUsageError("`cursor` is not one that this list has given; leave it out to begin anew.") from error


def check_limit(limit: int, longest: int) -> None:
    """Refuse a page that is empty, or too large to be held.

    Raises:
        HookUsageError: Then.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= longest:
        raise HookUsageError(f"`limit` is a whole number from 1 to {longest}; got {limit!r}.")


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
