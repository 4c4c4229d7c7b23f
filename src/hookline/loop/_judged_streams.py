"""Read the bytes of a client's streamed answer through the `HeldEvents` of the runtime, for async and sync clients."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any, Protocol, TypeAlias

import anyio
import msgspec

from hookline._deadlines import runs_on_asyncio
from hookline.calls import ModelCall, ModelResponse
from hookline.execution import run_in_caller, task_starter
from hookline.loop._client import byte_stream_class
from hookline.loop._format import Format, encode_events, read_events
from hookline.loop._streams import OpenStream
from hookline.runtime import HeldEvents

__all__ = ["JudgedStream", "Take", "judge_async", "judge_sync"]


class StreamEvent(msgspec.Struct, frozen=True, eq=False):
    """One event of a stream.

    Attributes:
        raw: The event as the provider sent it.
        name: Its name.
        data: Its JSON; `{}` if it has none.
    """

    raw: bytes
    name: str = ""
    data: dict[str, Any] = {}


def join_raw(events: Iterable[StreamEvent]) -> bytes:
    """Return the bytes of events."""
    return b"".join(event.raw for event in events)


END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class JudgedStream(OpenStream):
    """A streamed answer whose text hooks judge in parts.

    Args:
        call: The call as the hooks left it.
        to_response: Converts the JSON of an answer to the response that hooks see.
        given: The arguments of an `OpenStream`.

    Attributes:
        parts: Holds its events.
        whole: Whether the provider has sent the last event.
        again: The JSON of further answers, if hooks have discarded the streamed one.
    """

    def __init__(self, call: ModelCall, to_response: Callable[[Any], ModelResponse], *given: Any) -> None:
        super().__init__(*given)
        format_ = self.exchange.format
        self.parts = HeldEvents[StreamEvent](
            call,
            text_of=self._read_text,
            with_text=lambda event, text: changed_event(format_, event, text),
            is_frame=lambda event: not event.data or format_.is_frame(event.data),
            read_so_far=lambda: to_response(self.join()),
        )
        self.whole = False
        self.again: list[Any] = []
        self._places: set[object] = set()
        self._buffer = b""

    async def take(self, chunk: bytes) -> bytes:
        """Take bytes of the provider, and return those that the client may have.

        Args:
            chunk: The bytes; `b""` if none have come for so long that the hooks must judge what waits.

        Raises:
            HookDenied: If a hook denies the answer.
        """
        if not chunk:
            return join_raw(await self.parts.judge_waiting())
        self.receive(chunk)
        self._buffer += chunk
        released: list[StreamEvent] = []
        while found := END_OF_EVENT.search(self._buffer):
            raw, self._buffer = self._buffer[: found.end()], self._buffer[found.end() :]
            name, data = next(read_events(raw), ("", {}))
            self.whole = self.whole or re.search(self.exchange.format.last_event, raw, re.MULTILINE) is not None
            released += await self.parts.add(StreamEvent(raw, name, data if isinstance(data, dict) else {}))
        return join_raw(released)

    def write_rest(self, answer: Mapping[str, Any] | None) -> bytes:
        """Return the bytes that the client has not got yet.

        Args:
            answer: The JSON of the answer as hooks have left it; `None` if they have not changed it.
        """
        if answer is None:
            return join_raw(self.parts.rest()) + self._buffer
        format_, left = self.exchange.format, self.parts.released
        events: list[tuple[str, Any]] = []
        for name, data in format_.write_events(answer, self.body):
            known = isinstance(data, dict)
            found = format_.read_text(data) if known and left else None
            if found is not None:
                given, left = len(left), left[len(found[1]) :]
                data = format_.with_text(data, found[1][given:])
            elif known and left and format_.is_frame(data):
                continue
            events.append((name, data))
        return encode_events(events)

    def _read_text(self, event: StreamEvent) -> str | None:
        found = self.exchange.format.read_text(event.data)
        if found is None:
            return None
        self._places.add(found[0])
        return found[1] if len(self._places) == 1 else None


def changed_event(format_: Format, event: StreamEvent, text: str) -> StreamEvent:
    """Return an event of a stream with other text."""
    data = format_.with_text(event.data, text)
    return StreamEvent(encode_events([(event.name, data)]), event.name, data)


Take: TypeAlias = Callable[[JudgedStream, bytes | None, BaseException | None], Awaitable[bytes]]
"""Takes bytes of a stream, `None` at its end, with the error that ended it, and returns the bytes to release."""


class ByteSource(Protocol):
    """The bytes of an HTTP response, for one reader."""

    async def read(self, seconds: float | None) -> bytes | None:
        """Read the next bytes.

        Args:
            seconds: The most seconds to wait; `None` for no limit.

        Returns:
            The bytes; `b""` if none have come in time, so that the next call goes on waiting for them; `None` at the
            end.

        Raises:
            Exception: What the HTTP library raises.
        """
        ...

    async def stop(self) -> None:
        """End a read that is still waiting."""
        ...


class JudgedByteReader:
    """Reads a stream from its source, and lets hooks judge it: when bytes come, and when text has waited for long.

    Args:
        stream: The stream.
        source: Its bytes.
        take: Takes the bytes.
    """

    def __init__(
        self,
        stream: JudgedStream,
        source: ByteSource,
        take: Take,
    ) -> None:
        self._stream, self._source, self._take = stream, source, take

    async def read(self) -> bytes:
        """Read until there are bytes that the client may have, and return them; `b""` at the end.

        Raises:
            RunStopped: If a hook denies the answer.
            Exception: What the HTTP library raises.
        """
        stream = self._stream
        try:
            while not stream.ended:
                try:
                    chunk = await self._source.read(stream.parts.seconds_left())
                except BaseException as error:
                    with anyio.CancelScope(shield=True):
                        await self._take(stream, None, error)
                    raise
                if data := await self._take(stream, chunk, None):
                    return data
        finally:
            if stream.ended:
                await self._source.stop()
        return b""


class AsyncSource:
    """The bytes of the HTTP response of an async client.

    Args:
        inner: The stream of bytes of the HTTP library.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._chunks: AsyncIterator[bytes] | None = None
        self._pending: PendingRead | None = None

    async def read(self, seconds: float | None) -> bytes | None:
        if self._chunks is None:
            self._chunks = aiter(self._inner)
        if self._pending is None:
            if seconds is None:
                return await read_next(self._chunks)
            self._pending = PendingRead(self._chunks)
        with anyio.move_on_after(seconds):
            await self._pending.ended.wait()
        if not self._pending.ended.is_set():
            return b""
        pending, self._pending = self._pending, None
        return pending.result()

    async def stop(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            with anyio.CancelScope(shield=True):
                pending.scope.cancel()
                await pending.ended.wait()

    async def aclose(self) -> None:
        """Close the response."""
        await self.stop()
        await self._inner.aclose()


async def read_next(chunks: AsyncIterator[bytes]) -> bytes | None:
    """Return the next bytes; `None` at the end."""
    try:
        return await anext(chunks)
    except StopAsyncIteration:
        return None


class PendingRead:
    """A read of the next bytes in a task of its own, because the HTTP library cannot resume a read that was cancelled.

    Args:
        chunks: The bytes.

    Attributes:
        scope: Cancels the read.
        ended: Set when it has ended.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.scope, self.ended = anyio.CancelScope(), anyio.Event()
        self._chunks = chunks
        self._chunk: bytes | None = None
        self._error: BaseException | None = None
        self._task = start_background_task(self._read)

    async def _read(self) -> None:
        try:
            with self.scope:
                self._chunk = await read_next(self._chunks)
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):  # such as a cancellation by somebody else
                raise
        finally:
            self.ended.set()

    def result(self) -> bytes | None:
        """Return the bytes of a read that has ended; `None` at the end of the stream.

        Raises:
            Exception: What the read raised.
        """
        if self._error is not None:
            raise self._error
        return self._chunk


def start_background_task(work: Callable[[], Coroutine[Any, Any, None]]) -> object:
    """Start a task that does not belong to a block, and return it; `work` must not raise."""
    if runs_on_asyncio():
        loop = asyncio.get_running_loop()
        return task_starter(loop)(work(), loop=loop, name="hookline-read")
    from trio.lowlevel import spawn_system_task

    return spawn_system_task(work, context=copy_context())


class SyncSource:
    """The bytes of the HTTP response of a sync client, read in the thread of the caller.

    Where a read must end in time, it is made in a thread of its own: nothing can interrupt it.

    Args:
        http: The HTTP response.
    """

    def __init__(self, http: Any) -> None:
        self._http, self._inner = http, http.stream
        self._chunks: Iterator[bytes] | None = None
        self._pending: Future[bytes | None] | None = None
        self._closed = False

    async def read(self, seconds: float | None) -> bytes | None:
        return await run_in_caller(lambda: self._read(seconds))

    def _read(self, seconds: float | None) -> bytes | None:
        if self._chunks is None:
            self._chunks = iter(self._inner)
        if self._pending is None:
            if seconds is None:
                return next(self._chunks, None)
            self._pending = read_in_thread(self._chunks)
        wait([self._pending], seconds)
        if not self._pending.done():
            return b""
        pending, self._pending = self._pending, None
        return pending.result()

    async def stop(self) -> None:
        if self._pending is not None:
            self.close()

    def close(self) -> None:
        """Close the response; if a read still waits for its bytes, the thread of the read does so when that ends."""
        if self._closed:
            return
        self._closed = True
        pending, self._pending = self._pending, None
        if pending is None:
            self._inner.close()
        else:
            pending.add_done_callback(lambda _: self._inner.close())
            wake_reader(self._http)


def read_in_thread(chunks: Iterator[bytes]) -> Future[bytes | None]:
    """Read the next bytes in a thread of its own, with the context variables of the caller; `None` at the end."""
    outcome: Future[bytes | None] = Future()

    def read() -> None:
        try:
            outcome.set_result(next(chunks, None))
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=copy_context().run, args=(read,), name="hookline-read", daemon=True).start()
    return outcome


def wake_reader(http: Any) -> None:
    """End the read of an HTTP response that another thread waits for."""
    # To close a socket does not wake up the thread that reads it. One of HTTP/2 has streams of other calls too.
    connection = http.extensions.get("network_stream")
    if connection is None or http.extensions.get("http_version") == b"HTTP/2":
        return
    found = connection.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            socket.socket.shutdown(found, socket.SHUT_RDWR)


class AsyncJudge:
    """An HTTP response's stream of bytes that gives only what hooks have judged."""

    def __init__(
        self,
        inner: Any,
        source: AsyncSource,
        reading: JudgedByteReader,
        end: Callable[[BaseException | None], Awaitable[None]],
    ) -> None:
        self._inner, self._source, self._reading, self._end = inner, source, reading, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if data := await self._reading.read():
            return data
        raise StopAsyncIteration

    async def aclose(self) -> None:
        try:
            await self._source.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(None)


class SyncJudge:
    """An HTTP response's stream of bytes for a sync client that gives only what hooks have judged."""

    def __init__(
        self, inner: Any, source: SyncSource, read: Callable[[], bytes], end: Callable[[BaseException | None], None]
    ) -> None:
        self._inner, self._source, self._read, self._end = inner, source, read, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if data := self._read():
            return data
        raise StopIteration

    def close(self) -> None:
        try:
            self._source.close()
        finally:
            self._end(None)


def judge_async(
    stream: JudgedStream,
    take: Take,
    end: Callable[[BaseException | None], Awaitable[None]],
) -> None:
    """Judge the stream of an async client.

    Args:
        stream: The stream.
        take: Takes the bytes.
        end: Called when the stream is closed.
    """
    inner = stream.http.stream
    source = AsyncSource(inner)
    judge = byte_stream_class(stream.http, AsyncJudge, is_async=True)
    stream.http.stream = judge(inner, source, JudgedByteReader(stream, source, take), end)


def judge_sync(
    stream: JudgedStream,
    take: Take,
    run: Callable[[Callable[[], Awaitable[bytes]]], bytes],
    end: Callable[[BaseException | None], None],
) -> None:
    """Judge the stream of a sync client.

    Args:
        stream: The stream.
        take: Takes the bytes.
        run: Runs an async function in the event loop of the hooks, for the present thread.
        end: Called when the stream is closed.
    """
    source = SyncSource(stream.http)
    reading = JudgedByteReader(stream, source, take)
    judge = byte_stream_class(stream.http, SyncJudge, is_async=False)
    stream.http.stream = judge(stream.http.stream, source, partial(run, reading.read), end)
