"""Run one handler: sync or async, within its timeout, isolated from the agent, and recorded.

Dispatcher and chain decide who is called and in which order. What interceptors do wrong ends in `interceptors`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import traceback
import types
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import cache
from time import perf_counter, perf_counter_ns, time_ns
from typing import TYPE_CHECKING, Any, cast

import msgspec

from hookline._checks import is_plain_function, quote, tool_matcher
from hookline._deadlines import (
    Bounded,
    CoroutineAlarm,
    HandlerCancelledError,
    HandlerTimeoutError,
    bounded_for_this_backend,
    finish_asyncio,
    own_cancellation,
)
from hookline._phase import PhaseTransition
from hookline.calls import DECISIONS, Denial
from hookline.errors import DeliveryError, HookUsageError, message_of
from hookline.events import TOOL_EVENTS, Event
from hookline.hooks import Hook
from hookline.signals import ChainRun, ExecutionStatus, HookDecision, HookExecution, announce, chain_ran, hook_executed

if TYPE_CHECKING:
    from hookline.redaction import Redacting

__all__ = [
    "Observer",
    "announce_chain",
    "announce_execution",
    "awaiting",
    "compile_inline",
    "compile_observer",
    "describe_failure",
    "finish_queued",
    "is_async_handler",
    "logger",
    "matcher",
    "no_decision_error",
    "own_failure",
    "record",
    "record_dropped",
    "redact",
    "refuse_awaitable",
    "refuse_decision",
    "refuse_return",
    "report",
    "report_at",
    "report_failure",
    "run_queued",
    "run_timed",
    "tool_of",
]

logger = logging.getLogger("hookline")


class Observer(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A compiled observer hook, as the dispatcher runs it.

    Attributes:
        id: The hook's id.
        handler: For an async one, a function that surely returns a coroutine.
        is_async: Decided once, when the hook is registered.
        timeout: Seconds; `None` for the dispatcher's.
        matches: Whether an event is for this hook; `None` if every one is.
        recorded: Whether its runs are announced as `HookExecution`s.
        announces: Whether its handler announces its runs that end, and knows more about them than the dispatcher.
        shadow: Whether nothing that it does answers or denies a tool call.
        revision: The revision of the stored definition that made it; 0 for any other hook.
        committed: Whether it hears events of a durable run after their commit.
    """

    id: str
    handler: Callable[[Any], Any]
    is_async: bool
    timeout: float | None = None
    matches: Callable[[Any], object] | None = None
    recorded: bool = True
    announces: bool = False
    shadow: bool = False
    revision: int = 0
    committed: bool = False


def compile_observer(hook: Hook, tenant_id: str = "", *, recorded: bool = True, shadow: bool = False) -> Observer:
    """Compile an observer: decide everything that can be decided before an event comes."""
    handler = cast("Callable[[Any], Any]", hook.handler)
    is_async = is_async_handler(handler)
    return Observer(
        id=hook.id,
        handler=awaiting(handler) if is_async else handler,
        is_async=is_async,
        timeout=hook.timeout,
        matches=matcher(hook.tool, tenant_id),
        recorded=recorded,
        shadow=shadow,
        revision=hook.revision,
        committed=hook.heard == "committed",
    )


def is_async_handler(handler: Callable[..., object]) -> bool:
    """Whether a handler is async, seen through partials, decorators and callable objects."""
    if is_plain_function(handler):
        return bool(handler.__code__.co_flags & inspect.CO_COROUTINE)
    inner: Any = handler
    while not inspect.iscoroutinefunction(inner):
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        else:
            return inspect.iscoroutinefunction(type(inner).__call__)
    return True


