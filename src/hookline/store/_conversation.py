"""Read parts of an operation's conversation and events at a bounded cost, however long they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import LargeBinary, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.calls import Message, ToolRequest
from hookline.errors import StateFormatError
from hookline.events import HookType
from hookline.runtime import FORMAT
from hookline.store._reading import StoredOperation, fetch_events, operation_from_row
from hookline.store._rows import is_storable, replace_unstorable
from hookline.store._state_rows import decode_head, decode_layout, decode_message, head_columns
from hookline.store._tables import events, operations, state_rows

__all__ = [
    "ConversationHead",
    "EventPart",
    "StoredMessage",
    "read_event_parts",
    "read_head",
    "read_messages",
    "read_related",
]

SHOWN_OF_LONG = 4000
"""Bytes that are read of a message which is longer than asked for."""
UNFINISHED_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?$")
CONTENT = '"content":"'


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A message of the stored conversation of an operation.

    Attributes:
        number: The position of the message in the present conversation, from 1.
        role: The author of the message.
        content: The text, or its beginning.
        tool_calls: The tool calls of an assistant message; empty if the message is cut.
        tool_call_id: The call that a tool message answers.
        size: The size of the whole message as it is stored, in bytes.
        is_cut: Whether only the beginning of the message was read.
    """

    number: int
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolRequest] = []
    tool_call_id: str | None = None
    size: int
    is_cut: bool = False


