"""How one handler is run: sync or async, within its time, isolated, recorded. The only place that knows.

Dispatcher and chain decide who is called and in which order; everything that a handler can do wrong ends here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
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
from hookline._observers import Observer
from hookline._records import record, report
from hookline.calls import ToolResult
from hookline.events import BeforeToolCall, Event
from hookline.signals import hook_executed

__all__ = [
    "ask",
    "blame",
    "compile_askable",
    "compile_inline",
    "finish_queued",
    "refuse_awaitable",
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
                    refuse_awaitable(outcome)
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
        await finish_asyncio(coroutine, waits_for, timeout, context, alarm)
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
        await bounded(observer.handler(event), timeout, context)
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
    """Await every observer of a tool call in order, in the agent's own task; each may answer with `event.mock`."""
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
                        await handler(event)
                    else:
                        coroutine = handler(event)
                        try:
                            waits_for = coroutine.send(None)
                        except StopIteration:
                            pass
                        else:
                            await _finish_asked(coroutine, waits_for, timeout or hook_timeout)
                except HandlerTimeoutError as error:
                    report(observer, event, error, timeout or hook_timeout)
                except BaseException as error:
                    blame(observer, event, error)
            if state and "answered_by" not in state:
                state["answered_by"] = observer.id
    finally:
        answer: ToolResult | None = state.get("answer") if state else None
        state["sealed"] = True
    return answer


async def _finish_asked(coroutine: Coroutine[Any, Any, Any], waits_for: Any, timeout: float) -> None:
    alarm = Alarm()
    try:
        await finish_asyncio(coroutine, waits_for, timeout, None, alarm)
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
    try:
        if observer.is_async:
            await bounded(observer.handler(event), timeout, None)
        elif (outcome := observer.handler(event)) is not None:
            refuse_awaitable(outcome)
    except Exception as error:
        failure = error
        report(observer, event, error, timeout)
    if hook_executed.receivers and observer.recorded:
        record(observer, event, sender, started, failure, mocked=event.mocked and not mocked)


def _run_sync(observer: Observer, event: Event, sender: object) -> None:
    started = perf_counter_ns()
    failure: Exception | None = None
    try:
        if (outcome := observer.handler(event)) is not None:
            refuse_awaitable(outcome)
    except Exception as error:
        failure = error
        report(observer, event, error)
    if hook_executed.receivers and observer.recorded:
        record(observer, event, sender, started, failure)


def refuse_awaitable(outcome: object) -> None:
    """A sync handler returned something: an awaitable nobody would await is a mistake, anything else is ignored."""
    if inspect.iscoroutine(outcome):
        outcome.close()
    if inspect.isawaitable(outcome):
        raise TypeError(
            "the handler is a plain function, but it returned an awaitable, which was not awaited; "
            "register an `async def` instead"
        )
