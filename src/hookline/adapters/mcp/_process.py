"""Run an MCP server as a child process: start it, exchange messages over stdin and stdout, and end it for certain.

Unlike the client library's own transport, this one ends a hung server at once when the run is interrupted, reports when
the process is gone, keeps its stderr off the terminal, tolerates every kind of output, and limits the length of a line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from subprocess import PIPE
from types import TracebackType
from typing import Self

import anyio
import msgspec
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from hookline.adapters.mcp._settings import Secrets, Settings

__all__ = ["LONGEST_MESSAGE", "Incoming", "Outgoing", "ServerDiagnostics", "parse_line", "process_streams"]

LONGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes of the longest accepted message; a server that sends more is ended."""

UNREADABLE = "its answer is not a JSON-RPC response"

STDERR_CHARACTERS = 2000
"""Characters from the end of a server's stderr that an error shows."""

BRIEF_STDERR_CHARACTERS = 300
"""Characters from the end of a server's stderr that the result of a call shows to the model."""


SEARCHED_BYTES = 64 * 1024
"""Bytes of an unexpected line that are searched for secrets."""


class ServerDiagnostics:
    """Everything that one connection has shown about its server and that an error can report.

    Args:
        secrets: The secrets to remove.

    Attributes:
        lost: Set once the server is no longer reachable.
        exit_code: The exit code of the process; `None` while it runs, or if there is none.
        status: The HTTP status of its last answer, if that was a failure.
        unexpected_output: The first line on stdout that is not a message.
        problem: Why the connection was ended.
    """

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.lost = anyio.Event()
        self.exit_code: int | None = None
        self.status: int | None = None
        self.unexpected_output = ""
        self.problem = ""
        self._stderr = b""

    def add_stderr(self, output: bytes) -> None:
        """Add output that the server wrote to stderr."""
        self._stderr += output
        if len(self._stderr) > 8 * STDERR_CHARACTERS:  # cut only cleaned text: half a secret would not be recognized
            clean = self.secrets.clean(self._stderr.decode(errors="surrogateescape"))
            self._stderr = clean.encode(errors="surrogateescape")[-4 * STDERR_CHARACTERS :]

    def add_unexpected_output(self, line: bytes) -> None:
        """Record a line of stdout that is not a message; only the first one is kept."""
        # Much more is cleaned than shown, so that the end does not show half of a secret.
        self.unexpected_output = (
            self.unexpected_output or self.secrets.clean(line[:SEARCHED_BYTES].decode(errors="replace")).strip()[:200]
        )

    def describe(self, *, briefly: bool = False) -> str:
        """Return sentences that help to understand why the server failed, without secrets."""
        parts = [self.problem]
        if self.exit_code is not None:
            parts.append(f"Its process ended with exit code {self.exit_code}.")
        if self.status is not None:
            parts.append(f"It answered with HTTP status {self.status}.")
        if self.unexpected_output:
            parts.append(f"It wrote a line to stdout that is not an MCP message: {self.unexpected_output!r}.")
        stderr = self.secrets.clean(self._stderr.decode(errors="replace")).strip()[
            -(BRIEF_STDERR_CHARACTERS if briefly else STDERR_CHARACTERS) :
        ]
        if stderr:
            parts.append(f"The end of its stderr:\n{stderr}")
        return self.secrets.clean(" ".join(filter(None, parts)))


def parse_line(line: bytes) -> SessionMessage | None:
    """Parse one line of stdout as a message.

    An answer that is not valid JSON-RPC becomes an error for its request, which would otherwise wait forever.

    Returns:
        The message; `None` if the line is not an answer to any request.
    """
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValidationError, RecursionError):
        pass
    try:
        document = msgspec.json.decode(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    number = document.get("id") if isinstance(document, dict) and "method" not in document else None
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    error = ErrorData(code=PARSE_ERROR, message=UNREADABLE)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))


class _ClosableStream(ABC):
    """A stream that is closed when its `async with` block ends."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the stream."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_ClosableStream):
    """Messages from the server, with secrets removed from errors before anything logs or traces them.

    Args:
        receive: The stream of messages.
        secrets: The secrets to remove.
    """

    def __init__(self, receive: MemoryObjectReceiveStream[SessionMessage | Exception], secrets: Secrets) -> None:
        self._receive, self._secrets = receive, secrets

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        item = await self._receive.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCError):
            error = item.message.error
            # The client quotes a truncated part of what it could not parse, in which a secret would not be recognized.
            message = UNREADABLE if error.code == PARSE_ERROR else self._secrets.clean(error.message)
            item.message.error = ErrorData(code=error.code, message=message, data=error.data)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Stop receiving."""
        self._receive.close()


class Outgoing(_ClosableStream):
    """Messages to the server. Sending never waits, so a cancelled call does not wait for a server that hangs.

    Args:
        put: Queues a message for the writing task.
        close: Ends the queue.
    """

    def __init__(self, put: Callable[[SessionMessage], None], close: Callable[[], None]) -> None:
        self._put, self._close = put, close

    async def send(self, item: SessionMessage) -> None:
        """Queue a message."""
        self._put(item)

    async def aclose(self) -> None:
        """End the queue."""
        self._close()


