"""Read stored operations: single ones, orphans (operations that no process runs), and pages."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, TypeVarTuple

import msgspec
from sqlalchemy import Row, Select, exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.errors import HookUsageError
from hookline.events import HookType
from hookline.runtime import FORMAT, JournalEntry, ModelCallRecord, OperationState
from hookline.store._database import Database
from hookline.store._lease import find_orphaned_sql
from hookline.store._partitions import KEPT
from hookline.store._rows import is_storable, parse_tags
from hookline.store._state_rows import complete_state, head_columns, read_state
from hookline.store._tables import events, model_calls, operations

__all__ = ["Page", "StoredOperation"]

T = TypeVar("T")
P = TypeVar("P", bound=tuple[object, ...])
Ts = TypeVarTuple("Ts")

LONGEST_PAGE = 1000
LIVE = ("running", "waiting_for_human")
"""Statuses of operations that have not ended."""
_parents = operations.alias("parent")
is_called = exists().where(_parents.c.operation_id == operations.c.parent_operation_id, _parents.c.status == "running")
"""The condition for sub-agents of an operation that is running, built once: that takes longer than to look."""


class StoredOperation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A summary of a stored operation: its columns, without its state.

    Attributes:
        operation_id: The id of the operation.
        agent_id: The agent that runs.
        tenant_id: The tenant for whom it runs.
        user_id: The user for whom it runs.
        parent_operation_id: The operation that called it as a sub-agent.
        status: `"running"`, `"waiting_for_human"`, or why it ended.
        version: Number of its writes so far.
        owner: The process that runs it, while it is running.
        steps: Steps so far.
        llm_calls: Model calls so far.
        tool_calls: Tool calls so far.
        total_tokens: Tokens used by the model calls.
        cost_usd: Cost of the model calls.
        events: Number of stored events.
        prompt: The first 200 characters of what the user asked.
        duration_ms: Duration of its segments, without pauses; of one that runs, until it last wrote its state.
        trace_id: The id of its OpenTelemetry trace, in hexadecimal digits, if it was traced.
        failed_delivery: The error of a failed delivery whose webhook has `fallback="none"`.
        missing_hooks: Ids of interceptors that it was started with and that the worker which tried to resume it did
            not have; it waits for a worker that has them.
        created_at: When it was first stored, in unix seconds.
        updated_at: When it was last stored, in unix seconds.
        interrupt_asked_at: When somebody asked for its interruption, in unix seconds.
        interrupt_asked_by: Who asked: `"key:<id>"` for an API key, else the argument `by` of `request_interrupt`.
        retry_of: The operation that it retries.
        agent_version: The version of the agent with which it was begun; `""` for none.
        tags: Its tags, and those of the operation that called it.
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
    prompt: str
    duration_ms: float
    trace_id: str | None
    failed_delivery: str | None
    missing_hooks: list[str]
    created_at: float
    updated_at: float
    interrupt_asked_at: float | None = None
    interrupt_asked_by: str | None = None
    retry_of: str | None = None
    agent_version: str = ""
    tags: list[str] = []


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True, rename="camel"):
    """One page of a long list.

    Attributes:
        items: The items of the page.
        cursor: The cursor of the next page; `None` on the last one.
    """

    items: list[T]
    cursor: str | None = None


summary_columns = tuple(operations.c[name] for name in StoredOperation.__struct_fields__)
_model_call_columns = tuple(model_calls.c[name] for name in ModelCallRecord.__struct_fields__)


async def load_state(connection: AsyncConnection, operation_id: str) -> OperationState | None:
    """Load the state of an operation; `None` if there is no such operation."""
    if not is_storable(operation_id):
        return None
    return await read_state(connection, operation_id)


async def load_children(connection: AsyncConnection, operation_id: str) -> list[OperationState]:
    """Load the states of the sub-agent operations of an operation that have not ended."""
    query = (
        select(*head_columns)
        .where(operations.c.parent_operation_id == operation_id)
        .where(operations.c.status.in_(LIVE))
        .order_by(operations.c.created_at, operations.c.operation_id)
    )
    return [await complete_state(connection, row) for row in (await connection.execute(query)).all()]


async def find_orphans(
    database: Database,
    connection: AsyncConnection,
    *,
    limit: int,
    agent_ids: Sequence[str] | None,
    exclude: Sequence[str] = (),
    agent_versions: Sequence[str] | None = None,
) -> list[str]:
    """Find operations whose process is dead, without sub-agents of an operation that is running."""
    orphaned = await find_orphaned_sql(database, connection)
    query = (
        select(operations.c.operation_id)
        .where(orphaned, ~is_called, operations.c.format <= FORMAT)
        # The sum keeps PostgreSQL from walking the index of the times through all operations to find a few.
        .order_by(operations.c.updated_at + 0.0, operations.c.operation_id)
        .limit(limit)
    )
    if exclude:
        query = query.where(operations.c.operation_id.not_in(exclude))
    if agent_ids is not None:
        query = query.where(operations.c.agent_id.in_(agent_ids))
    if agent_versions is not None:
        query = query.where(operations.c.agent_version.in_(agent_versions))
    return list((await connection.execute(query)).scalars())


async def read_operation(connection: AsyncConnection, operation_id: str) -> StoredOperation | None:
    """Read the summary of an operation; `None` if there is no such operation."""
    if not is_storable(operation_id):
        return None
    row = (
        await connection.execute(select(*summary_columns).where(operations.c.operation_id == operation_id))
    ).one_or_none()
    return None if row is None else operation_from_row(row)


async def read_events(connection: AsyncConnection, operation_id: str, *, after: int, limit: int) -> list[JournalEntry]:
    """Read events of an operation, in order."""
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
        for row in await fetch_events(connection, query, operation_id)
    ]


async def read_model_calls(
    connection: AsyncConnection, *, operation_id: str, steps: tuple[int, int] | None = None
) -> list[ModelCallRecord]:
    """Read the model calls of an operation, or of some of its steps, in order."""
    if not is_storable(operation_id):
        return []
    query = (
        select(*_model_call_columns).where(model_calls.c.operation_id == operation_id).order_by(model_calls.c.number)
    )
    if steps is not None:
        query = query.where(model_calls.c.step_index.between(*steps))
    return [ModelCallRecord(**row._mapping) for row in await connection.execute(query)]


async def fetch_events(connection: AsyncConnection, query: Select[*Ts], operation_id: str) -> Sequence[Row[*Ts]]:
    """Execute a query of events of one operation in the partition that they are in."""
    day = await find_event_day(connection, operation_id)
    while True:
        rows = (await connection.execute(query.where(events.c.day == day))).all()
        # If there are none, pruning may have moved them after the day was read.
        if rows or day == KEPT or (present := await find_event_day(connection, operation_id)) == day:
            return rows
        day = present


async def find_event_day(connection: AsyncConnection, operation_id: str) -> int:
    """Return the day that the events of an operation have."""
    if connection.dialect.name == "sqlite":
        return KEPT
    query = select(operations.c.day).where(operations.c.operation_id == operation_id)
    day = (await connection.execute(query)).scalar()
    return KEPT if day is None else day


def operation_from_row(row: Row[*tuple[object, ...]]) -> StoredOperation:
    """Build the summary of an operation from its row."""
    known: dict[str, Any] = dict(row._mapping)
    noted = known["missing_hooks"]
    known["missing_hooks"] = [] if noted is None else msgspec.json.decode(noted, type=list[str])
    known["tags"] = parse_tags(known["tags"])
    return StoredOperation(**known)


async def read_missing_hooks(connection: AsyncConnection, *, limit: int) -> dict[str, list[str]]:
    """Read the ids of missing interceptors by operation."""
    query = (
        select(operations.c.operation_id, operations.c.missing_hooks)
        .where(operations.c.missing_hooks.is_not(None))
        .order_by(operations.c.operation_id)
        .limit(limit)
    )
    return {name: msgspec.json.decode(noted, type=list[str]) for name, noted in await connection.execute(query)}


def cursor_after(last: StoredOperation) -> str:
    """Return the cursor of the page that begins after an operation."""
    return encode_cursor((last.created_at, last.operation_id))


def encode_cursor(position: tuple[str | float, ...]) -> str:
    """Return the cursor of the page that begins after a position: the sort key of the last item before the page."""
    return urlsafe_b64encode(msgspec.json.encode(position)).decode()


def parse_cursor(cursor: str, kind: type[P]) -> P:
    """Parse a cursor into the position after which the page begins.

    Args:
        cursor: The cursor.
        kind: The type of the position, such as `tuple[float, str]`.

    Raises:
        HookUsageError: If the cursor is invalid.
    """
    try:
        position = msgspec.json.decode(urlsafe_b64decode(cursor.encode()), type=kind)
    except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
        raise cursor_error() from error
    if not all(is_storable(part) for part in position if isinstance(part, str)):
        raise cursor_error()
    return position


def cursor_error() -> HookUsageError:
    """Build the error for a cursor that no page has returned."""
    return HookUsageError("`cursor` must be one that this list returned; leave it out to start from the beginning.")


def check_limit(limit: int, longest: int = LONGEST_PAGE) -> None:
    """Raise unless the size of a page is a whole number from 1 to the largest allowed one.

    Raises:
        HookUsageError: If it is not.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= longest:
        raise HookUsageError(f"`limit` must be a whole number from 1 to {longest}; got {limit!r}.")
