"""Read the newest events of a kind, the newest operations and sums over them, and who called them, in bounded time."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.store._partitions import KEPT
from hookline.store._rows import is_storable, parse_tags
from hookline.store._tables import events, operations

__all__ = [
    "OperationLineage",
    "OperationSums",
    "RecentEvent",
    "RecentEvents",
    "RecentOperation",
    "read_event",
    "read_events_after",
    "read_lineages",
    "read_operation_sums",
    "read_recent_events",
    "read_recent_operations",
]

MOST_EVENTS = 30_000
"""Events of any kind that are looked at, to find those of one kind."""
CHUNK = 400
MOST_CALLERS = 100
"""Ancestors of an operation that are looked at: a run may name any operation as its parent, even in a loop."""
"""Operations whose events are read by one query."""


class RecentEvent(NamedTuple):
    """A stored event.

    Attributes:
        operation_id: The id of its operation.
        number: Its number there, from 1.
        tenant_id: The tenant of the operation.
        time_unix_nano: When it happened.
        wire: The event as JSON.
    """

    operation_id: str
    number: int
    tenant_id: str
    time_unix_nano: int
    wire: bytes


class RecentEvents(NamedTuple):
    """The newest events of a kind.

    Attributes:
        found: The events, newest first.
        is_complete: Whether these are all since the time that was asked for.
    """

    found: list[RecentEvent]
    is_complete: bool


class OperationSums(NamedTuple):
    """Sums over the newest operations of a tenant.

    Attributes:
        tenant_id: The tenant.
        operations: The number of operations.
        steps: Their steps.
        llm_calls: Their model calls.
    """

    tenant_id: str
    operations: int
    steps: int
    llm_calls: int


class RecentOperation(NamedTuple):
    """An operation, with what it has done.

    Attributes:
        operation_id: Its id.
        tenant_id: Its tenant.
        steps: Its steps.
        llm_calls: Its model calls.
    """

    operation_id: str
    tenant_id: str
    steps: int
    llm_calls: int


class OperationLineage(NamedTuple):
    """An operation among those that called it.

    Attributes:
        root_operation_id: The outermost one that called it; itself if none did.
        agent_ids: Its agent, and those that called it, as far as they are stored.
        tags: Its tags.
    """

    root_operation_id: str
    agent_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()


_columns = (events.c.operation_id, events.c.number, events.c.tenant_id, events.c.time_unix_nano, events.c.wire)


async def read_recent_events(
    connection: AsyncConnection,
    type: str,  # noqa: A002
    tenant_id: str | None,
    *,
    since: float,
    most: int,
) -> RecentEvents:
    """Read the newest events of a type.

    Args:
        connection: A connection.
        type: The type of the events, such as `"beforeToolCall"`.
        tenant_id: Only events of this tenant; `None` for all tenants, by the operations that were written last.
        since: Only events at this time or later, in unix seconds.
        most: Number of events at most.
    """
    if tenant_id is None:
        return await _read_of_operations(connection, type, since=since, most=most)
    its = (events.c.tenant_id == tenant_id) & (events.c.time_unix_nano >= int(since * 1e9))
    newest = select(events.c.operation_id, events.c.number, events.c.day, events.c.time_unix_nano, events.c.type)
    looked = newest.where(its).order_by(events.c.time_unix_nano.desc()).limit(MOST_EVENTS).subquery()
    same = (events.c.operation_id == looked.c.operation_id) & (events.c.number == looked.c.number)
    query = (
        select(*_columns)
        .join_from(looked, events, same & (events.c.day == looked.c.day))
        .where(looked.c.type == type)
        .order_by(looked.c.time_unix_nano.desc())
        .limit(most + 1)
    )
    found = [RecentEvent(*row) for row in await connection.execute(query)]
    if len(found) > most:
        return RecentEvents(found[:most], is_complete=False)
    further = select(events.c.time_unix_nano).where(its).order_by(events.c.time_unix_nano.desc())
    more = (await connection.execute(further.offset(MOST_EVENTS).limit(1))).first()
    return RecentEvents(found, is_complete=more is None)


async def _read_of_operations(connection: AsyncConnection, type: str, *, since: float, most: int) -> RecentEvents:  # noqa: A002
    """Read the newest events of all tenants: no index has them by time, as writing it would slow down every run."""
    query = select(operations.c.operation_id, operations.c.day, operations.c.events)
    query = query.where(operations.c.updated_at >= since).order_by(operations.c.updated_at.desc()).limit(MOST_EVENTS)
    chosen: list[tuple[str, int]] = []
    count = 0
    is_complete = True
    for row in await connection.execute(query):
        if count >= MOST_EVENTS:
            is_complete = False
            break
        chosen.append((row.operation_id, row.day))
        count += max(1, row.events)
    found: list[RecentEvent] = []
    for start in range(0, len(chosen), CHUNK):
        chunk = chosen[start : start + CHUNK]
        theirs = events.c.operation_id.in_([each for each, _ in chunk])
        query = select(*_columns).where(
            theirs,
            events.c.day.in_({KEPT, *(day for _, day in chunk)}),
            events.c.type == type,
            events.c.time_unix_nano >= int(since * 1e9),
        )
        found += [RecentEvent(*row) for row in await connection.execute(query)]
        if len(found) > most:
            is_complete = False
            break
    found.sort(key=lambda each: each.time_unix_nano, reverse=True)
    return RecentEvents(found[:most], is_complete)


async def read_operation_sums(
    connection: AsyncConnection, tenant_id: str | None, *, since: float, most: int
) -> tuple[list[OperationSums], bool]:
    """Sum up the newest operations by tenant.

    Args:
        connection: A connection.
        tenant_id: Only operations of this tenant; `None` for all tenants.
        since: Only operations that began at this time or later, in unix seconds.
        most: Number of operations at most.

    Returns:
        The sums, and whether they are of all operations since that time.
    """
    query = select(operations.c.tenant_id, operations.c.steps, operations.c.llm_calls)
    query = query.where(operations.c.created_at >= since).order_by(operations.c.created_at.desc()).limit(most)
    if tenant_id is not None:
        query = query.where(operations.c.tenant_id == tenant_id)
    newest = query.subquery()
    sums = select(newest.c.tenant_id, func.count(), func.sum(newest.c.steps), func.sum(newest.c.llm_calls)).group_by(
        newest.c.tenant_id
    )
    found = [OperationSums(row[0], int(row[1]), int(row[2]), int(row[3])) for row in await connection.execute(sums)]
    return found, sum(each.operations for each in found) < most


async def read_recent_operations(
    connection: AsyncConnection, tenant_id: str | None, *, since: float, most: int
) -> tuple[list[RecentOperation], bool]:
    """Read the newest operations.

    Args:
        connection: A connection.
        tenant_id: Only operations of this tenant; `None` for all tenants.
        since: Only operations that began at this time or later, in unix seconds.
        most: Number of operations at most.

    Returns:
        The operations, and whether they are all since that time.
    """
    column = operations.c
    query = select(column.operation_id, column.tenant_id, column.steps, column.llm_calls)
    query = query.where(column.created_at >= since).order_by(column.created_at.desc()).limit(most)
    if tenant_id is not None:
        query = query.where(column.tenant_id == tenant_id)
    found = [RecentOperation(*row) for row in await connection.execute(query)]
    return found, len(found) < most


async def read_lineages(connection: AsyncConnection, operation_ids: Iterable[str]) -> dict[str, OperationLineage]:
    """Read by which operations, and by which agents, some operations were called.

    Args:
        connection: A connection.
        operation_ids: The operations.
    """
    wanted = {each for each in operation_ids if is_storable(each)}
    known: dict[str, tuple[str, str | None]] = {}
    tags: dict[str, tuple[str, ...]] = {}
    missing = set(wanted)
    for _ in range(MOST_CALLERS):
        for start in range(0, len(missing), CHUNK):
            chunk = sorted(missing)[start : start + CHUNK]
            columns = ("operation_id", "agent_id", "parent_operation_id", "tags")
            query = select(*(operations.c[name] for name in columns))
            for row in await connection.execute(query.where(operations.c.operation_id.in_(chunk))):
                known[row.operation_id] = row.agent_id, row.parent_operation_id
                if row.tags is not None:
                    tags[row.operation_id] = tuple(parse_tags(row.tags))
        missing = {parent for each in missing if (parent := known.get(each, ("", None))[1]) and parent not in known}
        if not missing:
            break
    return {each: _trace_lineage(each, known)._replace(tags=tags.get(each, ())) for each in wanted}


def _trace_lineage(operation_id: str, known: dict[str, tuple[str, str | None]]) -> OperationLineage:
    agents: list[str] = []
    seen: set[str] = set()
    here = operation_id
    while here in known and here not in seen:
        seen.add(here)
        agent_id, parent = known[here]
        agents.append(agent_id)
        if parent is None:
            break
        here = parent
    return OperationLineage(here, tuple(agents))


async def read_event(connection: AsyncConnection, operation_id: str, number: int) -> RecentEvent | None:
    """Read one event; `None` if it is not stored."""
    if not is_storable(operation_id):
        return None
    query = select(*_columns).where(events.c.operation_id == operation_id, events.c.number == number)
    row = (await connection.execute(query.limit(1))).first()
    return None if row is None else RecentEvent(*row)


async def read_events_after(
    connection: AsyncConnection, operation_id: str, number: int, types: tuple[str, ...], *, most: int
) -> list[RecentEvent]:
    """Read the events of some types that follow an event of an operation, in order."""
    query = select(*_columns).where(
        events.c.operation_id == operation_id, events.c.number > number, events.c.type.in_(types)
    )
    rows = await connection.execute(query.order_by(events.c.number).limit(most))
    return [RecentEvent(*row) for row in rows]
