"""Read the conversations and the model calls of past operations, many operations with few queries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.calls import Message
from hookline.errors import StateFormatError
from hookline.runtime import OperationState
from hookline.store._state_rows import decode_head, decode_layout, decode_message, head_columns
from hookline.store._tables import model_calls, operations, state_rows

if TYPE_CHECKING:
    from hookline.store._store import SqlStore

__all__ = ["PastConversation", "PastModelCall", "read_past_conversations"]

MOST_MESSAGES = 4_000
"""Messages that one query reads: those of several operations, or all those of one."""


class PastModelCall(NamedTuple):
    """A stored model call.

    Attributes:
        operation_id: The operation that made it.
        step_index: The step that made it.
        model: The model's name.
        start_unix_nano: When it began, in nanoseconds since 1970.
        duration_ms: How long it took.
        input_tokens: Tokens that the model read.
        output_tokens: Tokens that it wrote.
        cost_usd: What the call cost.
        error_type: The class name of the exception that it raised; `None` if the model has answered.
    """

    operation_id: str
    step_index: int
    model: str
    start_unix_nano: int
    duration_ms: float
    input_tokens: int
    output_tokens: int
    cost_usd: float
    error_type: str | None


class PastConversation(NamedTuple):
    """The conversation of a stored operation.

    Attributes:
        state: The state of the operation, without messages and outcomes; `None` if it cannot be read.
        messages: The messages that are stored now, oldest first.
        compacted: The messages that were stored when a summary replaced a part of them, one list for each compaction;
            `None` where they are not stored any more.
        model_calls: The model calls, in the order in which they ended.
        is_open: Whether the newest message of the model asks for calls whose results are not all there.
        problem: Why the conversation cannot be read; `""` if it can.
    """

    state: OperationState | None
    messages: Sequence[Message] = ()
    model_calls: Sequence[PastModelCall] = ()
    is_open: bool = False
    problem: str = ""
    compacted: Sequence[Sequence[Message] | None] = ()


class _Head(NamedTuple):
    """A state, and where its messages are.

    Attributes:
        state: The state.
        ranges: Ranges of the numbers of its messages; `None` if the state has the messages itself.
        is_open: As for `PastConversation`.
        size: Number of messages.
        compacted: Ranges of the numbers of earlier messages, one list for each compaction.
    """

    state: OperationState | None
    ranges: Sequence[tuple[int, int]] | None = None
    is_open: bool = False
    size: int = 0
    compacted: Sequence[Sequence[tuple[int, int]]] = ()


async def read_past_conversations(
    store: SqlStore, operation_ids: Sequence[str]
) -> AsyncIterator[tuple[str, PastConversation]]:
    """Read the conversations of operations, in the order of the ids.

    Memory is bounded by 4,000 messages, or the messages of one operation if it has more.

    Args:
        store: The store.
        operation_ids: The operations; one that is not stored any more is left out.
    """
    left = operation_ids
    while left:
        # States and messages in one transaction: a run that goes on may drop messages that its state no longer needs.
        async with store.reading() as connection:
            query = select(*head_columns).where(operations.c.operation_id.in_(left))
            rows = {row[0]: row for row in (await connection.execute(query)).all()}
            heads: dict[str, _Head] = {}
            count = 0
            for nth, name in enumerate(left):
                if name not in rows:
                    continue
                head = _decode_head(rows[name])
                count += head.size
                if heads and count > MOST_MESSAGES:
                    left = left[nth:]
                    break
                heads[name] = head
            else:
                left = ()
            bodies, calls = await _read_rows(connection, list(heads))
        # Decoded all at once, they take twice the time: the garbage collector then looks through them repeatedly.
        for name, head in heads.items():
            yield name, _build(head, bodies.pop(name, {}), calls.pop(name, ()))


async def _read_rows(
    connection: AsyncConnection, group: Sequence[str]
) -> tuple[dict[str, dict[int, tuple[str, bytes]]], dict[str, list[PastModelCall]]]:
    """Read the messages and the model calls of some operations, by operation."""
    bodies: dict[str, dict[int, tuple[str, bytes]]] = {}
    calls: dict[str, list[PastModelCall]] = {}
    row, call = state_rows.c, model_calls.c
    messages = select(row.operation_id, row.number, row.kind, row.body).where(
        row.operation_id.in_(group), row.kind != "field"
    )
    asked = select(*(call[name] for name in PastModelCall._fields)).where(call.operation_id.in_(group))
    for operation_id, number, kind, body in (await connection.execute(messages)).all():
        bodies.setdefault(operation_id, {})[number] = kind, body
    for found in (await connection.execute(asked.order_by(call.operation_id, call.number))).all():
        calls.setdefault(found[0], []).append(PastModelCall._make(found))
    return bodies, calls


def _decode_head(row: Row[*tuple[Any, ...]]) -> _Head:
    """Decode a state without its messages."""
    try:
        state = decode_head(row)
        if row.layout is None:
            return _Head(state, None, bool(state.open_calls), len(state.messages))
        layout = decode_layout(row.layout)
    except (StateFormatError, msgspec.MsgspecError):
        return _Head(None)
    is_open = layout.calls_said or bool(state.open_calls)
    size = sum(last - first + 1 for first, last in layout.stored_ranges())
    return _Head(state, layout.messages, is_open, size, layout.compacted)


def _build(
    head: _Head, bodies: Mapping[int, tuple[str, bytes]], model_calls: Sequence[PastModelCall]
) -> PastConversation:
    if head.state is None:
        return PastConversation(None, problem="The state of the operation cannot be read by this version of hookline.")
    if head.ranges is None:
        return PastConversation(head.state, head.state.messages, model_calls, head.is_open)
    try:
        messages = [decode_message(*bodies[number]) for first, last in head.ranges for number in range(first, last + 1)]
        # A message that stayed after a compaction has a new row, so that hardly any row is decoded twice.
        compacted = [
            [decode_message(*bodies[number]) for first, last in ranges for number in range(first, last + 1)] or None
            for ranges in head.compacted
        ]
    except (msgspec.MsgspecError, LookupError):
        return PastConversation(None, problem="The stored conversation is damaged.")
    return PastConversation(head.state, messages, model_calls, head.is_open, compacted=compacted)
