"""Run a hookline coroutine step by step inside a framework's own code: between two callbacks, or in a generator.

Both ways step the coroutine in the task of the framework, so that it sees the context variables that hooks set, such as
the present span, and no other task has to wake up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar, cast

__all__ = ["GeneratorBridge", "SteppedCall", "emit"]

T = TypeVar("T")


@coroutine
def _suspend(marker: object) -> Generator[object, Any, Any]:
    """Suspend the running coroutine up to the nearest `_run_until`, which returns the marker."""
    return (yield marker)


@coroutine
def _run_until(
    work: Coroutine[Any, Any, Any],
    marker: type,
    *,
    value: Any = None,
    error: BaseException | None = None,
    context: Context | None = None,
) -> Generator[object, Any, tuple[Any, bool]]:
    """Run a coroutine in the present task until it suspends with a marker, or ends.

    Args:
        work: The coroutine.
        marker: The class of marker to stop at; on anything else that the coroutine yields, the event loop waits.
        value: What the coroutine is resumed with.
        error: What is raised inside it instead.
        context: The context variables that it reads and sets; those of the caller unless given.

    Returns:
        The marker or the coroutine's result, and whether the coroutine has ended.
    """
    run: Any = context.run if context is not None else None
    send: Callable[[Any], object] = work.send if run is None else partial(run, work.send)
    throw: Callable[[BaseException], object] = work.throw if run is None else partial(run, work.throw)
    try:
        found = send(value) if error is None else throw(error)
        while not isinstance(found, marker):
            try:
                answer = yield found
            except BaseException as raised:
                found = throw(raised)
            else:
                found = send(answer)
    except StopIteration as stop:
        return stop.value, True
    return found, False


class SteppedCall:
    """A call whose hooks run in two steps, because the framework makes the call between two of its callbacks.

    The first callback runs the coroutine up to `work`, where it is suspended while the framework makes the call; the
    second callback resumes it with the outcome.

    Args:
        open_calls: The calls of the whole run that are suspended; this one adds and removes itself.

    Attributes:
        given: The arguments, messages or instruction that hooks left for the call.
        result: The coroutine's result, once it has returned.
    """

    def __init__(self, open_calls: set[SteppedCall]) -> None:
        self._open_calls = open_calls
        self._finished = False
        self.given: Any = None
        self.result: Any = None

    async def work(self, given: Any, *_: object) -> Any:
        """Suspend the coroutine while the framework makes the call; pass this as the work of a hooked call.

        A chain of hooks runs its work at most once, so this suspends once.

        Args:
            given: What hooks left for the call.

        Returns:
            The value that `end` was called with.
        """
        self.given = given
        return await _suspend(self)

    async def begin(self, hooked_call: Coroutine[Any, Any, Any]) -> bool:
        """Run the coroutine up to `work`.

        Args:
            hooked_call: Runs the hooks around `work`.

        Returns:
            Whether the framework should make the call. If not, hooks answered or denied it, and `result` is set.
        """
        self._hooked_call = hooked_call
        self.result, self._finished = await _run_until(hooked_call, SteppedCall)
        if not self._finished:
            self._open_calls.add(self)
        return not self._finished

    async def end(self, value: Any = None, error: BaseException | None = None) -> Any:
        """Resume the coroutine with the outcome of the call and run it to its end.

        Args:
            value: What the framework's call returned.
            error: What it raised instead.

        Returns:
            The coroutine's result; `None` if the call was cancelled.
        """
        self._open_calls.discard(self)
        try:
            if not self._finished:
                self._finished = True
                self.result, _ = await _run_until(self._hooked_call, SteppedCall, value=value, error=error)
        except asyncio.CancelledError:
            if not isinstance(error, asyncio.CancelledError):
                raise
            return None
        return self.result

    async def fail(self, error: BaseException) -> Any:
        """Resume the coroutine with the error that the framework's call raised.

        Returns:
            The coroutine's result; `None` if it raised, so that the framework raises its own error.
        """
        try:
            return await self.end(error=error)
        except Exception:
            return None


@coroutine
def emit(value: Any) -> Generator[Any, Any, Any]:
    """Make the `GeneratorBridge` around the running coroutine yield a value.

    Args:
        value: What the async generator yields next.

    Returns:
        The outcome passed to `GeneratorBridge.end`; `None` if the consumer just asked for the next value.
    """
    return (yield _Emitted(value))


class GeneratorBridge(Generic[T]):
    """Run a coroutine as an async iterator: iterating yields the values that the coroutine emits.

    The coroutine runs in the task that asks for the next value.

    Args:
        work: The coroutine; it calls `emit`.
        context: The context variables that it reads and sets; those of the consumer unless given.

    Attributes:
        result: What the coroutine returned, once iteration is over.
    """

    def __init__(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> None:
        self.work = work
        self.result = cast(T, None)
        self._context = context
        self._finished = False
        self._outcome: Any = None
        self._error: BaseException | None = None

    def __aiter__(self) -> GeneratorBridge[T]:
        return self

    # A coroutine, not an awaitable of its own: `anext(bridge, default)` calls the `__await__` of such a one anew each
    # time that it is resumed (CPython 3.11 to 3.13), and loses what was suspended in the one before.
    @coroutine
    def __anext__(self) -> Generator[Any, Any, Any]:
        if self._finished:
            raise StopAsyncIteration
        value, error, self._outcome, self._error = self._outcome, self._error, None, None
        try:
            found, self._finished = yield from _run_until(
                self.work, _Emitted, value=value, error=error, context=self._context
            )
        except BaseException:
            self._finished = True
            raise
        if self._finished:
            self.result = found
            raise StopAsyncIteration
        return found.value

    async def athrow(self, error: BaseException) -> Any:
        """Raise an error where the coroutine emitted last.

        Args:
            error: The error.

        Returns:
            The next value that the coroutine emits.

        Raises:
            StopAsyncIteration: If it returns instead.
        """
        self._outcome, self._error = None, error
        return await anext(self)

    async def end(self, outcome: Any) -> None:
        """Run the coroutine to its end; errors that it raises are suppressed.

        Args:
            outcome: What its last `emit` returns, or raises if it is an exception.
        """
        self._outcome, self._error = (None, outcome) if isinstance(outcome, BaseException) else (outcome, None)
        with suppress(Exception, asyncio.CancelledError):
            async for _ in self:
                pass


class _Emitted:
    """A value on its way from `emit` to the bridge."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value