class EventPart(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an operation, without its content if that is long.

    Attributes:
        number: The number of the event in its operation, from 1.
        type: The type of the event.
        time_unix_nano: When it happened, in nanoseconds since 1970.
        size: Bytes of the event as JSON.
        wire: The event as JSON; `None` if it is longer than asked for.
    """

    number: int
    type: HookType
    time_unix_nano: int
    size: int
    wire: bytes | None


class ConversationHead(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the conversation in the state of an operation, without the messages.

    Attributes:
        messages: Length of the present conversation.
        said_from: Number of messages with which the operation began, as far as that is known.
        framework: The framework that runs it; `""` for hookline's runtime.
        children: The operations of sub-agents that are under way, by tool call id.
    """

    messages: int
    said_from: int
    framework: str
    children: dict[str, str]


async def read_head(connection: AsyncConnection, operation_id: str) -> ConversationHead | None:
    """Read what the state of an operation says of its conversation; `None` if there is no such operation.

    Raises:
        StateFormatError: If a newer version of hookline wrote the state, or it cannot be decoded.
    """
    row = await _read_head_row(connection, operation_id)
    if row is None:
        return None
    state = decode_head(row)
    count = len(state.messages) if row.layout is None else decode_layout(row.layout).count_messages()
    steering = state.steering
    said_from = None if steering is None or steering.continues else steering.said_from
    return ConversationHead(
        messages=count,
        said_from=count if said_from is None else min(said_from, count),
        framework=state.framework,
        children={name: begun.child for name, begun in state.begun.items() if begun.child is not None},
    )


async def read_messages(
    connection: AsyncConnection, operation_id: str, *, after: int, limit: int, longest: int
) -> list[StoredMessage]:
    """Read messages of the stored conversation, in order.

    Args:
        connection: The transaction.
        operation_id: The id of the operation.
        after: How many of the first messages to leave out.
        limit: Number of messages at most.
        longest: Bytes of the longest message that is read whole.

    Raises:
        StateFormatError: If a newer version of hookline wrote the state, or it cannot be decoded.
    """
    row = await _read_head_row(connection, operation_id)
    if row is None:
        return []
    if row.layout is None:
        found = decode_head(row).messages[after : after + limit]
        return [_whole(each, after + nth, msgspec.json.encode(each)) for nth, each in enumerate(found, 1)]
    if row.format > FORMAT:
        raise StateFormatError(operation_id, row.format, FORMAT)
    numbers = _slice_ranges(decode_layout(row.layout).messages, after, limit)
    if not numbers:
        return []
    body, its = state_rows.c.body, state_rows.c.operation_id == operation_id
    size = func.length(body)
    query = select(
        state_rows.c.number,
        state_rows.c.kind,
        size.label("size"),
        case((size <= longest, body)).label("whole"),
        case((size > longest, func.substr(body, 1, SHOWN_OF_LONG, type_=LargeBinary))).label("beginning"),
    ).where(its, state_rows.c.number.in_(numbers))
    rows = {each.number: each for each in await connection.execute(query)}
    try:
        return [_build_message(rows[number], after + nth) for nth, number in enumerate(numbers, 1)]
    except (msgspec.MsgspecError, LookupError) as error:
        raise StateFormatError(operation_id, row.format, FORMAT) from error


async def read_event_parts(
    connection: AsyncConnection, operation_id: str, *, after: int, limit: int, longest: int, most: int
) -> tuple[list[EventPart], bool]:
    """Read events of an operation, in order, without the content of long ones.

    Args:
        connection: The transaction.
        operation_id: The id of the operation.
        after: Only events with a greater number.
        limit: Number of events at most.
        longest: Bytes of the longest event whose content is read.
        most: Bytes of all contents together, at most; at least one event is read.

    Returns:
        The events, and whether more follow.
    """
    if not is_storable(operation_id):
        return [], False
    size = func.length(events.c.wire)
    its = events.c.operation_id == operation_id
    sizes = select(events.c.number, size.label("size")).where(its, events.c.number > after)
    found = await fetch_events(connection, sizes.order_by(events.c.number).limit(limit + 1), operation_id)
    last, total = after, 0
    for row in found[:limit]:
        total += row.size if row.size <= longest else 0
        if total > most and last > after:
            break
        last = row.number
    query = select(
        events.c.number,
        events.c.type,
        events.c.time_unix_nano,
        size.label("size"),
        case((size <= longest, events.c.wire)).label("wire"),
    ).where(its, events.c.number > after, events.c.number <= last)
    rows = await fetch_events(connection, query.order_by(events.c.number), operation_id)
    parts = [
        EventPart(
            number=row.number, type=HookType(row.type), time_unix_nano=row.time_unix_nano, size=row.size, wire=row.wire
        )
        for row in rows
    ]
    return parts, bool(found) and found[-1].number > last


async def read_related(
    connection: AsyncConnection, operation_id: str, tenant_id: str, *, column: str, limit: int
) -> list[StoredOperation]:
    """Read the operations of a tenant that name an operation, oldest first.

    Args:
        connection: The transaction.
        operation_id: The operation.
        tenant_id: Its tenant.
        column: `"parent_operation_id"` for its sub-agents, `"retry_of"` for its retries.
        limit: Number of operations at most.
    """
    if not is_storable(operation_id):
        return []
    query = (
        select(*(operations.c[name] for name in StoredOperation.__struct_fields__))
        .where(operations.c[column] == operation_id, operations.c.tenant_id == tenant_id)
        .order_by(operations.c.created_at, operations.c.operation_id)
        .limit(limit)
    )
    return [operation_from_row(row) for row in await connection.execute(query)]


async def _read_head_row(connection: AsyncConnection, operation_id: str) -> Any:
    if not is_storable(operation_id):
        return None
    return (
        await connection.execute(select(*head_columns).where(operations.c.operation_id == operation_id))
    ).one_or_none()


def _slice_ranges(ranges: Sequence[tuple[int, int]], after: int, limit: int) -> list[int]:
    """Return the numbers at some positions of ranges."""
    found: list[int] = []
    for first, last in ranges:
        count = last - first + 1
        if after < count:
            found += range(first + after, min(last, first + after + limit - len(found) - 1) + 1)
        after = max(0, after - count)
        if len(found) >= limit:
            break
    return found


def _build_message(row: Any, number: int) -> StoredMessage:
    if row.whole is not None:
        return _whole(decode_message(row.kind, row.whole), number, row.whole)
    text = bytes(row.beginning).decode(errors="ignore")
    role = "tool" if row.kind == "outcome" else str(msgspec.json.decode(text[: text.index(",")] + "}")["role"])
    return StoredMessage(
        number=number,
        role=role,  # type: ignore[arg-type]
        content=decode_beginning(text),
        size=row.size,
        is_cut=True,
    )


def decode_beginning(text: str) -> str:
    """Return the beginning of the `content` of a message, from the beginning of its JSON."""
    start = text.find(CONTENT)
    if start < 0:
        return ""
    said = text[start + len(CONTENT) :]
    end = re.search(r'(?<!\\)(?:\\\\)*"', said)
    said = said[: end.end() - 1] if end is not None else UNFINISHED_ESCAPE.sub("", said) if _is_open(said) else said
    try:
        return replace_unstorable(str(json.loads(f'"{said}"', strict=False)))
    except ValueError:
        return ""


def _is_open(said: str) -> bool:
    """Return whether a text of JSON ends inside of an escape."""
    found = re.search(r"(\\+)(u[0-9a-fA-F]{0,3})?$", said)
    return found is not None and len(found[1]) % 2 == 1


def _whole(message: Message, number: int, body: bytes) -> StoredMessage:
    return StoredMessage(
        number=number,
        role=message.role,
        content=message.content,
        tool_calls=list(message.tool_calls),
        tool_call_id=message.tool_call_id,
        size=len(body),
    )
