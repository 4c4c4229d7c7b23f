"""Ask the observers of a tool call, before it runs, for a mock: the special dispatch of `beforeToolCall`."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from math import inf as _NEVER  # noqa: N812  a global of its own is found faster than an attribute
from time import perf_counter_ns
from typing import Any

from hookline._deadlines import ENDED, Bounded, CoroutineAlarm, HandlerTimeoutError, bounded_asyncio, finish_asyncio
from hookline.calls import DECISIONS, Deny, ToolResult
from hookline.errors import HookUsageError, message_of
from hookline.events import BeforeToolCall, copy_for_shadow
from hookline.execution._handlers import (
    Observer,
    no_decision_error,
    own_failure,
    record,
    record_shadow,
    refuse_awaitable,
    report,
    run_timed,
)
from hookline.signals import hook_executed

__all__ = ["Askable", "ask", "compile_askable"]

Askable = tuple[Callable[[Any], Any], float | None, Observer]
"""A handler, its timeout (0 for the dispatcher's; `None` if it is sync or filtered), and the observer it is from."""

_REFUSALS = (*DECISIONS, str, Mapping, Exception)
"""What denies a tool call when an observer returns it: a decision, or what `event.mock` would take."""


def compile_askable(observer: Observer) -> Askable:
    """Return an observer for `ask`: its handler, and its timeout if nothing has to be checked before it runs."""
    direct = observer.is_async and observer.matches is None and not observer.shadow
    return observer.handler, (observer.timeout or 0.0) if direct else None, observer


async def ask(
    askable: Sequence[Askable], event: BeforeToolCall, bounded: Bounded, hook_timeout: float, sender: object
) -> ToolResult | None:
    """Await every observer of a tool call in order, in the agent's own task; each may answer with `event.mock`.

    An observer that returns a decision, or an answer that it should have given to `mock`, denies the call.
    """
    state = event.__dict__
    if state:
        standing = "standing" in state
        state.clear()
        if standing:
            state["sealed"] = True
    if bounded is not bounded_asyncio or hook_executed.receivers:  # none is stepped by hand
        askable = [(handler, None, observer) for handler, _, observer in askable]
    try:
        for handler, timeout, observer in askable:
            if timeout is None:
                recorded = hook_executed.receivers and observer.recorded
                if observer.shadow:
                    await _ask_in_shadow(observer, event, bounded, hook_timeout, sender)
                elif observer.is_async or observer.matches is not None or recorded:
                    await _ask_one(observer, event, bounded, hook_timeout, sender)
                else:
                    _ask_sync(observer, event)
            else:
                try:
                    if timeout == _NEVER:
                        outcome = await handler(event)
                    else:
                        coroutine, outcome = _call_asked(handler, event), None
                        waits_for = next(coroutine, ENDED)
                        if waits_for is not ENDED:
                            await _finish_asked(coroutine, waits_for, timeout or hook_timeout)
                except BaseException as error:
                    outcome = _report_asked(observer, event, error, timeout or hook_timeout)
                if outcome is not None:
                    _take_outcome(observer, event, outcome)
            if state and "answer" in state and "answered_by" not in state:
                state["answered_by"] = observer.id
    finally:
        answer: ToolResult | None = (state.get("denial") or state.get("answer")) if state else None
        state["sealed"] = True
    return answer


def _report_asked(observer: Observer, event: BeforeToolCall, error: BaseException, timeout: float) -> object:
    """Report the failure of an async observer, inside of `except`.

    Returns:
        What the observer returned, if that is why it failed.
    """
    if isinstance(error, _Refused):
        return error.outcome
    if isinstance(error, HandlerTimeoutError):
        report(observer, event, error, timeout)
    else:
        report(observer, event, own_failure(error))
    return None


def _take_outcome(observer: Observer, event: BeforeToolCall, outcome: object) -> None:
    """Deny a call if an async observer returned what denies it, and report what it should not have returned."""
    try:
        problem: Exception | None = deny_by_return(observer, event, outcome)
    except BaseException as error:
        problem = own_failure(error)
    if problem is not None:
        report(observer, event, problem)


class _Refused(Exception):
    """An async observer of a tool call returned a decision or an answer. It may have returned it too late."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome


@types.coroutine
def _call_asked(handler: Callable[[Any], Any], event: BeforeToolCall) -> Generator[Any, Any, None]:
    """Run an async observer of a tool call, and raise `_Refused` if it returns what denies the call.

    A generator, since `next` tells its end without a `StopIteration`, which costs more than the generator does.
    """
    outcome = yield from handler(event)
    if outcome is not None and isinstance(outcome, _REFUSALS):
        raise _Refused(outcome)


async def _finish_asked(coroutine: Coroutine[Any, Any, None], waits_for: Any, timeout: float) -> None:
    alarm = CoroutineAlarm()
    try:
        await finish_asyncio(coroutine, waits_for, timeout, None, alarm)
    finally:
        alarm.close()


def _ask_sync(observer: Observer, event: BeforeToolCall) -> None:
    try:
        if (outcome := observer.handler(event)) is not None:
            refuse_awaitable(outcome)
            if (refusal := deny_by_return(observer, event, outcome)) is not None:
                report(observer, event, refusal)
    except BaseException as error:
        report(observer, event, own_failure(error))


async def _ask_one(
    observer: Observer, event: BeforeToolCall, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    if observer.matches is not None and not observer.matches(event):
        return
    started, mocked = perf_counter_ns(), event.mocked
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    denied = False

    def check(outcome: object) -> None:
        nonlocal denied
        refuse_awaitable(outcome)
        if (refusal := deny_by_return(observer, event, outcome)) is not None:
            denied = True
            raise refusal

    failure = await run_timed(
        observer.handler, (event,), check, is_async=observer.is_async, timeout=timeout, bounded=bounded
    )
    if failure is not None:
        report(observer, event, failure, math.inf if denied else timeout)
    if hook_executed.receivers and observer.recorded:
        record(observer, event, sender, started, failure, mocked=event.mocked and not mocked, denied=denied)


async def _ask_in_shadow(
    observer: Observer, event: BeforeToolCall, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    """Ask an observer of a shadow bundle about a copy of the event; what it answers is only recorded."""
    copy = copy_for_shadow(event)
    state, started = copy.__dict__, perf_counter_ns()
    if observer.matches is not None and not observer.matches(copy):
        return
    timeout = hook_timeout if observer.timeout is None else observer.timeout

    def check(outcome: object) -> None:
        refuse_awaitable(outcome)
        if (refusal := deny_by_return(observer, copy, outcome)) is not None:
            raise refusal

    failure = await run_timed(
        observer.handler, (copy,), check, is_async=observer.is_async, timeout=timeout, bounded=bounded
    )
    if failure is not None:
        report(observer, event, failure, timeout)
    if not hook_executed.receivers or not observer.recorded:
        return
    if "denial" in state:
        record_shadow(observer, event, sender, started, failure, "denied", state["denial"].content)
    elif "wanted" in state:
        record_shadow(observer, event, sender, started, failure, "mocked", "")
    else:
        record(observer, event, sender, started, failure)


def deny_by_return(observer: Observer, event: BeforeToolCall, outcome: object) -> HookUsageError | None:
    """Deny a tool call because an observer returned a decision or an answer instead of `None`.

    Whoever returns a refusal or an answer there means it, so the tool does not run. The first denial stands.

    Returns:
        What the handler did wrong, to be logged; `None` where the value means nothing.
    """
    if not isinstance(outcome, _REFUSALS):
        return None
    refusal = no_decision_error(outcome)
    state = event.__dict__
    if "denial" not in state:
        reason = outcome.reason if isinstance(outcome, Deny) else message_of(refusal)
        state["denial"] = ToolResult(content=reason, success=False)
        state["denied_by"] = observer.id
    return refusal
