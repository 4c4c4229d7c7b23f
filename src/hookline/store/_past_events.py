"""Read the events of past operations of some types, operation by operation, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sqlalchemy import select, tuple_

from hookline.events import HookType
from hookline.store._operation_search import OperationFilter
from hookline.store._partitions import KEPT
from hookline.store._past_conversations import PastConversation, read_past_conversations
from hookline.store._tables import events, operations

if TYPE_CHECKING:
    from hookline.store._store import SqlStore

__all__ = ["PastEvent", "PastEvents", "PastOperation", "read_past_events"]

MOST_OPERATIONS = 500
"""Operations that one query reads."""
MOST_EVENTS = 4_000
"""Events of all types that one query reads past: those of several operations, or a part of those of one."""


class PastOperation(NamedTuple):
    """A stored operation.

    Attributes:
        operation_id: The id of the operation.
        tenant_id: The tenant for whom it ran.
        agent_id: The agent that ran.
        parent_operation_id: The operation that called it as a sub-agent.
        created_at: When it was first stored, in unix seconds.
        events: Number of its events.
        day: The partition of its events.
        tags: Its tags, as JSON; `None` for none.
    """

    operation_id: str
    tenant_id: str
    agent_id: str
    parent_operation_id: str | None
    created_at: float
    events: int
    day: int
    tags: str | None


PastEvent: TypeAlias = tuple[str, int, str, bytes]
"""A stored event: the operation, the number of the event in it, from 1, its type, and the event as JSON.

