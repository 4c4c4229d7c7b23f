"""How one handler is run: sync or async, within its time, isolated, recorded. The only place that knows.

Dispatcher and chain decide who is called and in which order; everything that a handler can do wrong ends here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from math import inf as _NEVER  # noqa: N812  a global of its own is found faster than an attribute
from time import perf_counter_ns
from typing import Any

from hookline._deadline import (
    Alarm,
    Bounded,
    HandlerCancelledError,
    HandlerTimeoutError,
    bounded_asyncio,
    finish_asyncio,
    own_cancellation,
)
from hookline._hook_checks import shown
from hookline._observers import Observer
from hookline._records import record, report
from hookline.calls import DECISIONS, Deny, ToolResult
from hookline.errors import HookUsageError, message_of
from hookline.events import BeforeToolCall, Event
from hookline.signals import hook_executed

__all__ = [
    "ask",
    "blame",
    "compile_askable",
    "compile_inline",
    "finish_queued",
    "refuse_awaitable",
    "refuse_decision",
    "refuse_return",
    "run_queued",
]

Inline = Callable[[Event, object], None]
"""Runs sync observers: `(event, sender of the records) -> None`."""

Askable = tuple[Callable[[Any], Any], float | None, Observer]
"""A handler, its timeout (0 for the dispatcher's; `None` if it is sync or filtered), and the observer it is from."""


def compile_inline(observers: Sequence[Observer]) -> Inline:
    """One callable that runs sync observers in order, each isolated from the agent and from the others."""
    everyone = tuple(observers)
    handlers = tuple(observer.handler for observer in observers)
    owners = {id(observer.handler): observer for observer in observers}

    def run_each(event: Event, sender: object) -> None:
        for observer in everyone:
            if observer.matches is None or observer.matches(event):
                _run_sync(observer, event, sender)

    recorded = any(observer.recorded for observer in everyone)

    def run_plain(event: Event, sender: object) -> None:
        if recorded and hook_executed.receivers:
            run_each(event, sender)
            return
        for handler in handlers:
            try:
                outcome = handler(event)
                if outcome is not None:
                    refuse_return(outcome)
            except Exception as error:
                report(owners[id(handler)], event, error)

    filtered = any(observer.matches is not None for observer in observers)
    return run_each if filtered or len(owners) < len(handlers) else run_plain


def blame(observer: Observer, event: Event, error: BaseException) -> None:
    """Inside of `except`: what a handler's step raised is reported, unless it is not the handler's own failure.

    Raises:
        BaseException: The error, if it is a cancellation from outside or no `Exception`.
    """
    if isinstance(error, asyncio.CancelledError) and own_cancellation():
        report(observer, event, HandlerCancelledError())
    elif isinstance(error, Exception):
        report(observer, event, error)
    else:
        raise error


async def finish_queued(
    observer: Observer,
    event: Event,
    coroutine: Coroutine[Any, Any, Any],
    waits_for: Any,
    context: Context,
    hook_timeout: float,
    alarm: Alarm,
) -> None:
    """asyncio: the rest of an async observer whose first step has suspended on `waits_for`."""
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    try:
        outcome = await finish_asyncio(coroutine, waits_for, timeout, context, alarm)
        if outcome is not None:
            refuse_decision(outcome)
    except Exception as error:
        report(observer, event, error, timeout)


async def run_queued(
    observer: Observer, event: Event, context: Context, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    """Any backend: run an async observer in a lane, in the context of its event's dispatch, and record it."""
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    started = perf_counter_ns()
    failure: Exception | None = None
    try:
        outcome = await bounded(observer.handler(event), timeout, context)
        if outcome is not None:
            refuse_decision(outcome)
    except Exception as error:
        failure = error
        report(observer, event, error, timeout)
    if hook_executed.receivers and observer.recorded:
        record(observer, event, sender, started, failure)


def compile_askable(observer: Observer) -> Askable:
    """How `ask` runs an observer: its handler, and its timeout where nothing stands between the two."""
    direct = observer.is_async and observer.matches is None
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
    stepwise = bounded is bounded_asyncio and not hook_executed.receivers
    try:
        for handler, timeout, observer in askable:
            if timeout is None or not stepwise:
                await _ask_one(observer, event, bounded, hook_timeout, sender)
            else:
                try:
                    if timeout == _NEVER:
                        outcome = await handler(event)
                    else:
                        coroutine = handler(event)
                        try:
                            waits_for = coroutine.send(None)
                        except StopIteration as stop:
                            outcome = stop.value
                        else:
                            outcome = await _finish_asked(coroutine, waits_for, timeout or hook_timeout)
                    if outcome is not None and (refusal := deny_by_return(observer, event, outcome)) is not None:
                        report(observer, event, refusal)
                except HandlerTimeoutError as error:
                    report(observer, event, error, timeout or hook_timeout)
                except BaseException as error:
                    blame(observer, event, error)
            if state and "answer" in state and "answered_by" not in state:
                state["answered_by"] = observer.id
    finally:
        answer: ToolResult | None = (state.get("denial") or state.get("answer")) if state else None
        state["sealed"] = True
    return answer


async def _finish_asked(coroutine: Coroutine[Any, Any, Any], waits_for: Any, timeout: float) -> object:
    alarm = Alarm()
    try:
        return await finish_asyncio(coroutine, waits_for, timeout, None, alarm)
    finally:
        alarm.close()


async def _ask_one(
    observer: Observer, event: BeforeToolCall, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    if observer.matches is not None and not observer.matches(event):
        return
    started, mocked = perf_counter_ns(), event.mocked
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    failure: Exception | None = None
    denied = False
    try:
        if observer.is_async:
            outcome = await bounded(observer.handler(event), timeout, None)
        elif (outcome := observer.handler(event)) is not None:
            refuse_awaitable(outcome)
        if outcome is not None and (failure := deny_by_return(observer, event, outcome)) is not None:
            denied = True
            report(observer, event, failure)
    except Exception as error:
        failure = error
        report(observer, event, error, timeout)
    if hook_executed.receivers and observer.recorded:
        record(observer, event, sender, started, failure, mocked=event.mocked and not mocked, denied=denied)


def deny_by_return(observer: Observer, event: BeforeToolCall, outcome: object) -> HookUsageError | None:
    """Deny a tool call because an observer returned a decision or an answer instead of `None`.

    Whoever returns a refusal or an answer there means it, so the tool does not run. The first denial stands.

    Returns:
        What the handler did wrong, to be logged; `None` where the value means nothing.
    """
    if not isinstance(outcome, _REFUSALS):
        return None
    refusal = _decided_nothing(outcome)
    state = event.__dict__
    if "denial" not in state:
        reason = outcome.reason if isinstance(outcome, Deny) else message_of(refusal)
        state["denial"] = ToolResult(content=reason, success=False)
        state["denied_by"] = observer.id
    return refusal


def _run_sync(observer: Observer, event: Event, sender: object) -> None:
    started = perf_counter_ns()
    failure: Exception | None = None
    try:
        if (outcome := observer.handler(event)) is not None:
            refuse_return(outcome)
    except Exception as error:
        failure = error
        report(observer, event, error)
    if hook_executed.receivers and observer.recorded:
        record(observer, event, sender, started, failure)


_REFUSALS = (*DECISIONS, str, Mapping, Exception)
"""What denies a tool call when an observer returns it: a decision, or what `event.mock` would take."""


def refuse_return(outcome: object) -> None:
    """Refuse a value other than `None` that a sync observer returned, where it means something.

    Raises:
        HookUsageError: If it is a decision.
        TypeError: If it is an awaitable, which nobody would await.
    """
    refuse_awaitable(outcome)
    refuse_decision(outcome)


def refuse_decision(outcome: object) -> None:
    """Refuse a decision that an observer, a phase hook or a hook with `wait=False` returned.

    Raises:
        HookUsageError: If it is one. Every other value means nothing.
    """
    if isinstance(outcome, DECISIONS):
        raise _decided_nothing(outcome)


def _decided_nothing(outcome: object) -> HookUsageError:
    return HookUsageError(
        f"this hook decides nothing by what it returns, but it returned {shown(outcome)}. To refuse a tool call, or to "
        "have a person asked, register the handler with hooks.guard(ToolCall); to answer in the tool's place, call "
        "event.mock(...) on a BeforeToolCall."
    )


def refuse_awaitable(outcome: object) -> None:
    """Refuse an awaitable that a sync handler returned, since nobody would await it.

    Raises:
        TypeError: If it is one.
    """
    if inspect.iscoroutine(outcome):
        outcome.close()
    if inspect.isawaitable(outcome):
        raise TypeError(
            "the handler is a plain function, but it returned an awaitable, which was not awaited; "
            "register an `async def` instead"
        )
