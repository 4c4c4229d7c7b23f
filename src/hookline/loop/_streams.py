"""Watch the bytes of a streamed answer on their way to the client, or hold them until hooks have judged them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import anyio
import msgspec

from hookline._stepping import SteppedCall
from hookline.calls import ModelCall, ModelResponse
from hookline.loop._client import Exchange, byte_stream_class
from hookline.loop._format import Format, encode_events, read_events
from hookline.runtime import PartsStream

__all__ = ["JudgedStream", "OpenStream", "StreamEvent", "judge_async", "judge_sync", "watch_async", "watch_sync"]


class OpenStream:
    """A streamed answer that has not been read to its end.

    Args:
        exchange: The model call.
        body: The request, as hooks left it.
        http: The HTTP response.
        reader: The task or thread that made the call.
        stepped: The hooks of the call, which wait for its answer; `None` if it has none.
        note_piece: Called when bytes of the answer have arrived.

    Attributes:
        chunks: The bytes received so far.
        ended: Whether the end was recorded.
    """

    def __init__(
        self,
        exchange: Exchange,
        body: Mapping[str, Any],
        http: Any,
        reader: object,
        stepped: SteppedCall | None,
        note_piece: Callable[[], None],
    ) -> None:
        self.exchange, self.body, self.http, self.reader, self.stepped = exchange, body, http, reader, stepped
        self._note_piece = note_piece
        self.chunks: list[bytes] = []
        self.ended = False

    def receive(self, chunk: bytes) -> None:
        """Keep bytes that have arrived."""
        self._note_piece()
        self.chunks.append(chunk)

    def join(self) -> dict[str, Any] | None:
        """Return the JSON of the answer, as far as it was received; `None` if nothing was."""
        return self.exchange.read_stream(self.exchange.decode(self.http, b"".join(self.chunks)))

    def is_whole(self) -> bool:
        """Whether the provider has sent the last event of the answer."""
        received = self.exchange.decode(self.http, b"".join(self.chunks))
        return re.search(self.exchange.format.last_event, received, re.MULTILINE) is not None


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
        self.parts = PartsStream[StreamEvent](
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

        Raises:
            HookDenied: If a hook denies the answer.
        """
        self.receive(chunk)
        self._buffer += chunk
        released: list[StreamEvent] = []
        while found := END_OF_EVENT.search(self._buffer):
            raw, self._buffer = self._buffer[: found.end()], self._buffer[found.end() :]
            name, data = next(read_events(raw), ("", {}))
            self.whole = self.whole or re.search(self.exchange.format.last_event, raw, re.MULTILINE) is not None
            released += await self.parts.add(StreamEvent(raw, name, data if isinstance(data, dict) else {}))
        return b"".join(event.raw for event in released)

    def write_rest(self, answer: Mapping[str, Any] | None) -> bytes:
        """Return the bytes that the client has not got yet.

        Args:
            answer: The JSON of the answer as hooks have left it; `None` if they have not changed it.
        """
        if answer is None:
            return b"".join(event.raw for event in self.parts.rest()) + self._buffer
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


class AsyncJudge:
    """An HTTP response's stream of bytes that gives only what hooks have judged."""

    def __init__(
        self,
        inner: Any,
        stream: JudgedStream,
        take: Callable[[bytes | None, BaseException | None], Awaitable[bytes]],
        end: Callable[[BaseException | None], Awaitable[None]],
    ) -> None:
        self._inner, self._stream, self._take, self._end = inner, stream, take, end
        self._chunks: AsyncIterator[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._inner)
        return self

    async def __anext__(self) -> bytes:
        assert self._chunks is not None
        while not self._stream.ended:
            chunk: bytes | None
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                chunk = None
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await self._take(None, error)
                raise
            if data := await self._take(chunk, None):
                return data
        raise StopAsyncIteration

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(None)


class SyncJudge:
    """An HTTP response's stream of bytes for a sync client that gives only what hooks have judged."""

    def __init__(
        self,
        inner: Any,
        stream: JudgedStream,
        take: Callable[[bytes | None, BaseException | None], bytes],
        end: Callable[[BaseException | None], None],
    ) -> None:
        self._inner, self._stream, self._take, self._end = inner, stream, take, end
        self._chunks: Iterator[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[bytes]:
        self._chunks = iter(self._inner)
        return self

    def __next__(self) -> bytes:
        assert self._chunks is not None
        while not self._stream.ended:
            try:
                chunk = next(self._chunks, None)
            except BaseException as error:
                self._take(None, error)
                raise
            if data := self._take(chunk, None):
                return data
        raise StopIteration

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._end(None)


class AsyncWatch:
    """An HTTP response's stream of bytes that keeps them and calls a function at its end."""

    def __init__(self, inner: Any, stream: OpenStream, end: Callable[[BaseException | None], Awaitable[None]]) -> None:
        self._inner, self._stream, self._end = inner, stream, end
        self._chunks: AsyncIterator[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._chunks = aiter(self._inner)
        return self

    # No generator: one that is thrown away could not await the end.
    async def __anext__(self) -> bytes:
        assert self._chunks is not None
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            await self._end(None)
            raise
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._end(error)
            raise
        self._stream.receive(chunk)
        return chunk

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(None)


class SyncWatch:
    """An HTTP response's stream of bytes for a sync client; it keeps them and calls a function at its end."""

    def __init__(self, inner: Any, stream: OpenStream, end: Callable[[BaseException | None], None]) -> None:
        self._inner, self._stream, self._end = inner, stream, end
        self._chunks: Iterator[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Iterator[bytes]:
        self._chunks = iter(self._inner)
        return self

    def __next__(self) -> bytes:
        assert self._chunks is not None
        try:
            chunk = next(self._chunks)
        except StopIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        self._stream.receive(chunk)
        return chunk

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._end(None)


def watch_async(stream: OpenStream, end: Callable[[BaseException | None], Awaitable[None]]) -> None:
    """Watch the stream of an async client.

    Args:
        stream: The stream.
        end: Called at its end with the exception, if any, and again when it is closed.
    """
    watch = byte_stream_class(stream.http, AsyncWatch, is_async=True)
    stream.http.stream = watch(stream.http.stream, stream, end)


def watch_sync(stream: OpenStream, end: Callable[[BaseException | None], None]) -> None:
    """Watch the stream of a sync client.

    Args:
        stream: The stream.
        end: Called at its end with the exception, if any, and again when it is closed.
    """
    watch = byte_stream_class(stream.http, SyncWatch, is_async=False)
    stream.http.stream = watch(stream.http.stream, stream, end)


def judge_async(
    stream: JudgedStream,
    take: Callable[[bytes | None, BaseException | None], Awaitable[bytes]],
    end: Callable[[BaseException | None], Awaitable[None]],
) -> None:
    """Judge the stream of an async client.

    Args:
        stream: The stream.
        take: Takes bytes, `None` at the end, and the exception, if any; returns the bytes to release.
        end: Called when the stream is closed.
    """
    judge = byte_stream_class(stream.http, AsyncJudge, is_async=True)
    stream.http.stream = judge(stream.http.stream, stream, take, end)


def judge_sync(
    stream: JudgedStream,
    take: Callable[[bytes | None, BaseException | None], bytes],
    end: Callable[[BaseException | None], None],
) -> None:
    """Judge the stream of a sync client; see `judge_async`."""
    judge = byte_stream_class(stream.http, SyncJudge, is_async=False)
    stream.http.stream = judge(stream.http.stream, stream, take, end)
