"""How one handler is run: sync or async, within its time, isolated, recorded. The only place that knows.

Dispatcher and chain decide who is called and in which order; everything that a handler can do wrong ends here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from time import perf_counter_ns
from typing import Any

import msgspec

from hookline._deadline import (
    Bounded,
    HandlerCancelledError,
    HandlerTimeoutError,
    bounded_asyncio,
    finish_asyncio,
    raise_unless_cancelled,
)
from hookline.calls import ToolResult
from hookline.errors import message_of
from hookline.events import BeforeToolCall, Event
from hookline.hooks import Hook, tool_matcher
from hookline.signals import ExecutionStatus, HookExecution, announce, hook_executed

__all__ = [
    "Observer",
    "ask",
    "begin_queued",
    "compile_askable",
    "compile_inline",
    "compile_observer",
    "finish_queued",
    "record_dropped",
    "run_queued",
]

logger = logging.getLogger("hookline")

Inline = Callable[[Event, object], None]
"""Runs sync observers: `(event, sender of the records) -> None`."""

Askable = tuple[Callable[[Any], Any], float | None, "Observer"]
"""A handler, its timeout (0 for the dispatcher's; `None` if it is sync or filtered), and the observer it is from."""


Begun = tuple["Observer", Coroutine[Any, Any, Any], Any]
"""An async observer that has suspended: itself, its coroutine, and what that waits for."""


class Observer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A hook as the mechanism runs it.

    Attributes:
        id: The hook's id.
        handler: For an async one, a function that surely returns a coroutine.
        is_async: Decided once, when the hook is registered.
        timeout: Seconds; `None` for the dispatcher's.
        matches: Whether an event is for this hook; `None` if every one is.
    """

    id: str
    handler: Callable[[Any], Any]
    is_async: bool
    timeout: float | None = None
    matches: Callable[[Any], object] | None = None


def compile_observer(hook: Hook, tenant_id: str = "") -> Observer:
    """Decide everything about a hook that can be decided before an event comes."""
    handler = hook.handler
    assert handler is not None
    is_async = True
    if inspect.iscoroutinefunction(handler):
        pass
    elif inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        handler = handler.__call__
    elif inspect.iscoroutinefunction(inspect.unwrap(handler)):
        handler = _awaiting(handler)
    else:
        is_async = False
    return Observer(
        id=hook.id,
        handler=handler,
        is_async=is_async,
        timeout=hook.timeout,
        matches=_matcher(hook.tool, tenant_id),
    )


def compile_inline(observers: Sequence[Observer]) -> Inline:
    """One callable that runs sync observers in order, each isolated from the agent and from the others."""
    everyone = tuple(observers)
    handlers = tuple(observer.handler for observer in observers)
    owners = {id(observer.handler): observer for observer in observers}

    def run_each(event: Event, sender: object) -> None:
        for observer in everyone:
            if observer.matches is None or observer.matches(event):
                _run_sync(observer, event, sender)

    def run_plain(event: Event, sender: object) -> None:
        if hook_executed.receivers:
            run_each(event, sender)
            return
        for handler in handlers:
            try:
                outcome = handler(event)
                if outcome is not None:
                    _returned(outcome)
            except Exception as error:
                _report(owners[id(handler)], event, error)

    filtered = any(observer.matches is not None for observer in observers)
    return run_each if filtered or len(owners) < len(handlers) else run_plain


def begin_queued(observers: Sequence[Observer], event: Event, context: Context) -> Begun | None:
    """asyncio: run async observers in turn until one suspends; most end with their first step.

    Returns:
        The one that suspended, to be brought to its end with `finish_queued`, or `None` if all have ended.
    """
    for observer in observers:
        try:
            coroutine = observer.handler(event)
            return observer, coroutine, context.run(coroutine.send, None)
        except StopIteration:
            pass
        except asyncio.CancelledError:
            _raise_or_report(observer, event)
        except Exception as error:
            _report(observer, event, error)
    return None


async def finish_queued(begun: Begun, event: Event, context: Context, hook_timeout: float) -> None:
    """asyncio: the rest of an async observer that suspended."""
    observer, coroutine, waits_for = begun
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    try:
        await finish_asyncio(coroutine, waits_for, timeout, context)
    except Exception as error:
        _report(observer, event, error, timeout)


def _raise_or_report(observer: Observer, event: Event) -> None:
    """Inside of `except CancelledError`: a handler's own one is its failure, anybody else's goes on."""
    try:
        raise_unless_cancelled()
    except HandlerCancelledError as error:
        _report(observer, event, error)
    else:
        raise  # noqa: PLE0704


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
        _report(observer, event, error, timeout)
    if hook_executed.receivers:
        _record(observer, event, sender, started, failure)


def compile_askable(observer: Observer) -> Askable:
    """How `ask` runs an observer: its handler, and its timeout where nothing stands between the two."""
    direct = observer.is_async and observer.matches is None
    return observer.handler, (observer.timeout or 0.0) if direct else None, observer


async def ask(
    askable: Sequence[Askable], event: BeforeToolCall, bounded: Bounded, hook_timeout: float, sender: object
) -> ToolResult | None:
    """Await every observer of a tool call in order, in the agent's own task; each may answer with `event.mock`."""
    state = event.__dict__
    state.clear()
    stepwise = bounded is bounded_asyncio and not hook_executed.receivers
    for handler, timeout, observer in askable:
        if timeout is None or not stepwise:
            await _ask_one(observer, event, bounded, hook_timeout, sender)
        else:
            try:
                if timeout == math.inf:
                    await handler(event)
                else:
                    coroutine = handler(event)
                    try:
                        waits_for = coroutine.send(None)
                    except StopIteration:
                        pass
                    else:
                        await finish_asyncio(coroutine, waits_for, timeout or hook_timeout, None)
            except asyncio.CancelledError:
                _raise_or_report(observer, event)
            except Exception as error:
                _report(observer, event, error, timeout or hook_timeout)
        if state and "answered_by" not in state:
            state["answered_by"] = observer.id
    answer = state.get("answer")
    state["sealed"] = True
    return answer


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
            _returned(outcome)
    except Exception as error:
        failure = error
        _report(observer, event, error, timeout)
    if hook_executed.receivers:
        _record(observer, event, sender, started, failure, mocked=event.mocked and not mocked)


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
            _announce(observer, event, sender, "dropped", 0.0, why)


def _awaiting(handler: Callable[[Any], Any]) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    async def adapted(event: Any) -> None:
        outcome = handler(event)
        if inspect.isawaitable(outcome):
            await outcome

    return adapted


def _matcher(tool: str | None, tenant_id: str) -> Callable[[Any], object] | None:
    wanted = tool_matcher(tool)
    if wanted is None and not tenant_id:
        return None

    def matches(event: Any) -> bool:
        if tenant_id and event.tenant_id != tenant_id:
            return False
        return wanted is None or bool(wanted(f"{event.identifier}/{event.api_name}"))

    return matches


def _run_sync(observer: Observer, event: Event, sender: object) -> None:
    started = perf_counter_ns()
    failure: Exception | None = None
    try:
        if (outcome := observer.handler(event)) is not None:
            _returned(outcome)
    except Exception as error:
        failure = error
        _report(observer, event, error)
    if hook_executed.receivers:
        _record(observer, event, sender, started, failure)


def _returned(outcome: object) -> None:
    """A sync handler returned something: an awaitable nobody would await is a mistake, anything else is ignored."""
    if inspect.iscoroutine(outcome):
        outcome.close()
    if inspect.isawaitable(outcome):
        raise TypeError(
            "the handler is a plain function, but it returned an awaitable, which was not awaited; "
            "register an `async def` instead"
        )


def _report(observer: Observer, event: Event, error: Exception, timeout: float = math.inf) -> None:
    if isinstance(error, HandlerTimeoutError):
        logger.error(
            "Hook %r on %s of operation %s was cancelled: it was still running after its timeout of %g s",
            observer.id,
            event.hook_type,
            event.operation_id,
            timeout,
        )
        return
    logger.error(
        "Hook %r on %s of operation %s raised %s", observer.id, event.hook_type, event.operation_id, _described(error),
        exc_info=error,
    )


def _described(error: Exception) -> str:
    if isinstance(error, HandlerCancelledError):
        return "CancelledError without having been cancelled"
    return f"{type(error).__name__}: {message_of(error)}"


def _record(
    observer: Observer, event: Event, sender: object, started: int, failure: Exception | None, *, mocked: bool = False
) -> None:
    duration_ms = (perf_counter_ns() - started) / 1e6
    status: ExecutionStatus = "mocked" if mocked else "ok"
    if isinstance(failure, HandlerTimeoutError):
        status = "timeout"
    elif failure is not None and not mocked:
        status = "error"
    elif not observer.is_async and observer.timeout is not None and duration_ms > observer.timeout * 1e3:
        status = "timeout"  # nobody could interrupt it; it is told apart from a quiet success
    _announce(observer, event, sender, status, duration_ms, _described(failure) if failure is not None else None)


def _announce(
    observer: Observer, event: Event, sender: object, status: ExecutionStatus, duration_ms: float, error: str | None
) -> None:
    execution = HookExecution(
        hook_id=observer.id,
        hook_type=str(event.hook_type),
        operation_id=event.operation_id,
        status=status,
        duration_ms=duration_ms,
        error=error,
    )
    announce(hook_executed, sender, execution=execution)
