"""Rows of the execution log: build them from records of chains and observers, and convert their keys."""

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

from hookline.errors import HookUsageError
from hookline.execution import redact
from hookline.signals import ChainRun, ExecutionStatus, HookDecision, HookExecution

__all__ = [
    "BAD_FIRST",
    "ExecutionRow",
    "HookRun",
    "Recorded",
    "build_row",
    "clean_text",
    "execution_hook_rows",
    "execution_row",
    "first_key",
    "make_key",
    "parse_key",
    "replace_key",
    "request_id",
]

Recorded: TypeAlias = ChainRun | HookExecution

LONGEST_ID, LONGEST_POINT, LONGEST_TEXT = 400, 40, 2000
LONGEST_DURATION = 1e12
SPARE_BITS = 11
"""Bits of a key below the microseconds, so that executions ending in the same one differ. Keys last until 2112."""
LATEST = (1 << 52) - 2
"""The last microsecond of an execution. The one after it is left out, since the end of a range of keys is exclusive."""
BAD_FIRST: Sequence[ExecutionStatus] = ("denied", "error", "timeout", "dropped", "mocked", "shadow")
"""Statuses from worst to least bad: the status of a row is the first of them that one of its hooks had."""

request_id: ContextVar[str] = ContextVar("hookline_request_id", default="")
"""The id of the present request, which is logged with its hook executions; the operation's id by default."""


class HookRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One execution of a hook.

    Attributes:
        hook_id: The id of the hook.
        status: How it ended. `"dropped"`: it never ran, or was cancelled.
        duration_ms: The hook's own time.
        error: The error that it raised, or the reason of its denial.
        time_unix_nano: When it began, in nanoseconds since 1970.
        decision: What it decided: `"denied"`, `"asked"`, `"mocked"`, `"changed"` or `"continued"`; empty for nothing.
            The decision of a hook with the status `"shadow"` had no effect.
        reason: The reason of a denial, the question to a person, or the input to go on with.
        revision: The revision of the stored definition that made the hook; 0 for any other hook.
    """

    hook_id: str
    status: ExecutionStatus
    duration_ms: float
    error: str | None = None
    time_unix_nano: int = 0
    decision: HookDecision = ""
    reason: str = ""
    revision: int = 0


class ExecutionRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A row of the log: a call that passed interceptors, or an event that an observer handled.

    Attributes:
        id: The id of the row; ids sort by the time of the end.
        operation_id: The operation, or the request.
        tenant_id: The tenant for whom it ran.
        request_id: The HTTP request that caused it; its operation's id if there was none.
        point: Name of the call's class, or wire name of the event.
        status: The worst status of its hooks: `"denied"`, `"error"`, `"timeout"`, `"dropped"`, `"mocked"`,
            `"shadow"`, or `"ok"`.
        duration_ms: From the first hook's start to the last hook's end, with the call that they surround; for an
            observer its own time.
        created_at: When it ended, in unix seconds, by the clock of its process.
        denied_by: The id of the hook that denied the call.
        reason: The reason of the denial.
        step_index: The step that it belongs to, if it is known.
        tool_call_id: The tool call that it is about, if there is one.
        agent_id: The agent that ran; `""` if there was none.
        tool: Toolset and name of the tool that it is about, or `agent/` and the sub-agent; `""` if there is none.
        executions: The executions of the hooks, in the order in which they started.
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
    agent_id: str = ""
    tool: str = ""
    executions: list[HookRun]


def build_row(recorded: Recorded, request: str, spare: int) -> ExecutionRow:
    """Build a row from a record. Texts are cut, secrets in them redacted, and unstorable characters replaced.

    Args:
        recorded: The record.
        request: The id of the request that caused it; `""` if there was none.
        spare: Distinguishes it from others that end in the same microsecond.
    """
    if isinstance(recorded, ChainRun):
        point, executions = recorded.point, recorded.executions
        denied_by, reason = recorded.denied_by, recorded.reason
    else:
        point, executions, denied_by, reason = recorded.hook_type, [recorded], None, None
    duration_ms = limit_duration(recorded.duration_ms)
    micros = max(0, min(int(recorded.time_unix_nano / 1e3 + duration_ms * 1e3), LATEST))
    operation_id = clean_text(recorded.operation_id, LONGEST_ID)
    return ExecutionRow(
        id=f"{make_key(micros, spare):016x}",
        operation_id=operation_id,
        tenant_id=clean_text(recorded.tenant_id, LONGEST_ID),
        request_id=clean_text(request, LONGEST_ID) or operation_id,
        point=clean_text(point, LONGEST_POINT),
        status="denied" if denied_by is not None else worst_status(execution.status for execution in executions),
        duration_ms=duration_ms,
        created_at=micros / 1e6,
        denied_by=None if denied_by is None else clean_text(denied_by, LONGEST_ID),
        reason=None if reason is None else clean_error(reason),
        step_index=recorded.step_index,
        tool_call_id=None if recorded.tool_call_id is None else clean_text(recorded.tool_call_id, LONGEST_ID),
        agent_id=clean_text(recorded.agent_id, LONGEST_ID),
        tool=clean_text(recorded.tool, LONGEST_ID),
        executions=[
            HookRun(
                hook_id=clean_text(execution.hook_id, LONGEST_ID),
                status=execution.status,
                duration_ms=limit_duration(execution.duration_ms),
                error=None if execution.error is None else clean_error(execution.error),
                time_unix_nano=execution.time_unix_nano,
                decision=execution.decision,
                reason=clean_error(execution.reason),
                revision=execution.revision,
            )
            for execution in executions
        ],
    )


def replace_key(row: ExecutionRow, spare: int) -> ExecutionRow:
    """Return the row with another key in the same microsecond."""
    return msgspec.structs.replace(row, id=f"{make_key(parse_key(row.id) >> SPARE_BITS, spare):016x}")


def execution_row(row: ExecutionRow) -> dict[str, Any]:
    """Return the row of the `executions` table."""
    return {
        "id": parse_key(row.id),
        "operation_id": row.operation_id,
        "tenant_id": row.tenant_id,
        "point": row.point,
        "status": row.status,
        "wire": msgspec.json.encode(row),
    }


def execution_hook_rows(row: ExecutionRow) -> list[dict[str, Any]]:
    """Return the rows of the `execution_hooks` table: one for each hook, with its worst status and its revision."""
    statuses: dict[str, list[ExecutionStatus]] = {}
    revisions: dict[str, int] = {}
    for run in row.executions:
        statuses.setdefault(run.hook_id, []).append(run.status)
        revisions[run.hook_id] = run.revision or revisions.get(run.hook_id, 0)
    key = parse_key(row.id)
    return [
        {
            "hook_id": hook_id,
            "id": key,
            "tenant_id": row.tenant_id,
            "point": row.point,
            "status": all_of_it[0] if len(all_of_it) == 1 else worst_status(all_of_it),
            "revision": revisions[hook_id],
        }
        for hook_id, all_of_it in statuses.items()
    ]


def worst_status(statuses: Iterable[ExecutionStatus]) -> ExecutionStatus:
    """Return the worst of several statuses."""
    found = set(statuses)
    return next((status for status in BAD_FIRST if status in found), "ok")


def limit_duration(milliseconds: float) -> float:
    """Limit a duration to a storable range; negative values and NaN become 0."""
    return min(milliseconds, LONGEST_DURATION) if milliseconds >= 0 else 0.0


def clean_text(text: str, longest: int) -> str:
    """Cut a text to a length, and replace characters that databases do not accept."""
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def clean_error(text: str) -> str:
    """Redact and cut an error or reason of a denial, which may quote secrets from a call."""
    # Cut before, since a text may be huge, and after, since redaction needs a secret's name and value together.
    return clean_text(redact(text[: 4 * LONGEST_TEXT]), LONGEST_TEXT)


def make_key(micros: int, spare: int = 0) -> int:
    """Return the key of an execution that ends in a microsecond since 1970."""
    return (micros << SPARE_BITS) | (spare & ((1 << SPARE_BITS) - 1))


def parse_key(id: str) -> int:  # noqa: A002
    """Parse the id of a row into its key.

    Raises:
        HookUsageError: If the id is invalid.
    """
    if isinstance(id, str) and len(id) == 16 and id.isascii() and id.isalnum():
        try:
            return min(int(id, 16), (1 << 63) - 1)
        except ValueError:
            pass
    raise HookUsageError("An id or a cursor of the log has sixteen hexadecimal digits; use one that the log returned.")


def first_key(seconds: float) -> int:
    """Return the lowest key of executions that ended at a time or later.

    Args:
        seconds: The time, in unix seconds.

    Raises:
        HookUsageError: If it is no number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        raise HookUsageError(f"A time must be a number of unix seconds; got {seconds!r}.")
    return make_key(int(max(0.0, min(seconds * 1e6, float(LATEST)))))