def awaiting(handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Wrap an async handler in a function that always returns a coroutine of Python's own."""
    inner = handler.func if isinstance(handler, functools.partial) else handler
    inner = getattr(inner, "__func__", inner)  # the function of a method
    # Others only say that they are async, such as functions that were compiled by Cython.
    if isinstance(inner, types.FunctionType) and inner.__code__.co_flags & inspect.CO_COROUTINE:
        return handler

    async def adapted(*args: Any) -> Any:
        outcome = handler(*args)
        return await outcome if inspect.isawaitable(outcome) else outcome

    return adapted


def matcher(tool: str | None, tenant_id: str) -> Callable[[Any], object] | None:
    """Return a test on an event or a call: whether the tenant is that one, and the tool matches the glob."""
    wanted = tool_matcher(tool)
    if wanted is None and not tenant_id:
        return None

    def matches(event: Any) -> bool:
        if tenant_id and event.tenant_id != tenant_id:
            return False
        return wanted is None or bool(wanted(f"{event.toolset}/{event.tool_name}"))

    return matches


def record_dropped(observers: Sequence[Observer], event: Event, sender: object, why: str) -> None:
    """Log and record that an event was dropped before observers got it."""
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
    """Log the failure of an observer."""
    report_at(f"{event.hook_type} of operation {event.operation_id}", observer, error, timeout)


def report_at(place: str, observer: Observer, error: Exception, timeout: float) -> None:
    """Log the failure of an observer or a phase hook.

    Args:
        place: The event or the move for which it ran, in words.
        observer: The hook.
        error: Its failure.
        timeout: Seconds that it had.
    """
    if isinstance(error, HandlerTimeoutError):
        logger.error(
            "Hook %r on %s was cancelled: it was still running after its timeout of %g s", observer.id, place, timeout
        )
    else:
        log_error("Hook %r on %s raised %s", observer.id, place, error=error)


def report_failure(hook_id: str, point: str, operation_id: str, error: Exception) -> None:
    """Log the failure of an interceptor."""
    log_error("Hook %r on %s of operation %s failed: %s", hook_id, point, operation_id, error=error)


def log_error(message: str, *args: object, error: Exception) -> None:
    """Log an exception of a handler with its traceback, without the secrets that its text may quote from a call.

    Args:
        message: The line, whose last `%s` is what was raised.
        args: What comes before that.
        error: What was raised.
    """
    if not logger.isEnabledFor(logging.ERROR):
        return
    told, trace = describe_failure(error), _trace_of(error)
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
    from hookline.redaction import Redaction  # its patterns take a while to compile, and most runs need none

    return Redaction()


def _trace_of(error: Exception) -> Exception | None:
    """Return the exception whose traceback to log; `None` for a failed delivery, whose traceback is only our code."""
    return None if isinstance(error, DeliveryError) else error


def announce_execution(execution: HookExecution, sender: object) -> None:
    """Announce the record of a hook's run to the receivers of `hook_executed`."""
    if hook_executed.receivers:
        announce(hook_executed, sender, execution=execution)


def announce_chain(
    call: Any, executions: list[HookExecution], denied: Denial | None, began: float, sender: object
) -> None:
    """Announce the record of a call's way through its interceptors.

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
        agent_id=call.agent_id,
        tool=tool_of(call),
    )
    announce(chain_ran, sender, ran=ran)


def tool_of(about: object) -> str:
    """Return toolset and name of the tool that a call or an event is about, `agent/` and the sub-agent, or `""`."""
    toolset = getattr(about, "toolset", None)
    if toolset is not None:
        return f"{toolset}/{about.tool_name}"  # type: ignore[attr-defined]
    callee_id = getattr(about, "callee_id", None)
    return "" if callee_id is None else f"agent/{callee_id}"


def describe_failure(error: Exception) -> str:
    """Return the failure of a handler in one line."""
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
    """Announce a handler run that began at `started` (`perf_counter_ns`) and ended now."""
    duration_ns = perf_counter_ns() - started
    status: ExecutionStatus = "mocked" if mocked else "ok"
    if denied:
        status = "denied"
    elif failure is not None and isinstance(failure, HandlerTimeoutError):
        status = "timeout"
    elif failure is not None and not mocked:
        status = "error"
    elif observer.timeout is not None and not observer.is_async and duration_ns > observer.timeout * 1e9:
        status = "timeout"  # nobody could interrupt it; it is told apart from a quiet success
    _announce(observer, event, sender, status, duration_ns, describe_failure(failure) if failure is not None else None)


def record_shadow(
    observer: Observer,
    event: Event,
    sender: object,
    started: int,
    failure: Exception | None,
    decision: HookDecision,
    reason: str,
) -> None:
    """Announce a run of an observer of a shadow bundle that would have answered or denied a tool call."""
    error = describe_failure(failure) if failure is not None else None
    _announce(observer, event, sender, "shadow", perf_counter_ns() - started, error, decision=decision, reason=reason)


def _announce(
    observer: Observer,
    event: Event | PhaseTransition,
    sender: object,
    status: ExecutionStatus,
    duration_ns: int,
    error: str | None,
    *,
    decision: HookDecision = "",
    reason: str = "",
) -> None:
    step_index: int | None
    tool_call_id: str | None
    if event.__class__ in TOOL_EVENTS:  # mostly, and an attribute takes a fifth of a `getattr`
        about: Any = event
        step_index, tool_call_id, tool = about.step_index, about.tool_call_id, f"{about.toolset}/{about.tool_name}"
    else:
        step_index, tool_call_id = getattr(event, "step_index", None), getattr(event, "tool_call_id", None)
        tool = tool_of(event)
    execution = HookExecution(
        hook_id=observer.id,
        hook_type=str(event.hook_type),
        operation_id=event.operation_id,
        status=status,
        duration_ms=duration_ns / 1e6,
        error=error,
        time_unix_nano=time_ns() - duration_ns,
        step_index=step_index,
        tool_call_id=tool_call_id,
        tenant_id=getattr(event, "tenant_id", ""),
        agent_id=event.agent_id,
        tool=tool,
        decision=decision,
        reason=reason,
        revision=observer.revision,
    )
    announce(hook_executed, sender, execution=execution)


Inline = Callable[[Event, object], None]
"""Runs sync observers: `(event, sender of the records) -> None`."""


def compile_inline(observers: Sequence[Observer]) -> Inline:
    """Compile sync observers to one callable that runs them in order, each isolated from the agent and the others."""
    everyone = tuple(observers)
    if len(everyone) == 1:
        return functools.partial(run_sync, everyone[0])
    handlers = tuple(observer.handler for observer in observers)
    owners = {id(observer.handler): observer for observer in observers}

    def run_each(event: Event, sender: object) -> None:
        for observer in everyone:
            run_sync(observer, event, sender)

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


def own_failure(error: BaseException) -> Exception:
    """Return the failure of a handler that raised, to be called inside of `except`.

    Raises:
        BaseException: The error, if it is a cancellation from outside or no `Exception`.
    """
    if isinstance(error, asyncio.CancelledError) and own_cancellation():
        return HandlerCancelledError()
    if isinstance(error, Exception):
        return error
    raise error


async def run_timed(
    handler: Callable[..., Any],
    args: tuple[Any, ...],
    check: Callable[[Any], object],
    *,
    is_async: bool,
    timeout: float,
    bounded: Bounded | None = None,
    context: Context | None = None,
) -> Exception | None:
    """Run a handler, within its time if it is async.

    Args:
        handler: The handler; an async one is a function that always returns a coroutine.
        args: Its arguments.
        check: Raises for a return value, other than `None`, that the handler may not return.
        is_async: Whether the handler is async.
        timeout: Seconds that an async one may take.
        bounded: Awaits within a time on the present backend; found out unless given.
        context: In which an async one runs; that of the caller unless given.

    Returns:
        Its failure; `None` if it ended well.

    Raises:
        BaseException: A cancellation from outside, or what is no `Exception`.
    """
    try:
        if is_async:
            outcome = await (bounded or bounded_for_this_backend())(handler(*args), timeout, context)
        else:
            outcome = handler(*args)
        if outcome is not None:
            check(outcome)
    except BaseException as error:
        return own_failure(error)
    return None


async def finish_queued(
    observer: Observer,
    event: Event,
    coroutine: Coroutine[Any, Any, None],
    waits_for: Any,
    context: Context,
    hook_timeout: float,
    alarm: CoroutineAlarm,
) -> None:
    """Finish the call of an async observer on asyncio, whose first step has suspended on `waits_for`."""
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    try:
        await finish_asyncio(coroutine, waits_for, timeout, context, alarm)
    except Exception as error:
        report(observer, event, error, timeout)


async def run_queued(
    observer: Observer, event: Event, context: Context, bounded: Bounded, hook_timeout: float, sender: object
) -> None:
    """Run an async observer in a lane, in the context of its event's dispatch, and record it."""
    timeout = hook_timeout if observer.timeout is None else observer.timeout
    started = perf_counter_ns()
    failure = await run_timed(
        observer.handler, (event,), refuse_decision, is_async=True, timeout=timeout, bounded=bounded, context=context
    )
    if failure is not None:
        report(observer, event, failure, timeout)
    if hook_executed.receivers and observer.recorded and not observer.announces:
        record(observer, event, sender, started, failure)


def run_sync(observer: Observer, event: Event, sender: object) -> None:
    """Run a plain observer if the event is for it, report its failure, and record it."""
    if observer.matches is not None and not observer.matches(event):
        return
    started = perf_counter_ns() if observer.recorded and hook_executed.receivers else 0
    failure: Exception | None = None
    try:
        if (outcome := observer.handler(event)) is not None:
            refuse_return(outcome)
    except Exception as error:
        failure = error
        report(observer, event, error)
    if started:
        record(observer, event, sender, started, failure)


def refuse_return(outcome: object) -> None:
    """Refuse a value other than `None` that a sync observer returned, where it means something.

    Raises:
        HookUsageError: If it is a decision.
        TypeError: If it is an awaitable, which would not be awaited.
    """
    refuse_awaitable(outcome)
    refuse_decision(outcome)


def refuse_decision(outcome: object) -> None:
    """Refuse a decision that an observer, a phase hook or a hook with `wait=False` returned.

    Raises:
        HookUsageError: If it is one. Every other value means nothing.
    """
    if isinstance(outcome, DECISIONS):
        raise no_decision_error(outcome)


def no_decision_error(outcome: object) -> HookUsageError:
    """Return the error of a hook that returned a decision where only events are observed."""
    return HookUsageError(
        f"the return value of this hook has no effect, but it returned {quote(outcome)}. To deny a tool call or ask a "
        "person, use hooks.guard(ToolCall). To answer instead of the tool, call event.mock(...) on a BeforeToolCall."
    )


def refuse_awaitable(outcome: object) -> None:
    """Refuse an awaitable that a sync handler returned, since it would not be awaited.

    Raises:
        TypeError: If it is one.
    """
    if inspect.iscoroutine(outcome):
        outcome.close()
    if inspect.isawaitable(outcome):
        raise TypeError(
            "the handler is a plain function, but it returned an awaitable, which was not awaited; use `async def`"
        )
