"""Ready-made hooks that watch calls: metrics per class of calls, and an audit log of decisions."""

import abc
import inspect
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias, Unpack

import anyio
import msgspec

from hookline.builtin._tools import BundleOptions, check_number, name_of, with_defaults
from hookline.calls import (
    CALLS,
    AgentResult,
    Call,
    MemoryCall,
    ModelCall,
    RequestCall,
    RequestResult,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError, HookDenied, message_of
from hookline.hooks import Hooks, meets_approved

__all__ = ["AuditLog", "AuditOutcome", "AuditRecord", "CallMetrics"]

logger = logging.getLogger("hookline")

AuditOutcome: TypeAlias = Literal["ok", "failed", "denied", "answered", "cancelled"]
"""How a call ended. `"ok"`: it succeeded. `"failed"`: it raised, or its result says that it failed. `"denied"`: a hook
denied it, or it waits for approval. `"answered"`: a hook answered it. `"cancelled"`: its run was stopped."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One call, and the decision about it.

    Attributes:
        call: The name of its class, such as `"ToolCall"`.
        target: What was called: `"local/search"`, `"agent/<id>"`, a model, a request's method and path, a memory key.
        args: The final arguments of a tool call; of a call that never ran, the requested ones.
        operation_id: The run.
        tenant_id: The tenant of the run.
        time_unix_nano: When the call started.
        duration_ms: How long it took, including hooks.
        outcome: How it ended.
        denied_by: The hook that denied it; `""` if the tool itself needs approval.
        reason: Why it was denied, or the message of the exception.
    """

    call: str
    target: str = ""
    args: dict[str, Any] = {}
    operation_id: str = ""
    tenant_id: str = ""
    time_unix_nano: int
    duration_ms: float
    outcome: AuditOutcome
    denied_by: str | None = None
    reason: str | None = None


class _Watch(Hooks, abc.ABC):
    """Sees how every call ends: it is outermost, and fails open."""

    def __init__(self, id: str, priority: int, options: BundleOptions) -> None:  # noqa: A002
        super().__init__(**with_defaults(id, priority, options))
        self._mark = f"hookline.{id}.{object.__hash__(self)}"
        for kind in CALLS:
            self.around(kind, id=self.id, on_error="open", timeout=math.inf)(self._watch)
            self.guard(kind, id=self.id, on_error="open", timeout=math.inf)(self._mark_reached)
        self.interceptors = tuple(meets_approved(each) for each in self.interceptors)

    def _mark_reached(self, call: Call) -> None:
        call.metadata[self._mark] = call

    async def _watch(self, call: Call, call_next: Callable[[Call], Awaitable[Any]]) -> Any:
        began, started = time.time_ns(), time.perf_counter_ns()
        outcome: AuditOutcome = "cancelled"
        error: Exception | None = None
        try:
            result = await call_next(call)
            outcome = ("failed" if _has_failed(result) else "ok") if self._mark in call.metadata else "answered"
        except Exception as raised:
            outcome, error = "denied" if isinstance(raised, HookDenied) else "failed", raised
            raise
        finally:
            duration_ms = (time.perf_counter_ns() - started) / 1e6
            final = call.metadata.pop(self._mark, call)
            await self._note(_record(final, began, duration_ms, outcome, error))
        return result

    @abc.abstractmethod
    async def _note(self, record: AuditRecord) -> None:
        """Record that a call ended."""


def _record(call: Call, began: int, duration_ms: float, outcome: AuditOutcome, error: Exception | None) -> AuditRecord:
    return AuditRecord(
        call=type(call).__name__,
        target=_target(call),
        args=call.args if isinstance(call, ToolCall) else {},
        operation_id=call.operation_id,
        tenant_id=call.tenant_id,
        time_unix_nano=began,
        duration_ms=duration_ms,
        outcome=outcome,
        denied_by=error.hook_id if isinstance(error, HookDenied) else None,
        reason=error.reason if isinstance(error, HookDenied) else None if error is None else message_of(error),
    )


def _target(call: Call) -> str:
    match call:
        case ToolCall() | SubAgentCall():
            return "/".join(name_of(call))
        case ModelCall():
            return call.model
        case RequestCall():
            return f"{call.method} {call.path}"
        case MemoryCall():
            return call.key
        case _:
            return ""


def _has_failed(result: object) -> bool:
    match result:
        case ToolResult():
            return not result.success or result.error_type is not None
        case AgentResult():
            return result.reason == "error"
        case RequestResult():
            return result.status >= 500
        case _:
            return False


class CallMetrics(_Watch):
    """A bundle that counts and times calls per class of call, over any number of runs.

    Times include all other hooks. An answer by `event.mock` counts as `"ok"`. Priority: 0.

    Args:
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If an option is invalid.
    """

    def __init__(self, **options: Unpack[BundleOptions]) -> None:
        super().__init__("call_metrics", 0, options)
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, Any]] = {}

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the numbers so far, by class of call.

        Returns:
            A copy: per class `count`, `errors` (calls with outcome `"failed"`), `total_ms`, `min_ms`, `max_ms` and
            `outcomes`, which counts each outcome. Classes without calls are missing.
        """
        with self._lock:
            return {call: {**counts, "outcomes": dict(counts["outcomes"])} for call, counts in self._counts.items()}

    async def _note(self, record: AuditRecord) -> None:
        spent = record.duration_ms
        first = {"count": 0, "errors": 0, "total_ms": 0.0, "min_ms": spent, "max_ms": spent, "outcomes": {}}
        with self._lock:
            counts = self._counts.setdefault(record.call, first)
            counts["count"] += 1
            counts["errors"] += record.outcome == "failed"
            counts["total_ms"] += spent
            counts["min_ms"] = min(counts["min_ms"], spent)
            counts["max_ms"] = max(counts["max_ms"], spent)
            counts["outcomes"][record.outcome] = counts["outcomes"].get(record.outcome, 0) + 1


class AuditLog(_Watch):
    """A bundle that records every call and the decision about it, including denied calls.

    Priority: 1.

    Args:
        sink: A function, plain or async, that receives each record when its call ends. The call, and a stopped run,
            wait for it. If it fails, that is logged and the run continues.
        max_entries: Maximum number of records in `records`; the oldest are dropped first.
        sink_timeout: Seconds that an async sink may take for a record.
        redact: Returns the record to keep instead of a given one, or `None` to drop it.
        **options: Options of the bundle, see `BundleOptions`.

    Raises:
        HookDefinitionError: If an option is invalid.
    """

    def __init__(
        self,
        sink: Callable[[AuditRecord], object] | None = None,
        *,
        max_entries: int = 10_000,
        sink_timeout: float = 1.0,
        redact: Callable[[AuditRecord], AuditRecord | None] | None = None,
        **options: Unpack[BundleOptions],
    ) -> None:
        super().__init__("audit_log", 1, options)
        _check_callables(self.id, sink=sink, redact=redact)
        check_number(self.id, "max_entries", max_entries, least=1, whole=True)
        check_number(self.id, "sink_timeout", sink_timeout)
        self._sink, self._redact, self._timeout = sink, redact, sink_timeout
        self._records: deque[AuditRecord] = deque(maxlen=max_entries)

    @property
    def records(self) -> list[AuditRecord]:
        """Return the newest records, oldest first."""
        return list(self._records)

    async def _note(self, record: AuditRecord) -> None:
        try:
            kept = record if self._redact is None else self._redact(record)
            if kept is None:
                return
            self._records.append(kept)
            if self._sink is not None:
                await self._write(self._sink(kept))
        except Exception:
            logger.warning("Could not write a record of %r", self.id, exc_info=True)

    async def _write(self, written: object) -> None:
        if inspect.isawaitable(written):
            with anyio.move_on_after(self._timeout, shield=True) as scope:
                await written
            if scope.cancelled_caught:
                logger.warning("The sink of %r exceeded its timeout of %g s for a record", self.id, self._timeout)


def _check_callables(where: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None and not callable(value):
            raise HookDefinitionError(where, f"`{name}` must be a function of one AuditRecord; got {value!r}")