TERMINATION_SECONDS = 0.5
"""Seconds between SIGTERM and SIGKILL."""

ORPHAN_SECONDS = 0.1
"""Seconds to wait for the process's children. Without an init that reaps them, they stay in the process list."""

POLL_SECONDS = 0.005
"""Seconds between two checks for the end of a process: `process.wait` would also wait for its children's pipes."""

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@asynccontextmanager
async def process_streams(
    settings: Settings, diagnostics: ServerDiagnostics
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """Start a server's process and open its message streams; the process ends with the block.

    Raises:
        OSError: If its process cannot be started.
    """
    with anyio.CancelScope(shield=True):  # else asyncio would not wait for the end of a process that it has started
        process = await anyio.open_process(
            settings.command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=get_default_environment() | dict(settings.env),
            cwd=settings.cwd,
            start_new_session=sys.platform != "win32",  # a group of its own, which can be ended as a whole
        )
    assert process.stdout is not None
    assert process.stderr is not None
    deliver, delivered = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    queue, queued = anyio.create_memory_object_stream[bytes](float("inf"))

    def put(item: SessionMessage) -> None:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        queue.send_nowait(line.encode() + b"\n")

    patience = settings.stop_timeout
    async with anyio.create_task_group() as group:
        group.start_soon(_read, process.stdout, deliver, diagnostics)
        group.start_soon(_read_stderr, process.stderr, diagnostics)
        group.start_soon(_write, process, queued, diagnostics)
        try:
            yield Incoming(delivered, diagnostics.secrets), Outgoing(put, queue.close)
        except BaseException as error:
            if not isinstance(error, Exception):
                patience = 0.0  # cancelled: do not wait for the process to end by itself
            raise
        finally:
            queue.close()  # the writer closes stdin behind the last message
            delivered.close()
            try:
                if await _wait_for_exit(process, patience):
                    diagnostics.exit_code = process.returncode
            finally:
                with anyio.CancelScope(shield=True):
                    await _end_process(process)
                group.cancel_scope.cancel()


async def _read(
    stdout: ByteReceiveStream,
    deliver: MemoryObjectSendStream[SessionMessage | Exception],
    diagnostics: ServerDiagnostics,
) -> None:
    """Deliver messages until the stream ends; then keep emptying the pipe, so that the process does not block."""
    with contextlib.suppress(*_BROKEN):
        async with deliver:
            try:
                await _read_messages(stdout, deliver, diagnostics)
            finally:
                diagnostics.lost.set()  # set before pending requests fail
    with contextlib.suppress(*_BROKEN):
        while True:
            await stdout.receive()


async def _read_messages(
    stdout: ByteReceiveStream,
    deliver: MemoryObjectSendStream[SessionMessage | Exception],
    diagnostics: ServerDiagnostics,
) -> None:
    buffer, searched = bytearray(), 0
    async for chunk in stdout:
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            searched = 0
            message = parse_line(line)
            if message is not None:
                await deliver.send(message)
            elif line.strip():
                diagnostics.add_unexpected_output(line)
        searched = len(buffer)
        if searched > LONGEST_MESSAGE:
            diagnostics.problem = f"It sent a line of more than {LONGEST_MESSAGE >> 20} MiB and was ended."
            return


async def _read_stderr(stderr: ByteReceiveStream, diagnostics: ServerDiagnostics) -> None:
    with contextlib.suppress(*_BROKEN):
        async for output in stderr:
            diagnostics.add_stderr(output)


async def _write(process: Process, queued: MemoryObjectReceiveStream[bytes], diagnostics: ServerDiagnostics) -> None:
    assert process.stdin is not None
    with contextlib.suppress(*_BROKEN):
        async with queued, process.stdin:
            async for line in queued:
                await process.stdin.send(line)
        return
    diagnostics.lost.set()


async def _wait_for_exit(process: Process, seconds: float) -> bool:
    """Return whether the process has ended, or ends within this time."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(POLL_SECONDS)
    return process.returncode is not None


async def _end_process(process: Process) -> None:
    """End the process if it still runs, and its children."""
    if process.returncode is None:
        _send_signal(process, signal.SIGTERM)
        await _wait_for_exit(process, TERMINATION_SECONDS)
    if _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM)):
        await _wait_for_exit(process, TERMINATION_SECONDS)
        with anyio.move_on_after(ORPHAN_SECONDS):
            while _send_signal(process, 0):  # noqa: ASYNC110
                await anyio.sleep(POLL_SECONDS)
    # If a process that left the group still holds the other ends of the pipes, only closing the event loop's transport
    # releases them, and anyio does not offer it.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with contextlib.suppress(OSError):
            transport.close()
    else:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(*_BROKEN):
                    await stream.aclose()
    await anyio.lowlevel.checkpoint()


def _send_signal(process: Process, number: int) -> bool:
    """Send a signal; return whether a process received it: the server, or on POSIX any process in its group."""
    if sys.platform == "win32":
        if process.returncode is not None:
            return False
        process.terminate()
        return True
    try:
        os.killpg(process.pid, number)
    except OSError:
        return False
    return True
