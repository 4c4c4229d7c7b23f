"""Bound what one connection may take: bytes of headers, time for headers, bodies and answers, and how many are open.

uvicorn bounds none of these for the parser that it uses here. Its `limit_concurrency` counts a connection only
once its headers are complete, so that silent clients could take every descriptor of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hookline.server._limits import ServerLimits
from hookline.server._problems import MEDIA_TYPE, ApiError

__all__ = ["BoundedProtocol", "Connections", "fit_connections", "raise_file_limit"]

logger = logging.getLogger("hookline")

LINGER_SECONDS = 1.0
"""Seconds for which a refused client may go on sending. If its connection were closed at once, the system of the client
would discard our response."""
LINGERING = 100
"""Refused connections that are kept open for that time; further ones are closed without a response."""
RETRY_SECONDS = 1


FILES = 24
"""File descriptors that a server needs besides its connections: listener, database, files of definitions."""


def fit_connections(limits: ServerLimits) -> ServerLimits:
    """Lower the number of connections to what the process's limit of open files allows, with a warning."""
    room = open_files()[0] - FILES
    if limits.max_connections <= room:
        return limits
    logger.warning(
        "This process may open %d files, so the server accepts %d connections instead of %d. Raise `ulimit -n`.",
        room + FILES,
        max(1, room),
        limits.max_connections,
    )
    return msgspec.structs.replace(limits, max_connections=max(1, room))


def raise_file_limit(limits: ServerLimits) -> None:
    """Raise the process's limit of open files to what the connections need, as far as its user may."""
    soft, hard = open_files()
    wanted = min(hard, limits.max_connections + LINGERING + FILES)
    if soft < wanted:
        import resource

        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def open_files() -> tuple[float, float]:
    """Return the soft and the hard limit of open files."""
    try:
        import resource
    except ImportError:  # there is no such limit on Windows
        return math.inf, math.inf
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (math.inf if each == resource.RLIM_INFINITY else each for each in found)
    return soft, hard


class Connections:
    """State that is shared by all connections of one server.

    Args:
        limits: The limits of connections.
        note: Called with the code of each refusal.

    Attributes:
        lingering: Refused connections that are still open, so that their clients can read the response.
    """

    def __init__(self, limits: ServerLimits, note: Callable[[str], None]) -> None:
        self.limits, self.note = limits, note
        self.lingering: set[BoundedProtocol] = set()

    def protocol(self) -> Callable[..., BoundedProtocol]:
        """Return the factory with which uvicorn creates the protocol of each connection."""
        return partial(BoundedProtocol, self)


