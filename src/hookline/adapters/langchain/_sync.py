"""Run a LangGraph graph in the thread of its caller, with an event loop in another thread for its hooks."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Self

import anyio.from_thread

from hookline.adapters.langchain._attached import present
from hookline.adapters.langchain._runs import Driver

__all__ = ["GraphCall", "SyncRun"]

LEFT = object()
"""The result of a graph whose caller went away before its end."""

OVER = object()


class GraphCall:
    """One call of the graph, made in the thread of the caller and awaited by the hooks.

    Attributes:
        given: Input of the graph.
        config: Its config.
        result: What the graph gave.
        done: Completed when the call ends.
    """

    def __init__(self, given: Any, config: Any) -> None:
        self.given, self.config = given, config
        self.result: Any = None
        self.done: Future[Any] = Future()
        self._context = contextvars.copy_context()
        self._chunks: Any = None

    def make(self, graph: Callable[..., Any], **options: Any) -> Any:
        """Call the graph where its middleware finds the hooks, and spans their parent."""
        return self._context.run(graph, self.given, self.config, **options)

    def stream(self, graph: Callable[..., Any], **options: Any) -> Iterator[Any]:
        """Stream the graph, as far as the caller reads it."""
        self._chunks = iter(self.make(graph, **options))
        while (chunk := self._context.run(next, self._chunks, OVER)) is not OVER:
            yield chunk

    def leave(self) -> None:
        """End a call that its caller did not wait for."""
        try:
            if self._chunks is not None:
                self._context.run(self._chunks.close)
        finally:
            self.done.set_result(LEFT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.done.set_exception(error)  # `SyncRun.result` raises it, or what hooks make of it
        elif error is None:
            self.done.set_result(self.result)
        return isinstance(error, Exception)


class SyncRun:
    """One run with hooks whose caller is not async: iterate over the calls of the graph that it takes, and make them.

    Args:
        driver: Leads the run.
        given: Input of the graph.
        config: Its config.
    """

    def __init__(self, driver: Driver, given: Any, config: Any) -> None:
        self._driver, self._given, self._config = driver, given, config
        self._calls: queue.SimpleQueue[GraphCall | Callable[[], None] | None] = queue.SimpleQueue()
        self._call: GraphCall | None = None
        self._thread = 0

    def __enter__(self) -> Self:
        self._portals = anyio.from_thread.start_blocking_portal("asyncio")
        self._work = self._portals.__enter__().start_task_soon(self._drive)
        return self

    def __iter__(self) -> Iterator[GraphCall]:
        while (each := self._calls.get()) is not None:
            if isinstance(each, GraphCall):
                self._call = each
                yield each
            else:
                each()

    @property
    def result(self) -> Any:
        """What the run gave; raises what it raised."""
        return self._work.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A stream that nobody closed is closed by the garbage collector, in whatever thread that runs; in the one of
        # the hooks it must not wait for them.
        if threading.get_ident() == self._thread:
            threading.Thread(target=self._end).start()
        else:
            self._end()

    def _end(self) -> None:
        try:
            if self._call is not None and not self._call.done.done():
                self._call.leave()
                wait([self._work])
            elif not self._work.done():
                self._work.cancel()
        finally:
            self._portals.__exit__(None, None, None)

    # In the loop of the hooks.

    async def _drive(self) -> Any:
        self._thread = threading.get_ident()
        try:
            return await self._driver.drive(self._given, self._config, self._play, self._get_state)
        finally:
            self._calls.put(None)

    async def _play(self, given: Any, config: Any) -> Any:
        call = GraphCall(given, config)
        self._calls.put(call)
        done = asyncio.wrap_future(call.done)
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError:
            attached = present.get()
            if attached is not None:
                attached.stop()
            await asyncio.wait([done])
            done.exception()  # seen, or asyncio would complain
            raise
        if done.exception() is None and done.result() is LEFT:
            raise asyncio.CancelledError
        return done.result()

    async def _get_state(self, config: Any) -> Any:
        """Read the state where the graph runs: connections of databases belong to the thread that opened them."""
        found: Future[Any] = Future()

        def read() -> None:
            try:
                found.set_result(self._driver.agent.get_state(config))
            except Exception as error:
                found.set_exception(error)

        self._calls.put(read)
        return await asyncio.wrap_future(found)
