"""Fail a hook that raised, took too long or returned what it may not: closed, so that the call is denied, or open."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

from hookline._deadlines import HandlerCancelledError, own_cancellation
from hookline.errors import (
    HookDenied,
    HookExecutionError,
    HookReturnError,
    HookTimeoutError,
)
from hookline.execution import (
    describe_failure,
    report_failure,
)
from hookline.interceptors._clock import NOT_EXPIRED
from hookline.interceptors._traversal import FAILED, CompiledInterceptor, Traversal
from hookline.signals import ExecutionStatus

__all__ = [
    "after_error",
    "fail",
    "fail_closed",
    "late_call_next_error",
    "ran_too_long",
    "return_error",
    "timeout_error",
]


def ran_too_long(traversal: Traversal, hook: CompiledInterceptor, error: BaseException | None) -> bool:
    """Return whether a hook that has ended took too long.

    Raises:
        CancelledError: If the hook swallowed a cancellation that was not meant for it.
    """
    clock = traversal.clock
    alarm, expired = clock.alarm, clock.expired == hook.index
    elsewhere = alarm is not None and alarm.settle(hook.index)
    over = clock.is_over(hook.index)
    if expired:
        clock.expired = NOT_EXPIRED
    if elsewhere and (over or not isinstance(error, asyncio.CancelledError)):
        traversal.note(hook, "dropped", "cancelled")
        raise original_cancellation(traversal, error)
    if isinstance(error, asyncio.CancelledError):
        return expired
    return over and (error is None or isinstance(error, Exception))


def original_cancellation(traversal: Traversal, error: BaseException | None) -> asyncio.CancelledError:
    """Return the cancellation that a hook swallowed; the very one if possible, as its scope knows it by its text."""
    while error is not None:
        if isinstance(error, asyncio.CancelledError):
            return error
        error = error.__context__
    return traversal.raised if isinstance(traversal.raised, asyncio.CancelledError) else asyncio.CancelledError()


def after_error(traversal: Traversal, hook: CompiledInterceptor, error: BaseException) -> Any:
    """Handle the exception of a handler: its own failure, or an exception that it passed on."""
    if hook.kind == "around" and (theirs := downstream_error(traversal, error)) is not None:
        traversal.note(hook, "ok")
        raise theirs
    if isinstance(error, asyncio.CancelledError) and own_cancellation():
        error = HandlerCancelledError("it raised a cancellation, although nobody had cancelled it")
    if not isinstance(error, Exception):
        traversal.note(hook, "dropped", "cancelled")
        raise error
    return fail(traversal, hook, error, "error")


def fail(traversal: Traversal, hook: CompiledInterceptor, error: Exception, status: ExecutionStatus | None) -> Any:
    """Fail a hook: deny the call, or continue without the hook, by its `on_error`.

    Args:
        traversal: The call.
        hook: The hook.
        error: Its failure.
        status: How its run is recorded; `None` if it has not started.

    Returns:
        `FAILED`.

    Raises:
        HookDenied: If it fails closed, or the call is denied already.
    """
    problem = str(error) if isinstance(error, HookTimeoutError | HookReturnError) else describe_failure(error)
    denies = hook.closed and traversal.refusal is None
    if status is not None:
        reason = failed_closed(problem) if denies else ""
        traversal.note(hook, status, problem, decision="denied" if denies else "", reason=reason)
    if traversal.logged:
        report_failure(hook.id, f"{hook.kind} {hook.point}", traversal.call.operation_id, error)
    if traversal.refusal is not None:
        raise traversal.refusal
    if not hook.closed:
        return FAILED
    raise fail_closed(traversal, hook, error, problem)


def fail_closed(traversal: Traversal, hook: CompiledInterceptor, error: Exception, problem: str) -> HookDenied:
    """Deny the call because of the failure of a hook."""
    cause = HookExecutionError(hook.id, hook.point, hook.kind, problem)
    cause.__cause__ = error
    return traversal.deny(hook, failed_closed(problem), cause=cause)


def failed_closed(problem: str) -> str:
    """Return the reason of a denial by a hook that failed."""
    return f"the hook failed, and it fails closed: {problem}"


def timeout_error(traversal: Traversal, hook: CompiledInterceptor) -> HookTimeoutError:
    """Return the failure of a hook that took too long, or may not start because the others did."""
    clock = traversal.clock
    if clock.limited and clock.own(hook, perf_counter()) <= hook.timeout:
        return HookTimeoutError(hook.id, hook.point, clock.budget, of_chain=True)
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def downstream_error(traversal: Traversal, error: BaseException) -> BaseException | None:
    """Return the terminal's exception or the denial, if the error is that, or a group that holds nothing else."""
    if error is traversal.raised or error is traversal.refusal:
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    theirs = [downstream_error(traversal, each) for each in error.exceptions]
    return theirs[0] if all(each is not None for each in theirs) else None


def late_call_next_error(hook: CompiledInterceptor | None) -> HookTimeoutError:
    """Return the exception for a hook that calls `call_next` when its time is over."""
    assert hook is not None
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def return_error(hook: CompiledInterceptor, problem: str) -> HookReturnError:
    """Return the failure of a hook that returned what it may not."""
    return HookReturnError(hook.id, hook.point, problem)
