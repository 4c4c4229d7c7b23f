"""Watch the bytes of a streamed answer on their way to the client."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias

import anyio

from hookline.execution import SteppedCall
from hookline.loop._client import Exchange, byte_stream_class

__all__ = ["End", "OpenStream", "watch_async", "watch_sync"]


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


End: TypeAlias = Callable[[OpenStream, BaseException | None], Awaitable[None]]
"""Takes the end of a stream, with the error that ended it."""


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
