"""Step a coroutine or an async generator of a framework from another task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from types import coroutine
from typing import Any, Generic, TypeVar, cast

from hookline.calls import Call
from hookline.hooks import Hooks, Interceptor
from hookline.runtime import AdapterRun

__all__ = ["Between", "Emitted", "GeneratorBridge", "holds", "led", "pause"]


@coroutine
def pause(thing: object) -> Generator[object, Any, Any]:
    """Inside of a coroutine that is `led`: give something out, and wait for what comes in."""
    return (yield thing)


@coroutine
def led(
    leading: Coroutine[Any, Any, Any],
    stop: type,
    *,
    given: object = None,
    error: BaseException | None = None,
    within: Context | None = None,
) -> Generator[object, Any, tuple[Any, bool]]:
    """Run a coroutine, in the present task, until it gives something out.

    Args:
        leading: The coroutine.
        stop: The class of what it gives out; anything else is what it waits for.
        given: What comes in.
        error: What is raised where it waits, instead.
        within: The context variables that it sees and sets; those of its caller unless given.

    Returns:
        What it gave out or returned, and whether it is over.
    """
    run = within.run if within is not None else _plainly
    try:
        told = run(leading.send, given) if error is None else run(leading.throw, error)
        while not isinstance(told, stop):
            try:
                answer = yield told
            except BaseException as raised:
                told = run(leading.throw, raised)
            else:
                told = run(leading.send, answer)
    except StopIteration as end:
        return end.value, True
    return told, False


def _plainly(work: Callable[[Any], object], given: object) -> object:
    return work(given)


class Between:
    """Work that hookline leads while the framework does it, between two of its callbacks.

    What leads it is run to the work by the first callback and from there by the second, in the framework's own task, so
    that the work sees what hooks around it have set, such as a span, and no other task has to be woken.

    Args:
        under_way: Those of the whole run that have begun.
    """

    def __init__(self, under_way: set[Between]) -> None:
        self._under_way = under_way
        self._over = False
        self.given: Any = None
        self.result: Any = None

    async def work(self, given: Any, *_: object) -> Any:
        """Stand for the work: let it begin, and wait for what comes of it."""
        self.given = given
        return await pause(self)

    async def begin(self, leading: Coroutine[Any, Any, Any]) -> bool:
        """Lead it to the work; False if it is over without, with a `result`."""
        self._leading = leading
        self.result, self._over = await led(leading, Between)
        if not self._over:
            self._under_way.add(self)
        return not self._over

    async def end(self, value: Any = None, error: BaseException | None = None) -> Any:
        """The framework has done the work; what hookline makes of it, `None` if it was cancelled."""
        self._under_way.discard(self)
        try:
            if not self._over:
                self._over = True
                self.result, _ = await led(self._leading, Between, given=value, error=error)
        except asyncio.CancelledError:
            if not isinstance(error, asyncio.CancelledError):
                raise
            return None
        return self.result

    async def fail(self, error: BaseException) -> Any:
        """The framework has failed at the work; what hookline makes of it, `None` for the same error."""
        try:
            return await self.end(error=error)
        except Exception:
            return None


T = TypeVar("T")


def holds(run: AdapterRun, call: type[Call]) -> bool:
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


class GeneratorBridge(Generic[T]):
    """A coroutine that runs inside of an async generator, in its task, step by step with it.

    Args:
        work: The coroutine. What it emits is what iterating gives.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.work = work
        self.result = cast(T, None)
        self._over = False
        self._go: tuple[Callable[[Any], Any], Any] = (work.send, None)

    def __aiter__(self) -> GeneratorBridge[T]:
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
