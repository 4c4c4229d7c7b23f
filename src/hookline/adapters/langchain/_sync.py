"""Run a LangGraph graph in the caller's thread, while its hooks run in an event loop of another thread."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from hookline.adapters.langchain._run_binding import current_binding
from hookline.adapters.langchain._runs import GraphRunner
from hookline.execution import open_portal

__all__ = ["GraphCall", "SyncRun"]

ABANDONED = object()
"""The outcome of a call whose caller stopped reading before its end."""

EXHAUSTED = object()


class GraphCall:
    """One call of the graph, made in the caller's thread and awaited by the hooks.

    Attributes:
        given: The input of the graph.
        config: The config of the run.
        result: The result of the graph.
        outcome: Completed when the call ends.
    """

    def __init__(self, given: Any, config: Any) -> None:
        self.given, self.config = given, config
        self.result: Any = None
        self.outcome: Future[Any] = Future()
        self._context = contextvars.copy_context()
        self._chunks: Any = None

    def make(self, graph: Callable[..., Any], **options: Any) -> Any:
        """Call the graph in the context in which its middleware finds the hooks and spans find their parent."""
        return self._context.run(graph, self.given, self.config, **options)

    def stream(self, graph: Callable[..., Any], **options: Any) -> Iterator[Any]:
        """Stream the graph, as far as the caller reads."""
        self._chunks = iter(self.make(graph, **options))
        while (chunk := self._context.run(next, self._chunks, EXHAUSTED)) is not EXHAUSTED:
            yield chunk

    def abandon(self) -> None:
        """End a call whose caller stopped reading."""
        try:
            if self._chunks is not None:
                self._context.run(self._chunks.close)
        finally:
            self.outcome.set_result(ABANDONED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.outcome.set_exception(error)  # `SyncRun.result` raises it, or the error that hooks replace it with
        elif error is None:
            self.outcome.set_result(self.result)
        return isinstance(error, Exception)


class SyncRun:
    """One hooked run of a sync caller: iterate over it and make each call of the graph that it yields.

    Args:
        runner: Runs the operation.
        given: The input of the graph.
        config: The config of the run.
    """

    def __init__(self, runner: GraphRunner, given: Any, config: Any) -> None:
        self._runner, self._given, self._config = runner, given, config
        self._calls: queue.SimpleQueue[GraphCall | Callable[[], None] | None] = queue.SimpleQueue()
        self._call: GraphCall | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(open_portal())
            self._work = self._portal.start(self._run)
            self._stack = stack.pop_all()
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
        """The result of the run; raises the error that the run raised."""
        return self._work.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The garbage collector closes an abandoned stream, in any thread. In the thread of the hooks it must not wait
        # for the hooks.
        if self._portal.is_own_thread:
            threading.Thread(target=self._end).start()
        else:
            self._end()

    def _end(self) -> None:
        try:
            if self._call is not None and not self._call.outcome.done():
                self._call.abandon()
                wait([self._work])
            elif not self._work.done():
                self._work.cancel()
        finally:
            self._stack.close()

    # In the event loop of the hooks.

    async def _run(self) -> Any:
        try:
            return await self._runner.run(self._given, self._config, self._run_graph, self._get_state)
        finally:
            self._calls.put(None)

    async def _run_graph(self, given: Any, config: Any) -> Any:
        call = GraphCall(given, config)
        self._calls.put(call)
        done = asyncio.wrap_future(call.outcome)
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError:
            binding = current_binding.get()
            if binding is not None:
                binding.stop()
            await asyncio.wait([done])
            done.exception()  # mark as retrieved, or asyncio would log it
            raise
        if done.exception() is None and done.result() is ABANDONED:
            raise asyncio.CancelledError
        return done.result()

    async def _get_state(self, config: Any) -> Any:
        """Read the state in the graph's thread, because database connections belong to the thread that opened them."""
        found: Future[Any] = Future()

        def read() -> None:
            try:
                found.set_result(self._runner.agent.get_state(config))
            except Exception as error:
                found.set_exception(error)

        self._calls.put(read)
        return await asyncio.wrap_future(found)
