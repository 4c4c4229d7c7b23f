"""Store a state as rows that are only added: one for each message and outcome, and a small one with all the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Row as StoredRow
from sqlalchemy import Select, bindparam, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline.calls import Message
from hookline.errors import StateFormatError
from hookline.events import ToolOutcome
from hookline.runtime import FORMAT, OperationState, tool_message
from hookline.store._tables import operations, state_rows

__all__ = [
    "Layout",
    "StateChange",
    "complete_state",
    "decode_head",
    "decode_layout",
    "find_dropped",
    "head_columns",
    "read_state",
]

Row: TypeAlias = dict[str, Any]
Number: TypeAlias = int
Digest: TypeAlias = str

RARELY_CHANGED: dict[str, Any] = {"hooks": [], "interceptors": None}
"""Fields of a state with a row of their own, and their defaults. They can be long, and change only with a segment."""
MOST_RANGES = 50
"""Ranges of numbers that a query names; for more, it reads all rows of the operation."""

_fields = {field.name: field for field in msgspec.structs.fields(OperationState)}
_encode = msgspec.json.encode
_decode_head = msgspec.json.Decoder(OperationState).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_outcome = msgspec.json.Decoder(ToolOutcome).decode
_decode_field = {name: msgspec.json.Decoder(_fields[name].type).decode for name in RARELY_CHANGED}


class Layout(msgspec.Struct, array_like=True, kw_only=True):
    """Which rows make up a state. It is stored with the operation as JSON.

    Attributes:
        rows: The highest number that a row of the operation ever had.
        messages: Ranges of numbers, each with its first and its last, in the order of the conversation.
        outcomes: The number of each outcome by tool call id, and the digest of the message that the model reads.
        fields: The number and the digest of each field with a row of its own, by its name.
        calls_said: Whether the open calls are those of the last message.
        model_calls: How many model calls are stored.
        compacted: The conversations that summaries have replaced, oldest first, each as the ranges of the rows that
            were stored of it; empty for one of which rows were deleted since. The state does not need them.
    """

    rows: int = 0
    messages: list[tuple[Number, Number]] = []
    outcomes: dict[str, tuple[Number, Digest]] = {}
    fields: dict[str, tuple[Number, Digest]] = {}
    calls_said: bool = False
    model_calls: int = 0
    compacted: list[list[tuple[Number, Number]]] = []

    def ranges(self) -> Sequence[tuple[Number, Number]]:
        """Return all ranges of numbers that the state needs."""
        singles = [*self.outcomes.values(), *self.fields.values()]
        return [*self.messages, *((number, number) for number, _ in singles)]

    def stored_ranges(self) -> Sequence[tuple[Number, Number]]:
        """Return all ranges of numbers that are stored."""
        return [*self.ranges(), *(each for ranges in self.compacted for each in ranges)]

    def count_messages(self) -> int:
        """Return the length of the conversation."""
        return sum(last - first + 1 for first, last in self.messages)


decode_layout = msgspec.json.Decoder(Layout).decode


class StateChange:
    """The difference between a state and the stored one: what a write adds.

    Args:
        state: The new state, whole.
        kept_messages: How many of its first messages the store has.
        kept_outcomes: Ids of the outcomes that the store has.

    Attributes:
        head: The state without the parts that have rows of their own, as JSON.

    Raises:
        TypeError: If a part cannot be written as JSON, and `ValueError`, `OverflowError` or `RecursionError` likewise.
    """

    def __init__(
        self, state: OperationState, *, kept_messages: int = 0, kept_outcomes: Collection[str] = frozenset()
    ) -> None:
        self._state = state
        self._kept_messages = kept_messages
        self._messages = [_encode(message) for message in state.messages[kept_messages:]]
        self._outcomes = {
            name: _encode(outcome) for name, outcome in state.outcomes.items() if name not in kept_outcomes
        }
        self._fields = {name: _encode(value) for name in RARELY_CHANGED if (value := getattr(state, name))}
        said = state.messages[-1].tool_calls if state.messages else None
        self._calls_said = bool(state.open_calls) and said == state.open_calls
        without = {name: RARELY_CHANGED[name] for name in self._fields}
        if self._calls_said:
            without["open_calls"] = []
        self.head = _encode(msgspec.structs.replace(state, messages=[], outcomes={}, **without))

    def place(self, stored: Layout | None, *, is_whole: bool, compactions: int = 0) -> tuple[Layout, list[Row]]:
        """Number the new rows, behind those that are stored.

        Args:
            stored: The layout of the stored state; `None` if there is none.
            is_whole: Whether nothing of the stored state is used again.
            compactions: How often a summary has replaced a part of the conversation since the stored state. The
                messages that it replaced are kept.

        Returns:
            The layout of the new state, and the new rows.
        """
        state, messages, outcomes, kept = self._state, self._messages, self._outcomes, self._kept_messages
        stored = stored or Layout()
        rows = RowWriter(state.operation_id, stored.rows)
        model_calls = stored.model_calls
        if is_whole:
            stored = Layout()
        elif stored.count_messages() < kept or not stored.outcomes.keys() >= self._kept_outcomes():
            # The store does not have what its caller believes, so that all of it is written.
            whole = StateChange(state)
            messages, outcomes, kept = whole._messages, whole._outcomes, 0
        layout = Layout(
            messages=cut_ranges(stored.messages, kept), calls_said=self._calls_said, model_calls=model_calls
        )
        for name in state.outcomes:
            if name not in outcomes:
                layout.outcomes[name] = stored.outcomes[name]
        for message, body in zip(state.messages[kept:], messages, strict=True):
            number, said = stored.outcomes.get(message.tool_call_id or "", (0, ""))
            # The result of a call was stored as its outcome before it became a message.
            append_number(layout.messages, number if said and said == make_digest(body) else rows.add("message", body))
        for name, body in outcomes.items():
            layout.outcomes[name] = rows.add("outcome", body), make_digest(_encode(tool_message(state.outcomes[name])))
        for name, body in self._fields.items():
            digest, known = make_digest(body), stored.fields.get(name)
            layout.fields[name] = known if known and known[1] == digest else (rows.add("field", body), digest)
        layout.rows = rows.last
        if stored.compacted or compactions:
            layout.compacted = keep_compacted(stored, layout, compactions)
        return layout, rows.new

    def _kept_outcomes(self) -> set[str]:
        return self._state.outcomes.keys() - self._outcomes.keys()


class RowWriter:
    """Numbers new rows of an operation.

    Args:
        operation_id: The operation.
        last: The last number that is taken.
    """

    def __init__(self, operation_id: str, last: Number) -> None:
        self.last = last
        self.new: list[Row] = []
        self._operation_id = operation_id

    def add(self, kind: str, body: bytes) -> Number:
        """Add a row, and return its number.

        Args:
            kind: `"message"`, `"outcome"` or `"field"`.
            body: What is stored, as JSON.
        """
        self.last += 1
        self.new.append({"operation_id": self._operation_id, "number": self.last, "kind": kind, "body": body})
        return self.last


def find_dropped(stored: Layout, layout: Layout) -> list[Number]:
    """Return the numbers of the rows that are stored with a state, and not with the next one.

    They are deleted: what hooks have withheld or rewritten is not to stay in the database.
    """
    return sorted(subtract_ranges(stored.stored_ranges(), layout.stored_ranges()))


def subtract_ranges(ranges: Sequence[tuple[Number, Number]], needed: Sequence[tuple[Number, Number]]) -> set[Number]:
    """Return the numbers in some ranges that are in none of others."""
    # Most ranges are also in the next state, or lie in one that is longer by some messages: so a long conversation is
    # not counted message by message.
    left = set(ranges).difference(needed)
    others = [each for each in left if not any(low <= each[0] and each[1] <= high for low, high in needed)]
    return collect_numbers(others) - collect_numbers(needed) if others else set()


def keep_compacted(stored: Layout, layout: Layout, compactions: int) -> list[list[tuple[Number, Number]]]:
    """Return the conversations that summaries have replaced, after a change of the state.

    What hooks have withheld or rewritten does not stay in any of them. Of several compactions at once, only the first
    one is of a stored conversation.
    """
    if compactions:
        return [*stored.compacted, stored.messages, *([] for _ in range(compactions - 1))]
    removed = subtract_ranges(stored.messages, layout.ranges())
    return [
        [] if removed and not removed.isdisjoint(collect_numbers(ranges)) else ranges for ranges in stored.compacted
    ]


def collect_numbers(ranges: Sequence[tuple[Number, Number]]) -> set[Number]:
    """Return the numbers in some ranges."""
    return {number for first, last in ranges for number in range(first, last + 1)}


def make_digest(body: bytes) -> Digest:
    """Return the digest by which a part that has not changed is recognized."""
    return blake2b(body, digest_size=12).hexdigest()


def cut_ranges(ranges: Sequence[tuple[Number, Number]], count: int) -> list[tuple[Number, Number]]:
    """Return the ranges with the first numbers of some ranges."""
    kept: list[tuple[Number, Number]] = []
    for first, last in ranges:
        if count <= 0:
            break
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
    return kept


def append_number(ranges: list[tuple[Number, Number]], number: Number) -> None:
    """Append a number to ranges; one that follows the last range extends it."""
    if ranges and ranges[-1][1] + 1 == number:
        ranges[-1] = ranges[-1][0], number
    else:
        ranges.append((number, number))


head_columns = (operations.c.operation_id, operations.c.format, operations.c.state, operations.c.layout)
"""What `decode_head` and `complete_state` need of an operation."""


def decode_head(row: StoredRow[*tuple[Any, ...]]) -> OperationState:
    """Decode a stored state without the parts that have rows of their own.

    Without rows are the conversation, the known outcomes, the hooks, the interceptors and, at times, the open calls.

    Args:
        row: The `head_columns` of the operation.

    Raises:
        StateFormatError: If a newer version of hookline wrote the state, or it cannot be decoded.
    """
    if row.format > FORMAT:
        raise StateFormatError(row.operation_id, row.format, FORMAT)
    try:
        return _decode_head(row.state)
    except msgspec.MsgspecError as error:
        raise StateFormatError(row.operation_id, row.format, FORMAT) from error


async def complete_state(connection: AsyncConnection, row: StoredRow[*tuple[Any, ...]]) -> OperationState:
    """Decode a stored state whole.

    Args:
        connection: The transaction that has read the row.
        row: The `head_columns` of the operation.

    Raises:
        StateFormatError: If a newer version of hookline wrote the state, or it cannot be decoded.
    """
    head = decode_head(row)
    if row.layout is None:
        return head
    try:
        layout = decode_layout(row.layout)
        found = await read_rows(connection, row.operation_id, layout.ranges())
        messages = [
            decode_message(*found[number]) for first, last in layout.messages for number in range(first, last + 1)
        ]
        fields: dict[str, Any] = {
            name: _decode_field[name](found[number][1]) for name, (number, _) in layout.fields.items()
        }
        if layout.calls_said:
            fields["open_calls"] = list(messages[-1].tool_calls or ())
        outcomes = {name: _decode_outcome(found[number][1]) for name, (number, _) in layout.outcomes.items()}
    except (msgspec.MsgspecError, LookupError) as error:
        raise StateFormatError(row.operation_id, row.format, FORMAT) from error
    return msgspec.structs.replace(head, messages=messages, outcomes=outcomes, **fields)


def decode_message(kind: str, body: bytes) -> Message:
    """Decode the row of a message, which may be that of the outcome whose result the message is."""
    return tool_message(_decode_outcome(body)) if kind == "outcome" else _decode_message(body)


async def read_rows(
    connection: AsyncConnection, operation_id: str, ranges: Sequence[tuple[Number, Number]]
) -> dict[Number, tuple[str, bytes]]:
    """Read rows of an operation by their numbers, each as its kind and its body."""
    if not ranges:
        return {}
    named = ranges if len(ranges) <= MOST_RANGES else ()
    given: dict[str, object] = {"its_id": operation_id}
    for nth, (first, last) in enumerate(named):
        given |= {f"first_{nth}": first, f"last_{nth}": last}
    return {row.number: (row.kind, row.body) for row in await connection.execute(_select_rows(len(named)), given)}


@cache
def _select_rows(ranges: int) -> Select[int, str, bytes]:
    """Return the query for rows of an operation: those in so many ranges, or all for 0."""
    its = state_rows.c.operation_id == bindparam("its_id")
    query = select(state_rows.c.number, state_rows.c.kind, state_rows.c.body).where(its)
    number = state_rows.c.number
    named = [number.between(bindparam(f"first_{nth}"), bindparam(f"last_{nth}")) for nth in range(ranges)]
    return query.where(or_(*named)) if named else query


async def read_state(connection: AsyncConnection, operation_id: str) -> OperationState | None:
    """Read the state of an operation; `None` if there is no such operation."""
    row = (await connection.execute(_select_head(), {"its_id": operation_id})).one_or_none()
    return None if row is None else await complete_state(connection, row)


@cache
def _select_head() -> Select[*tuple[Any, ...]]:
    return select(*head_columns).where(operations.c.operation_id == bindparam("its_id"))
