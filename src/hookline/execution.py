"""How one handler is run: sync or async, within its time, isolated, recorded. The only place that knows.

Dispatcher and chain decide who is called and in which order; everything that a handler can do wrong ends here.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from time import perf_counter_ns
from typing import Any

import msgspec

from hookline._deadline import Bounded, HandlerCancelledError, HandlerTimeoutError
from hookline.errors import message_of
from hookline.events import BeforeToolCall, Event
from hookline.hooks import Hook, tool_matcher
from hookline.signals import ExecutionStatus, HookExecution, announce, hook_executed

__all__ = ["Observer", "ask", "compile_inline", "compile_observer", "record_dropped", "run_queued"]

logger = logging.getLogger("hookline")

Inline = Callable[[Event, object], None]
"""Runs sync observers: `(event, sender of the records) -> None`."""


class Observer(msgspec.Struct, frozen=True, kw_only=True):
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
    plain = tuple((observer.handler, observer) for observer in observers if observer.matches is None)
    everyone = tuple(observers)

    def run_plain(event: Event, sender: object) -> None:
        if hook_executed.receivers:
            run_each(event, sender)
            return
        for handler, observer in plain:
            try:
                outcome = handler(event)
                if outcome is not None:
                    _returned(outcome)
            except Exception as error:
                _report(observer, event, error)

    def run_each(event: Event, sender: object) -> None:
        for observer in everyone:
            if observer.matches is None or observer.matches(event):
                _run_sync(observer, event, sender)

    return run_plain if len(plain) == len(everyone) else run_each


async def run_queued(
    observer: Observer, event: Event, context: Context, *, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    """Run an async observer in a lane, in the context of its event's dispatch."""
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    if not hook_executed.receivers:
        try:
            await bounded(observer.handler(event), timeout, context)
        except Exception as error:
            _report(observer, event, error, timeout)
        return
    started = perf_counter_ns()
    failure: Exception | None = None
    try:
        await bounded(observer.handler(event), timeout, context)
    except Exception as error:
        failure = error
        _report(observer, event, error, timeout)
    _record(observer, event, sender, started, failure)


async def ask(
    observers: Sequence[Observer], event: BeforeToolCall, *, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    """Await every observer of a tool call in order, in the agent's own task; each may answer with `event.mock`."""
    state = event.__dict__
    for observer in observers:
        if observer.matches is not None and not observer.matches(event):
            continue
        recorded = bool(hook_executed.receivers)
        if recorded:
            started, mocked = perf_counter_ns(), "answer" in state
        failure: Exception | None = None
        try:
            if not observer.is_async:
                if (outcome := observer.handler(event)) is not None:
                    _returned(outcome)
            else:
                timeout = hook_timeout if observer.timeout is None else observer.timeout
                if timeout == math.inf:
                    await observer.handler(event)
                else:
                    await bounded(observer.handler(event), timeout, None)
        except Exception as error:
            failure = error
            _report(observer, event, error, hook_timeout if observer.timeout is None else observer.timeout)
        if "answer" in state and "answered_by" not in state:
            state["answered_by"] = observer.id
        if recorded:
            _record(observer, event, sender, started, failure, mocked="answer" in state and not mocked)


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
