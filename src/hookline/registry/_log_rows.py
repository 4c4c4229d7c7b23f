"""What is kept of a chain run or of an observer's run: a row for whoever reads, and what it is found by."""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

from hookline.errors import HookUsageError
from hookline.execution import redact
from hookline.signals import ChainRun, ExecutionStatus, HookExecution

__all__ = [
    "BAD_FIRST",
    "ExecutionRow",
    "HookRun",
    "Recorded",
    "first_key",
    "hook_rows",
    "key_at",
    "key_of",
    "main_row",
    "request_id",
    "respare",
    "row_of",
]

Recorded: TypeAlias = ChainRun | HookExecution

LONGEST_ID, LONGEST_POINT, LONGEST_TEXT = 400, 40, 2000
LONGEST_DURATION = 1e12
SPARE_BITS = 11
"""What a key has besides microseconds, so that executions that end in the same one differ. It lasts until 2112."""
LATEST = (1 << 52) - 1
"""The last microsecond that a key can name."""
BAD_FIRST: Sequence[ExecutionStatus] = ("denied", "error", "timeout", "dropped", "mocked")
"""What a run is called by when its hooks ended in several ways."""

request_id: ContextVar[str] = ContextVar("hookline_request_id", default="")
"""The request that causes what runs now. What hooks do then is logged with it, or else with their operation's id."""


class HookRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one hook did.

    Attributes:
        hook_id: The hook.
        status: How it ended. `"dropped"`: it never ran, or was cancelled.
        duration_ms: Its own time.
        error: What it raised; the reason of a denial.
        time_unix_nano: When it began, in nanoseconds since 1970.
    """

    hook_id: str
    status: ExecutionStatus
    duration_ms: float
    error: str | None = None
    time_unix_nano: int = 0


class ExecutionRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A call that was led through interceptors, or an event that an observer was told of.

    Attributes:
        id: Names it; ids sort by the time of their end.
        operation_id: The run, or the request.
        tenant_id: The tenant for whom it ran.
        request_id: The request that caused it, or its operation.
        point: Name of the call's class, or wire name of the event.
        status: The worst that a hook did: `"denied"`, `"error"`, `"timeout"`, `"dropped"`, `"mocked"`, or `"ok"`.
        duration_ms: From the first hook's start to the last one's end, with what the chain surrounds; for an observer
            its own time.
        created_at: When it ended, in seconds since 1970, by the clock of its process.
        denied_by: The hook that denied the call.
        reason: Why.
        step_index: The step that it belongs to, where it says so.
        tool_call_id: The tool call that it is about, if it is about one.
        executions: What each hook did, in the order in which they started.
    """

    id: str
    operation_id: str
    tenant_id: str
    request_id: str
    point: str
    status: ExecutionStatus
    duration_ms: float
    created_at: float
    denied_by: str | None = None
    reason: str | None = None
    step_index: int | None = None
    tool_call_id: str | None = None
    executions: list[HookRun]


def row_of(recorded: Recorded, request: str, spare: int) -> ExecutionRow:
    """What is kept of a record. Text is cut, and freed from secrets and from what databases do not take.

    Args:
        recorded: The record.
        request: The request that caused it, if there was one.
        spare: Tells it apart from others that end in the same microsecond.
    """
    if isinstance(recorded, ChainRun):
        point, executions = recorded.point, recorded.executions
        denied_by, reason = recorded.denied_by, recorded.reason
    else:
        point, executions, denied_by, reason = recorded.hook_type, [recorded], None, None
    duration_ms = duration(recorded.duration_ms)
    micros = max(0, min(int(recorded.time_unix_nano / 1e3 + duration_ms * 1e3), LATEST))
    operation_id = clean(recorded.operation_id, LONGEST_ID)
    return ExecutionRow(
        id=f"{key_at(micros, spare):016x}",
        operation_id=operation_id,
        tenant_id=clean(recorded.tenant_id, LONGEST_ID),
        request_id=clean(request, LONGEST_ID) or operation_id,
        point=clean(point, LONGEST_POINT),
        status="denied" if denied_by is not None else worst(execution.status for execution in executions),
        duration_ms=duration_ms,
        created_at=micros / 1e6,
        denied_by=None if denied_by is None else clean(denied_by, LONGEST_ID),
        reason=None if reason is None else clean_error(reason),
        step_index=recorded.step_index,
        tool_call_id=None if recorded.tool_call_id is None else clean(recorded.tool_call_id, LONGEST_ID),
        executions=[
            HookRun(
                hook_id=clean(execution.hook_id, LONGEST_ID),
                status=execution.status,
                duration_ms=duration(execution.duration_ms),
                error=None if execution.error is None else clean_error(execution.error),
                time_unix_nano=execution.time_unix_nano,
            )
            for execution in executions
        ],
    )


