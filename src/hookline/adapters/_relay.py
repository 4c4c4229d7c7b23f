"""Coroutines inside of the generators of a framework: hooks are awaited, and the framework's events go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, Generic, TypeVar, cast

from hookline.calls import Call
from hookline.hooks import Hooks, Interceptor
from hookline.runtime import ForeignRun

__all__ = ["Emitted", "Relay", "holds"]

T = TypeVar("T")


def holds(run: ForeignRun, call: type[Call]) -> bool:
    """Whether what comes of such calls may be changed or withheld at their end, so that it must not be shown before."""
    entries = [entry.interceptors if isinstance(entry, Hooks) else [entry] for entry in run.run.hooks]
    found = [each for entry in entries for each in entry if isinstance(each, Interceptor) and each.call is call]
    return any(each.kind in ("after", "around") for each in found)


class Emitted:
    """Awaited inside of a relay: what the generator around it gives next.

    Args:
        event: What it gives.
    """

    def __init__(self, event: Any) -> None:
        self.event = event

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class Relay(Generic[T]):
    """A coroutine that runs inside of an async generator, in its task, step by step with it.

    Args:
        work: The coroutine. What it emits is what iterating gives.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.work = work
        self.result = cast(T, None)
        self._over = False
        self._go: tuple[Callable[[Any], Any], Any] = (work.send, None)

    def __aiter__(self) -> Relay[T]:
        return self

    # A coroutine, not an awaitable of its own: `anext(relay, default)` calls the `__await__` of such a one anew each
    # time that it is resumed (CPython 3.11 to 3.13), and loses what was suspended in the one before.
    @coroutine
    def __anext__(self) -> Generator[Any, Any, Any]:
        if self._over:
            raise StopAsyncIteration
        while True:
            go, value = self._go
            self._go = (self.work.send, None)
            try:
                asked = go(value)
            except BaseException as error:
                self._over = True
                if not isinstance(error, StopIteration):
                    raise
                self.result = error.value
                raise StopAsyncIteration from None
            if asked.__class__ is Emitted:
                return asked.event
            try:
                self._go = (self.work.send, (yield asked))
            except BaseException as error:
                self._go = (self.work.throw, error)

    async def end(self, outcome: Any) -> None:
        """Go on to its end, where what it emitted last gives this, or raises it."""
        self._go = (self.work.throw if isinstance(outcome, BaseException) else self.work.send, outcome)
        with suppress(Exception, asyncio.CancelledError):
            async for _ in self:
                pass
