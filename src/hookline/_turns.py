"""A hook's turn: whether it may start, how it is run, and what it means when it fails."""

from __future__ import annotations

import asyncio
import math
from time import perf_counter
from typing import Any

from hookline._deadlines import HandlerCancelledError, own_cancellation
from hookline._own_time import NO_ONE
from hookline._passages import FAILED, HookInChain, Passage
from hookline.errors import HookDenied, HookExecutionError, HookReturnError, HookTimeoutError
from hookline.execution import described, refuse_awaitable, report_failure
from hookline.signals import ExecutionStatus

__all__ = ["admits", "after_error", "ask", "fail_closed", "failed", "stopped", "too_late", "too_long"]


async def ask(passage: Passage, hook: HookInChain, *args: Any) -> Any:
    """What a `before`, a `guard` or an `after` says.

    Returns:
        Its return value; `FAILED` if it failed and fails open.

    Raises:
        HookDenied: If it failed and fails closed.
        BaseException: A cancellation.
    """
    if passage.watched and not await admits(passage, hook):
        return FAILED
    if passage.recording:
        passage.started.append(hook)
    clock = passage.clock
    began = 0.0
    if clock is not None:
        began = clock.marks[hook.start] = perf_counter()
        clock.on = hook.index
    error: BaseException | None = None
    value: Any = None
    try:
        value = hook.handler(*args)
        if hook.is_async:
            value = await (value if clock is None or not clock.scoped else clock.bounded(hook.index, value))
        elif value is not None:
            refuse_awaitable(value)
    except BaseException as raised:
        error = raised
    if clock is not None:
        clock.marks[hook.end] = now = perf_counter()
        clock.on = hook.outer
        closer = error is not None or clock.special or now - began > hook.timeout
        if closer and stopped(passage, hook, error):
            return failed(passage, hook, too_long(passage, hook), "timeout")
    return value if error is None else after_error(passage, hook, error)


async def admits(passage: Passage, hook: HookInChain) -> bool:
    """Whether a hook may start. If not, it fails by its policy.

    Raises:
        BaseException: The cancellation, if the run was interrupted.
    """
    if passage.control is not None and passage.control.interrupted:
        await passage.control.stop()
    clock = passage.clock
    if clock is None or clock.budget == math.inf or clock.spent(perf_counter()) < clock.budget:
        return True
    failed(passage, hook, too_long(passage, hook), None)
    return False


def stopped(passage: Passage, hook: HookInChain, error: BaseException | None) -> bool:
    """A hook's turn is over, and needs a closer look; whether it took too long.

    Raises:
        CancelledError: If the hook swallowed a cancellation that was not meant for it.
    """
    clock = passage.clock
    if clock is None:
        return False
    alarm, expired = clock.alarm, clock.expired == hook.index
    elsewhere = alarm is not None and alarm.settle(hook.index)
    over = clock.is_over(hook.index)
    if expired:
        clock.expired = NO_ONE
    if elsewhere and (over or not isinstance(error, asyncio.CancelledError)):
        passage.note(hook, "dropped", "cancelled")
        raise swallowed(passage, error)
    if isinstance(error, asyncio.CancelledError):
        return expired
    return over and (error is None or isinstance(error, Exception))


def swallowed(passage: Passage, error: BaseException | None) -> asyncio.CancelledError:
    """The cancellation that a hook swallowed, itself if it can be found: a cancel scope knows its own by its text."""
    while error is not None:
        if isinstance(error, asyncio.CancelledError):
            return error
        error = error.__context__
    return passage.raised if isinstance(passage.raised, asyncio.CancelledError) else asyncio.CancelledError()


def after_error(passage: Passage, hook: HookInChain, error: BaseException) -> Any:
    """A hook's handler raised: its own failure, or what somebody else did."""
    if hook.kind == "around" and (theirs := from_inside(passage, error)) is not None:
        passage.note(hook, "ok")
        raise theirs
    if isinstance(error, asyncio.CancelledError) and own_cancellation():
        error = HandlerCancelledError("it ended as cancelled although nobody had cancelled it")
    if not isinstance(error, Exception):
        passage.note(hook, "dropped", "cancelled")
        raise error
    return failed(passage, hook, error, "error")


def failed(passage: Passage, hook: HookInChain, error: Exception, status: ExecutionStatus | None) -> Any:
    """A hook has failed: the call is denied or goes on without it, as it was declared."""
    problem = str(error) if isinstance(error, HookTimeoutError | HookReturnError) else described(error)
    if status is not None:
        passage.note(hook, status, problem)
    report_failure(hook.id, f"{hook.kind} {hook.point}", passage.call.operation_id, error)
    if passage.refusal is not None:
        raise passage.refusal
    if not hook.closed:
        return FAILED
    raise fail_closed(passage, hook, error, problem)


def fail_closed(passage: Passage, hook: HookInChain, error: Exception, problem: str) -> HookDenied:
    """The denial of a call because of a hook's failure."""
    cause = HookExecutionError(hook.id, hook.point, hook.kind, problem)
    cause.__cause__ = error
    return passage.deny(hook, f"the hook failed, and it fails closed: {problem}", cause=cause)


def too_long(passage: Passage, hook: HookInChain) -> HookTimeoutError:
    """The failure of a hook that took too long, or that may not start because the others did."""
    clock = passage.clock
    if clock is not None and clock.budget < math.inf and clock.own(hook, perf_counter()) <= hook.timeout:
        return HookTimeoutError(hook.id, hook.point, clock.budget, of_chain=True)
    return HookTimeoutError(hook.id, hook.point, hook.timeout)


def from_inside(passage: Passage, error: BaseException) -> BaseException | None:
    """What the terminal raised, or the denial, if the error is that, or a task group's wrapping of nothing else."""
    if error is passage.raised or error is passage.refusal:
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    theirs = [from_inside(passage, each) for each in error.exceptions]
    return theirs[0] if all(each is not None for each in theirs) else None


def too_late(hook: HookInChain | None) -> HookTimeoutError:
    """What a hook gets that calls `call_next` when its time is over."""
    assert hook is not None
    return HookTimeoutError(hook.id, hook.point, hook.timeout)