def respare(row: ExecutionRow, spare: int) -> ExecutionRow:
    """The same by another key."""
    return msgspec.structs.replace(row, id=f"{key_at(key_of(row.id) >> SPARE_BITS, spare):016x}")


def main_row(row: ExecutionRow) -> dict[str, Any]:
    """It in the table of executions."""
    return {
        "id": key_of(row.id),
        "operation_id": row.operation_id,
        "tenant_id": row.tenant_id,
        "point": row.point,
        "status": row.status,
        "wire": msgspec.json.encode(row),
    }


def hook_rows(row: ExecutionRow) -> list[dict[str, Any]]:
    """Where it is found by its hooks, each with the worst that it did."""
    statuses: dict[str, list[ExecutionStatus]] = {}
    for run in row.executions:
        statuses.setdefault(run.hook_id, []).append(run.status)
    key = key_of(row.id)
    return [
        {
            "hook_id": hook_id,
            "id": key,
            "tenant_id": row.tenant_id,
            "point": row.point,
            "status": all_of_it[0] if len(all_of_it) == 1 else worst(all_of_it),
        }
        for hook_id, all_of_it in statuses.items()
    ]


def worst(statuses: Iterable[ExecutionStatus]) -> ExecutionStatus:
    """What several runs of hooks are called by."""
    found = set(statuses)
    return next((status for status in BAD_FIRST if status in found), "ok")


def duration(milliseconds: float) -> float:
    """A duration as it can be; none, if it is no number."""
    return min(milliseconds, LONGEST_DURATION) if milliseconds >= 0 else 0.0


def clean(text: str, longest: int) -> str:
    """Text as every database takes it."""
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def clean_error(text: str) -> str:
    """What a hook said of its failure, or of a denial, without the secrets that it may quote from a call."""
    # Cut before, since anything may be quoted, and after, since a name may stand before the cut and its value behind.
    return clean(redact(text[: 4 * LONGEST_TEXT]), LONGEST_TEXT)


def key_at(micros: int, spare: int = 0) -> int:
    """The key of what ends in a microsecond since 1970."""
    return (micros << SPARE_BITS) | (spare & ((1 << SPARE_BITS) - 1))


def key_of(id: str) -> int:  # noqa: A002
    """The key that an id stands for.

    Raises:
        HookUsageError: If it is no id.
    """
    if isinstance(id, str) and len(id) == 16 and id.isascii() and id.isalnum():
        try:
            return min(int(id, 16), (1 << 63) - 1)
        except ValueError:
            pass
    raise HookUsageError("An id or a cursor of the log is sixteen hexadecimal digits, as the log has given them.")


def first_key(seconds: float) -> int:
    """The first key of what ended at a time or later.

    Args:
        seconds: Since 1970.

    Raises:
        HookUsageError: If it is no number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        raise HookUsageError(f"A time is a number of seconds since 1970; got {seconds!r}.")
    return key_at(int(max(0.0, min(seconds * 1e6, float(LATEST)))))
