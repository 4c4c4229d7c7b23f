"""What is said of a handler run: the log for whoever reads it, a `HookExecution` for whoever listens."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Sequence
from functools import cache
from time import perf_counter, perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any

from hookline._deadline import HandlerCancelledError, HandlerTimeoutError
from hookline._observers import Observer
from hookline._phase import PhaseTransition
from hookline.calls import Denial
from hookline.errors import DeliveryError, message_of
from hookline.events import Event
from hookline.signals import ChainRun, ExecutionStatus, HookExecution, announce, chain_ran, hook_executed

if TYPE_CHECKING:
    from hookline._redaction import Redacting

__all__ = [
    "announce_chain",
    "announce_execution",
    "described",
    "log_error",
    "logger",
    "record",
    "record_dropped",
    "redact",
    "report",
    "report_failure",
]

logger = logging.getLogger("hookline")


def record_dropped(observers: Sequence[Observer], event: Event, sender: object, why: str) -> None:
    """Log, and record for whoever listens, that observers never got an event."""
    logger.warning(
        "Operation %s: %s dropped for %s: %s",
        event.operation_id,
        event.hook_type,
        ", ".join(repr(observer.id) for observer in observers),
        why,
    )
    if hook_executed.receivers:
        for observer in observers:
            if observer.recorded:
                _announce(observer, event, sender, "dropped", 0, why)


def report(observer: Observer, event: Event, error: Exception, timeout: float = math.inf) -> None:
    """Log what a handler did wrong."""
    if isinstance(error, HandlerTimeoutError):
        logger.error(
            "Hook %r on %s of operation %s was cancelled: it was still running after its timeout of %g s",
            observer.id,
            event.hook_type,
            event.operation_id,
            timeout,
        )
        return
    log_error("Hook %r on %s of operation %s raised %s", observer.id, event.hook_type, event.operation_id, error=error)


def report_failure(hook_id: str, point: str, operation_id: str, error: Exception) -> None:
    """Log what an interceptor or a phase hook did wrong."""
    log_error("Hook %r on %s of operation %s failed: %s", hook_id, point, operation_id, error=error)


def log_error(message: str, *args: object, error: Exception) -> None:
    """Log an exception of a handler with its traceback, without the secrets that its text may quote from a call.

    Args:
        message: The line, whose last `%s` is what was raised.
        args: What comes before that.
        error: What was raised.
    """
    told, trace = described(error), _trace_of(error)
    shown = "" if trace is None else "".join(traceback.format_exception(trace)).rstrip()
    clean = redact(shown)
    if clean == shown:
        logger.error(message, *args, redact(told), exc_info=trace)
    else:
        # Handlers would write the exception's own text once more, so that the traceback is a part of the line.
        logger.error(f"{message}\n%s", *args, redact(told), clean)


def redact(text: str) -> str:
    """Return a text without its secrets, as cassettes are kept without them."""
    return _redaction().text(text)


@cache
def _redaction() -> Redacting:
    from hookline._redaction import Redaction  # its patterns take a while to compile, and most runs need none

    return Redaction()


def _trace_of(error: Exception) -> Exception | None:
    """What is logged with a traceback: a delivery that failed has nothing to show but our own code."""
    return None if isinstance(error, DeliveryError) else error


def announce_execution(execution: HookExecution, sender: object) -> None:
    """Tell whoever listens how a hook's run has ended."""
    if hook_executed.receivers:
        announce(hook_executed, sender, execution=execution)


def announce_chain(
    call: Any, executions: list[HookExecution], denied: Denial | None, began: float, sender: object
) -> None:
    """Tell whoever listens how a call came through its interceptors.

    Args:
        call: The call.
        executions: What each hook did.
        denied: Who denied it.
        began: When, by `perf_counter`.
        sender: Of the record.
    """
    duration = perf_counter() - began
    ran = ChainRun(
        point=type(call).__name__,
        operation_id=call.operation_id,
        tenant_id=call.tenant_id,
        executions=executions,
        denied_by=denied.hook_id if denied is not None else None,
        reason=denied.reason if denied is not None else None,
        duration_ms=duration * 1e3,
        time_unix_nano=time_ns() - int(duration * 1e9),
        step_index=getattr(call, "step_index", None),
        tool_call_id=getattr(call, "tool_call_id", None),
    )
    announce(chain_ran, sender, ran=ran)


def described(error: Exception) -> str:
    """An exception in a line."""
    if isinstance(error, HandlerTimeoutError):
        return "still running after its timeout"
    if isinstance(error, HandlerCancelledError):
        return "CancelledError without having been cancelled"
    return f"{type(error).__name__}: {message_of(error)}"


def record(
    observer: Observer,
    event: Event | PhaseTransition,
    sender: object,
    started: int,
    failure: Exception | None,
    *,
    mocked: bool = False,
    denied: bool = False,
) -> None:
    """Tell whoever listens how a handler run that began at `started` (`perf_counter_ns`) has ended."""
    duration_ns = perf_counter_ns() - started
    status: ExecutionStatus = "mocked" if mocked else "ok"
    if denied:
        status = "denied"
    elif isinstance(failure, HandlerTimeoutError):
        status = "timeout"
    elif failure is not None and not mocked:
        status = "error"
    elif not observer.is_async and observer.timeout is not None and duration_ns > observer.timeout * 1e9:
        status = "timeout"  # nobody could interrupt it; it is told apart from a quiet success
    _announce(observer, event, sender, status, duration_ns, described(failure) if failure is not None else None)


def _announce(
    observer: Observer,
    event: Event | PhaseTransition,
    sender: object,
    status: ExecutionStatus,
    duration_ns: int,
    error: str | None,
) -> None:
    execution = HookExecution(
        hook_id=observer.id,
        hook_type=str(event.hook_type),
        operation_id=event.operation_id,
        status=status,
        duration_ms=duration_ns / 1e6,
        error=error,
        time_unix_nano=time_ns() - duration_ns,
        step_index=getattr(event, "step_index", None),
        tool_call_id=getattr(event, "tool_call_id", None),
        tenant_id=getattr(event, "tenant_id", ""),
    )
    announce(hook_executed, sender, execution=execution)
