"""Convert a state and its events into rows of the tables: the operation, its events and its deliveries."""

import math
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import msgspec

from hookline.errors import HookUsageError
from hookline.events import decode
from hookline.runtime import JournalEntry, ModelCallRecord, OperationState
from hookline.store._state_rows import StateChange
from hookline.webhooks import Envelope, delivery_id, payload_of

__all__ = [
    "build_change",
    "build_envelopes",
    "build_event_rows",
    "build_model_call_rows",
    "build_operation_row",
    "parse_tags",
    "replace_unstorable",
    "stream_name",
]

Row: TypeAlias = dict[str, Any]

LONGEST_ID, LONGEST_TAG, LONGEST_URL = 400, 100, 2048
LONGEST_PREVIEW = 200
"""Characters of a prompt that lists show."""
TRACEPARENT_PARTS, TRACE_ID_DIGITS = 4, 32


def build_operation_row(state: OperationState, head: bytes, *, owner: str, write_id: str) -> Row:
    """Build the row of an operation, without its times, and without what depends on the stored row.

    Args:
        state: The state of the operation.
        head: What the row holds of it, as JSON.
        owner: The process that runs it, if it is running.
        write_id: A unique id of this write.

    Raises:
        HookUsageError: If an id cannot be stored.
    """
    for name in (
        "operation_id",
        "agent_id",
        "tenant_id",
        "user_id",
        "parent_operation_id",
        "retry_of",
        "agent_version",
    ):
        check_text(state.operation_id, name, getattr(state, name) or "")
    for tag in state.tags or ():
        check_text(state.operation_id, "tag", tag, LONGEST_TAG)
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
        "state": head,
        "owner": owner if state.status == "running" else None,
        "steps": state.steps,
        "llm_calls": state.llm_calls,
        "tool_calls": state.tool_calls,
        "total_tokens": state.usage.input_tokens + state.usage.output_tokens,
        "cost_usd": state.usage.cost_usd,
        "events": state.events,
        "prompt": preview_prompt(state),
        "duration_ms": state.active_ms,
        "trace_id": find_trace_id(state),
        "retry_of": state.retry_of,
        "agent_version": state.agent_version,
        "tags": msgspec.json.encode(state.tags).decode() if state.tags else None,
        "missing_hooks": None,  # the process that writes has all hooks, and has gone on
    }


def parse_tags(column: str | None) -> list[str]:
    """Return the tags of an operation from the column of its row."""
    return [] if column is None else msgspec.json.decode(column, type=list[str])


def preview_prompt(state: OperationState) -> str:
    """Return the beginning of the newest message of the user."""
    said = (message.content for message in reversed(state.messages) if message.role == "user")
    return replace_unstorable(next(said, "")[:LONGEST_PREVIEW])


def find_trace_id(state: OperationState) -> str | None:
    """Return the id of the trace of the first segment, if it was traced."""
    parts = state.traceparents[0].split("-") if state.traceparents else []
    return parts[1] if len(parts) == TRACEPARENT_PARTS and len(parts[1]) == TRACE_ID_DIGITS else None


def build_change(
    state: OperationState, *, kept_messages: int = 0, kept_outcomes: Collection[str] = frozenset()
) -> StateChange:
    """Build what a write adds to the stored state.

    Args:
        state: The state.
        kept_messages: How many of its first messages are stored.
        kept_outcomes: Ids of its outcomes that are stored.

    Raises:
        HookUsageError: If the state has a value that cannot be stored.
    """
    if not math.isfinite(state.usage.cost_usd):
        # JSON has no such number: the state could be written, but not read again.
        raise unstorable_error(
            state.operation_id, f"its model calls cost {state.usage.cost_usd!r}, which is not a number"
        )
    try:
        return StateChange(state, kept_messages=kept_messages, kept_outcomes=kept_outcomes)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise unstorable_error(state.operation_id, f"its state cannot be written as JSON: {error}") from error


def build_model_call_rows(state: OperationState, records: Sequence[ModelCallRecord]) -> list[Row]:
    """Build the rows of model calls, without their numbers."""
    return [
        {
            **msgspec.structs.asdict(record),
            "operation_id": state.operation_id,
            "tenant_id": state.tenant_id,
            "provider": replace_unstorable(record.provider)[:LONGEST_ID],
            "model": replace_unstorable(record.model)[:LONGEST_ID],
            "error_type": record.error_type and replace_unstorable(record.error_type)[:LONGEST_ID],
        }
        for record in records
    ]


def build_event_rows(state: OperationState, entries: Sequence[JournalEntry]) -> list[Row]:
    """Build the rows of the events between the last stored state and this one.

    Raises:
        HookUsageError: If the numbers of the events do not lead up to the state's event count.
    """
    first = state.events - len(entries) + 1
    if [entry.number for entry in entries] != list(range(first, state.events + 1)):
        raise unstorable_error(
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


def build_envelopes(state: OperationState, entries: Sequence[JournalEntry]) -> list[Envelope]:
    """Build the deliveries of events to webhooks, in the order of the events, then of the hooks.

    Raises:
        HookUsageError: If a hook's id or URL cannot be stored.
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


def stream_name(operation_id: str, url: str) -> str:
    """Return the name of the stream of deliveries from one operation to one address, which stay in order."""
    return sha256(f"{operation_id}\0{url}".encode()).hexdigest()[:64]


def is_storable(value: str, longest: int | None = None) -> bool:
    """Return whether both databases accept a text: no NUL, no lone surrogate, not too long."""
    if longest is not None and len(value) > longest:
        return False
    return "\0" not in value and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))


def replace_unstorable(value: str) -> str:
    """Replace the characters of a text that the databases do not accept."""
    return value.encode(errors="replace").decode().replace("\0", "?")


def check_text(operation_id: str, name: str, value: str, longest: int = LONGEST_ID) -> None:
    """Raise `HookUsageError` if one of the databases would not accept a text."""
    if len(value) > longest:
        raise unstorable_error(operation_id, f"its {name} is {len(value)} characters long, and {longest} can be stored")
    if not is_storable(value):
        raise unstorable_error(
            operation_id, f"its {name} holds a character that databases do not take (NUL or a surrogate)"
        )


def unstorable_error(operation_id: str, problem: str) -> HookUsageError:
    """Build the error for a state that cannot be stored."""
    shown = operation_id if len(operation_id) <= 80 else f"{operation_id[:80]}..."
    return HookUsageError(f"Operation {shown!r} cannot be stored: {problem}. Nothing was written.")