It is a row of the database: a copy of each takes a tenth of the time of judging it, and so do its fields by name.
"""


class PastEvents(NamedTuple):
    """Events of an operation, in order.

    Attributes:
        operation: The operation.
        events: All of its events of the types that were asked for, or the next part of them.
        is_last: Whether no further part follows.
        conversation: The conversation, with the first part, if it was asked for.
        outline: With the first of several parts and a conversation: number and type of all events of the types that
            were asked for.
        last_step: With such an outline: the last `afterStep` as JSON, if there is one.
    """

    operation: PastOperation
    events: list[PastEvent]
    is_last: bool
    conversation: PastConversation | None = None
    outline: Sequence[tuple[int, str]] = ()
    last_step: bytes | None = None


_columns = tuple(operations.c[name] for name in PastOperation._fields)


async def read_past_events(
    store: SqlStore,
    wanted: OperationFilter,
    types: Collection[str],
    *,
    is_wanted: Callable[[PastOperation], bool] = lambda operation: True,
    along: Mapping[str, str] | None = None,
    with_conversations: bool = False,
) -> AsyncIterator[PastEvents]:
    """Read events of the operations that match a filter, the newest operation first.

    Operations and events are read in batches, each in a transaction of its own, so that memory does not grow with their
    number, and no transaction stays open while the caller works.

    Args:
        store: The store.
        wanted: The filter; `tool` and `search` are not used.
        types: The types of the events.
        is_wanted: Returns whether the events of an operation are read.
        along: For a type of events, another type that is only needed of operations with events of the first.
        with_conversations: Whether the conversations are read too. The events of a long operation are then read twice,
            once without their content, so that the first part comes with an outline of the whole.
    """
    if wanted.is_impossible:
        return
    last: PastOperation | None = None
    while True:
        batch = await _read_operations(store, wanted, last)
        for group in _group_operations([each for each in batch if is_wanted(each)]):
            if len(group) == 1 and group[0].events > MOST_EVENTS:
                async for part in _read_in_parts(store, group[0], types, along or {}, with_conversations):
                    yield part
                continue
            found = await _read_events(store, group, types, along or {})
            if with_conversations:
                async for part in _with_conversations(store, group, found):
                    yield part
                continue
            for operation in group:
                yield PastEvents(operation, found.get(operation.operation_id, []), is_last=True)
        if len(batch) < MOST_OPERATIONS:
            return
        last = batch[-1]


async def _read_operations(
    store: SqlStore, wanted: OperationFilter, last: PastOperation | None
) -> Sequence[PastOperation]:
    """Read the operations that follow after one, the newest first."""
    key = (operations.c.created_at, operations.c.operation_id)
    query = select(*_columns).where(*wanted.range_conditions())
    if last is not None:
        query = query.where(tuple_(*key) < tuple_(last.created_at, last.operation_id))
    query = query.order_by(*(each.desc() for each in key)).limit(MOST_OPERATIONS)
    async with store.reading() as connection:
        query = query.where(*wanted.row_conditions(connection.dialect.name))
        return [PastOperation(*row) for row in await connection.execute(query)]


def _group_operations(batch: Sequence[PastOperation]) -> Iterator[list[PastOperation]]:
    """Split operations into groups whose events one query reads; one with more events is a group by itself."""
    group: list[PastOperation] = []
    count = 0
    for operation in batch:
        if group and count + operation.events > MOST_EVENTS:
            yield group
            group, count = [], 0
        group.append(operation)
        count += operation.events
    if group:
        yield group


async def _read_events(
    store: SqlStore,
    group: Sequence[PastOperation],
    types: Collection[str],
    along: Mapping[str, str],
    span: tuple[int, int] | None = None,
) -> dict[str, list[PastEvent]]:
    """Read the events of some operations, by operation.

    Args:
        store: The store.
        group: The operations.
        types: The types of the events.
        along: As for `read_past_events`.
        span: The first number, and the one after the last.
    """
    column = events.c
    query = select(column.operation_id, column.number, column.type, column.wire).where(
        column.day.in_({KEPT, *(each.day for each in group)})
    )
    if span is not None:
        query = query.where(column.number >= span[0], column.number < span[1])
    query = query.order_by(column.operation_id, column.number)
    theirs = column.operation_id.in_([each.operation_id for each in group])
    async with store.reading() as connection:
        rows: Sequence[Any] = (await connection.execute(query.where(theirs, column.type.in_(types)))).all()
        with_first = {name for name, _, kind, _ in rows if kind in along} if along else ()
        if with_first:
            further = query.where(column.operation_id.in_(with_first), column.type.in_(set(along.values()) - {*types}))
            rows = sorted([*rows, *await connection.execute(further)], key=itemgetter(0, 1))
    found: dict[str, list[PastEvent]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


async def _with_conversations(
    store: SqlStore, group: Sequence[PastOperation], found: Mapping[str, list[PastEvent]]
) -> AsyncIterator[PastEvents]:
    """Pair the events of some operations with their conversations; operations that are deleted by now are left out."""
    known = {each.operation_id: each for each in group}
    async for name, conversation in read_past_conversations(store, list(known)):
        yield PastEvents(known[name], found.get(name, []), is_last=True, conversation=conversation)


async def _read_in_parts(
    store: SqlStore,
    operation: PastOperation,
    types: Collection[str],
    along: Mapping[str, str],
    with_conversations: bool,
) -> AsyncIterator[PastEvents]:
    """Read the events of a long operation in parts; the first of two types may be in another part than the second."""
    types = {*types, *along.values()}
    name = operation.operation_id
    conversation: PastConversation | None = None
    outline: Sequence[tuple[int, str]] = ()
    last_step: bytes | None = None
    if with_conversations:
        conversation = {known: each async for known, each in read_past_conversations(store, [name])}.get(name)
        if conversation is None:
            return  # it is deleted by now
        outline, last_step = await _read_outline(store, operation, types)
    for first in range(1, operation.events + 1, MOST_EVENTS):
        found = await _read_events(store, [operation], types, {}, (first, first + MOST_EVENTS))
        is_last = first + MOST_EVENTS > operation.events
        yield PastEvents(operation, found.get(name, []), is_last, conversation, outline, last_step)
        conversation, outline, last_step = None, (), None


async def _read_outline(
    store: SqlStore, operation: PastOperation, types: Collection[str]
) -> tuple[list[tuple[int, str]], bytes | None]:
    """Read number and type of the events of an operation, and its last `afterStep`."""
    column = events.c
    its = (column.operation_id == operation.operation_id) & column.day.in_({KEPT, operation.day})
    query = select(column.number, column.type).where(its, column.type.in_(types)).order_by(column.number)
    async with store.reading() as connection:
        outline = [(number, kind) for number, kind in await connection.execute(query)]
        last = max((number for number, kind in outline if kind == HookType.AFTER_STEP), default=None)
        if last is None:
            return outline, None
        wire: bytes = (await connection.execute(select(column.wire).where(its, column.number == last))).scalar_one()
    return outline, wire