class BoundedProtocol(HttpToolsProtocol):
    """The HTTP protocol of one connection, with limits. Bodies that the application reads are limited by the gate."""

    def __init__(self, shared: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared, self._limits = shared, shared.limits
        self._refused = False
        self._in_head = self._in_body = False
        self._head_bytes = 0
        self._unparsed_bytes = 0
        """Bytes since the parser last reported a complete message, a part of a body, or the start of a request."""
        self._progressed = False
        self._head_since: float | None = None
        self._moved_at = 0.0
        self._unanswered: deque[Any] = deque()
        """Requests in the order in which they came, those first that may have been answered by now."""
        self._unread: tuple[int, object, float] | None = None
        """Bytes that wait for the client to take them, of which answer, and since when there are no fewer."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._moved_at = self._head_since = self.loop.time()
        if len(self.connections) - len(self._shared.lingering) > self._limits.max_connections:
            detail = f"This server has {self._limits.max_connections} open connections, which is its limit."
            self._refuse(ApiError(503, "connections", detail, headers={"Retry-After": str(RETRY_SECONDS)}))
        else:
            self._check_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.lingering.discard(self)
        for cycle in self._unanswered:  # uvicorn tells the newest alone, and those before it would go on writing
            cycle.disconnected = True
            cycle.message_event.set()
        self._unanswered.clear()
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._unread = None  # the client has taken most of it
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._moved_at = self.loop.time()
        if self._head_since is None and not self._in_body:
            # Bytes between two requests stop uvicorn's own timeout, even if they start no request.
            self._head_since = self._moved_at
        size = self._limits.max_headers
        for start in range(0, len(data), size):
            piece = data if len(data) <= size else data[start : start + size]
            self._progressed = False
            super().data_received(piece)
            if self._refused or self.transport.is_closing():
                return
            # The parser buffers a header or trailer until it is complete. Where in this piece it started is not known,
            # so up to two pieces may be buffered; `on_headers_complete` counts exactly.
            self._unparsed_bytes = 0 if self._progressed else self._unparsed_bytes + len(piece)
            if self._unparsed_bytes > size:
                self._refuse_headers()
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._progressed = self._in_head = True
        self._head_bytes = 0
        if self._head_since is None:
            self._head_since = self._moved_at

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._in_head:  # trailers must not be added to the headers of a request that hooks have judged
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head_bytes > self._limits.max_headers:
            self._refuse_headers()
            return
        super().on_headers_complete()
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(self.cycle)
        if self.scope["method"] != "HEAD":  # its answer is a head alone
            self.cycle.transport = _JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]
        self._in_head, self._head_since, self._in_body = False, None, True

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._progressed, self._in_body = True, False
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(ApiError(400, "malformed", "This is not an HTTP request."))

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: any client may ask for an upgrade, and the request is handled like any other one."""

    def _refuse_headers(self) -> None:
        detail = f"The headers are larger than {self._limits.max_headers} bytes, the limit of this server."
        self._refuse(ApiError(431, "headers_too_large", detail))

    def _check_deadline(self) -> None:
        """Refuse the connection if its deadline has passed, else check again at the next deadline.

        Each connection has one timer that compares recorded times, since setting and cancelling a timer for each
        request would cost more.
        """
        now = self.loop.time()
        if self._is_unread(now):
            self._shared.note("unread")
            self.transport.abort()  # to close it would wait for the client to take the rest
            return
        due = None if self.transport.is_closing() else self._deadline()
        if due is not None and due <= now:
            due = None
            self._refuse_late()
            if self in self._shared.lingering:
                return
        look = now + min(self._limits.header_timeout, self._limits.body_timeout)
        self._timer = self.loop.call_at(look if due is None else min(due, look), self._check_deadline)

    def _is_unread(self, now: float) -> bool:
        """Whether the client has taken nothing of what waits for it for too long.

        What waits is measured where it can only become less: while the application waits for room, and after an answer.
        """
        waiting = self.transport.get_write_buffer_size()
        if not waiting or not (self.flow.write_paused or self.cycle is None or self.cycle.response_complete):
            self._unread = None
            return False
        if self._unread is None or self._unread[1] is not self.cycle or waiting < self._unread[0]:
            self._unread = waiting, self.cycle, now
        return now - self._unread[2] >= self._limits.body_timeout

    def _deadline(self) -> float | None:
        """Return when the client will have taken too long; `None` while the server is answering."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            return None  # the gate limits the time of the body, and pipelined requests wait for their turn
        if self._head_since is not None:
            return self._head_since + self._limits.header_timeout
        return self._moved_at + self._limits.body_timeout if self._in_body else None

    def _refuse_late(self) -> None:
        if not self._in_head:
            # There is no request to answer: the client is silent, or stalls in a body that nobody reads.
            self._shared.note("silent")
            self._refused = True
            self.transport.close()
            return
        seconds = self._limits.header_timeout
        self._refuse(ApiError(408, "header_timeout", f"The headers were not complete within {seconds:g} s."))

    def _refuse(self, error: ApiError) -> None:
        """Send an error in the application's place, and close the connection."""
        self._refused = True
        self._shared.note(error.code)
        if self.cycle is not None and not self.cycle.response_complete:
            if self._in_head or self.cycle.response_started:
                # An earlier request is under way: its response is the last one of this connection.
                self.cycle.keep_alive = False
                if not self._in_head:
                    self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(_encode_answer(error))
        self._linger()

    def _linger(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unset_keepalive_if_required()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        if len(self._shared.lingering) >= LINGERING or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._shared.lingering.add(self)


class _JoinedWrites:
    """The transport of one answer, which sends its head together with the first part of its body.

    uvicorn writes them one after the other, and each write is a call of the operating system. A head whose body does
    not follow at once, as that of a stream, is sent in the next turn of the event loop.

    Args:
        transport: The transport of the connection.
        loop: The event loop.
    """

    __slots__ = ("_head", "_loop", "_transport", "_wrote")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head: bytes | None = None
        self._wrote = False

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them for a moment if they are the first ones."""
        if not self._wrote:
            self._wrote, self._head = True, data
            self._loop.call_soon(self._flush)
        elif self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        """Send what was kept, and close the connection."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _encode_answer(error: ApiError) -> bytes:
    """Encode an error as an HTTP response; it has no request id, since there is no request yet."""
    body = error.body("")
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        f"content-type: {MEDIA_TYPE}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
        *(f"{name.lower()}: {value}" for name, value in error.headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
