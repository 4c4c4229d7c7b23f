"""What becomes of a state and its events in the tables: one row of the operation, and those that it causes."""

import math
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec

from hookline.errors import HookUsageError, StateFormatError
from hookline.events import decode
from hookline.runtime import FORMAT, JournalEntry, OperationState
from hookline.webhooks import Envelope, delivery_id, payload_of

__all__ = ["envelopes_of", "event_rows", "operation_row", "state_of", "storable", "stream_of"]

Row: TypeAlias = dict[str, Any]

LONGEST_ID, LONGEST_URL = 400, 2048

_state = msgspec.json.Decoder(OperationState).decode


def operation_row(state: OperationState, *, owner: str, write_id: str) -> Row:
    """The row of an operation, but for its times.

    Args:
        state: The operation.
        owner: The process that runs it, if it is running.
        write_id: What this one write is known by.

    Raises:
        HookUsageError: If it holds what cannot be stored.
    """
    for name in ("operation_id", "agent_id", "tenant_id", "user_id", "parent_operation_id"):
        check_text(state.operation_id, name, getattr(state, name) or "")
    if not math.isfinite(state.usage.cost_usd):
        # JSON has no such number, so that what was written could not be read again.
        raise not_stored(state.operation_id, f"its model calls cost {state.usage.cost_usd!r}, which is no number")
    try:
        encoded = msgspec.json.encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise not_stored(state.operation_id, f"its state cannot be written as JSON: {error}") from error
    return {
        "operation_id": state.operation_id,
        "agent_id": state.agent_id,
        "tenant_id": state.tenant_id,
        "user_id": state.user_id,
        "parent_operation_id": state.parent_operation_id,
        "status": state.status,
        "version": state.version,
        "write_id": write_id,
        "format": state.format,
        "state": encoded,
        "owner": owner if state.status == "running" else None,
        "steps": state.steps,
        "llm_calls": state.llm_calls,
        "tool_calls": state.tool_calls,
        "total_tokens": state.usage.input_tokens + state.usage.output_tokens,
        "cost_usd": state.usage.cost_usd,
        "events": state.events,
        "missing_hooks": None,  # whoever writes it has gone on with it
    }


def event_rows(state: OperationState, entries: Sequence[JournalEntry]) -> list[Row]:
    """The rows of the events that came before a state.

    Raises:
        HookUsageError: If their numbers do not lead up to that of the state.
    """
    first = state.events - len(entries) + 1
    if [entry.number for entry in entries] != list(range(first, state.events + 1)):
        raise not_stored(
            state.operation_id,
            f"its events are numbered {[entry.number for entry in entries]!r}, where {first} to {state.events} follow",
        )
    return [
        {
            "operation_id": state.operation_id,
            "number": entry.number,
            "tenant_id": state.tenant_id,
            "type": str(entry.type),
            "time_unix_nano": entry.time_unix_nano,
            "wire": entry.wire,
        }
        for entry in entries
    ]


def envelopes_of(state: OperationState, entries: Sequence[JournalEntry]) -> list[Envelope]:
    """The deliveries that events cause: in the order of the events, then of the hooks.

    Raises:
        HookUsageError: If a hook cannot be stored.
    """
    wanted = {hook.type for hook in state.hooks if not hook.webhook.control}
    envelopes: list[Envelope] = []
    for entry in entries:
        if entry.type not in wanted:
            continue
        event, wire = decode(entry.wire), msgspec.json.decode(entry.wire)
        for nth, hook in enumerate(state.hooks):
            if not hook.wants(event):
                continue
            check_text(state.operation_id, "hook id", hook.id)
            check_text(state.operation_id, "webhook address", hook.webhook.url, LONGEST_URL)
            envelopes.append(
                Envelope(
                    id=delivery_id(state.operation_id, entry.number, hook.id, nth),
                    hook=hook,
                    operation_id=state.operation_id,
                    tenant_id=state.tenant_id,
                    number=entry.number,
                    payload=payload_of(hook, wire),
                )
            )
    return envelopes


def stream_of(operation_id: str, url: str) -> str:
    """Names the deliveries of one operation to one address, which are kept in order."""
    return sha256(f"{operation_id}\0{url}".encode()).hexdigest()[:64]


def state_of(operation_id: str, written: int, encoded: bytes) -> OperationState:
    """A state as it was written.

    Args:
        operation_id: The operation.
        written: The version of its layout.
        encoded: The state, as JSON.

    Raises:
        StateFormatError: If a newer version of hookline wrote it, or it cannot be read.
    """
    if written > FORMAT:
        raise StateFormatError(operation_id, written, FORMAT)
    try:
        return _state(encoded)
    except msgspec.MsgspecError as error:
        raise StateFormatError(operation_id, written, FORMAT) from error


def is_storable(value: str, longest: int | None = None) -> bool:
    """Whether both databases take a text: no NUL, no half of a surrogate pair, not too long."""
    if longest is not None and len(value) > longest:
        return False
    return "\0" not in value and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))


def storable(value: str) -> str:
    """A text with what the databases do not take replaced."""
    return value.encode(errors="replace").decode().replace("\0", "?")


def check_text(operation_id: str, name: str, value: str, longest: int = LONGEST_ID) -> None:
    """Refuse text that one of the databases would not take."""
    if len(value) > longest:
        raise not_stored(operation_id, f"its {name} is {len(value)} characters long, and {longest} can be stored")
    if not is_storable(value):
        raise not_stored(operation_id, f"its {name} holds a character that databases do not take (NUL or a surrogate)")


def not_stored(operation_id: str, problem: str) -> HookUsageError:
    """What is raised for a state that no store can take."""
    shown = operation_id if len(operation_id) <= 80 else f"{operation_id[:80]}..."
    return HookUsageError(f"Operation {shown!r} cannot be stored: {problem}. Nothing was written.")
