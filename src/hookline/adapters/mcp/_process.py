"""An MCP server as a process of ours: started, spoken to, listened to, and never left behind.

The client library has a transport of its own for this. Ours ends a hung server at once where the run was interrupted,
tells when the process is gone, keeps its stderr off the terminal, survives every kind of output, and bounds a line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
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

__all__ = ["LONGEST_MESSAGE", "Incoming", "Outgoing", "Witness", "parsed", "process_streams"]

LONGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes of one message beyond which a server is taken for one that floods."""

UNREADABLE = "its answer is no JSON-RPC response"

KEPT_WORDS = 2000
"""Characters of a server's stderr, its newest, that an error may show."""

FEW_WORDS = 300
"""And that the result of a call may show, which a model reads."""


LOOKED_AT = 64 * 1024
"""Bytes of a strange line that are looked through for secrets."""


class Witness:
    """What one connection has shown of its server, to say it in an error.

    Args:
        secrets: What must not be shown.

    Attributes:
        lost: Set once the server can be talked to no more.
        exit_code: Of its process; `None` while it runs, or where there is none.
        status: The HTTP status of its last answer, if that was a failure.
        strange: The first line that it wrote to stdout and that is no message.
        problem: Why the connection was given up.
    """

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self.lost = anyio.Event()
        self.exit_code: int | None = None
        self.status: int | None = None
        self.strange = ""
        self.problem = ""
        self._words = b""

    def hear(self, words: bytes) -> None:
        """Something that the server wrote to stderr."""
        self._words += words
        if len(self._words) > 8 * KEPT_WORDS:  # cut only where it is clean: half a secret would not be found again
            clean = self.secrets.clean(self._words.decode(errors="surrogateescape"))
            self._words = clean.encode(errors="surrogateescape")[-4 * KEPT_WORDS :]

    def note_strange(self, line: bytes) -> None:
        """A line of stdout that is no message."""
        # Far more is cleaned than shown, so that no half of a secret at its end is.
        self.strange = self.strange or self.secrets.clean(line[:LOOKED_AT].decode(errors="replace")).strip()[:200]

    def told(self, *, briefly: bool = False) -> str:
        """Everything that helps to understand why the server failed, as sentences, without secrets."""
        parts = [self.problem]
        if self.exit_code is not None:
            parts.append(f"Its process ended with exit code {self.exit_code}.")
        if self.status is not None:
            parts.append(f"It answered with HTTP status {self.status}.")
        if self.strange:
            parts.append(f"It wrote to stdout what is no MCP message: {self.strange!r}.")
        words = self.secrets.clean(self._words.decode(errors="replace")).strip()[
            -(FEW_WORDS if briefly else KEPT_WORDS) :
        ]
        if words:
            parts.append(f"The end of its stderr:\n{words}")
        return self.secrets.clean(" ".join(filter(None, parts)))


def parsed(line: bytes) -> SessionMessage | None:
    """One line as a message.

    An answer that is none of JSON-RPC's fails its request, which would wait for it in vain.

    Returns:
        `None` if nobody can be told of it.
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


class _End:
    """A stream that is closed by leaving it."""

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Incoming(_End):
    """Messages of the server. What it says of errors is rid of secrets before anybody logs or traces it.

    Args:
        receive: Where the messages come from.
        secrets: What is taken out.
    """

    def __init__(self, receive: MemoryObjectReceiveStream[SessionMessage | Exception], secrets: Secrets) -> None:
        self._receive, self._secrets = receive, secrets

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        item = await self._receive.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCError):
            error = item.message.error
            # The client quotes what it could not parse, cut in the middle, where a secret would not be found again.
            told = UNREADABLE if error.code == PARSE_ERROR else self._secrets.clean(error.message)
            item.message.error = ErrorData(code=error.code, message=told, data=error.data)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """No more is wanted."""
        self._receive.close()


class Outgoing(_End):
    """Messages to the server. Sending never waits, so that nobody who gives up a call waits for a server that hangs.

    Args:
        put: Takes a message, for somebody else to write.
        close: Says that there will be no more.
    """

    def __init__(self, put: Callable[[SessionMessage], None], close: Callable[[], None]) -> None:
        self._put, self._close = put, close

    async def send(self, item: SessionMessage) -> None:
        """Queue a message."""
        self._put(item)

    async def aclose(self) -> None:
        """No more will come."""
        self._close()


GRACE = 0.5
"""Seconds between asking a process to end and killing it."""

ORPHANS = 0.1
"""Seconds to see its children gone too. Where no init collects the dead, they stay in the list of processes."""

TICK = 0.005
"""Seconds between two looks at whether a process has ended: waiting for it would wait for its children's pipes too."""

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, OSError)


@asynccontextmanager
async def process_streams(settings: Settings, witness: Witness) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The streams of a server that is started for as long as this is open.

    Raises:
        OSError: If its process cannot be started.
    """
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
        group.start_soon(_read, process.stdout, deliver, witness)
        group.start_soon(_listen, process.stderr, witness)
        group.start_soon(_write, process, queued, witness)
        try:
            yield Incoming(delivered, witness.secrets), Outgoing(put, queue.close)
        except BaseException as error:
            if not isinstance(error, Exception):
                patience = 0.0  # cancelled: nobody waits for good manners
            raise
        finally:
            queue.close()  # the writer closes stdin behind the last message
            delivered.close()
            try:
                if await _gone(process, patience):
                    witness.exit_code = process.returncode
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                group.cancel_scope.cancel()


async def _read(
    stdout: ByteReceiveStream, deliver: MemoryObjectSendStream[SessionMessage | Exception], witness: Witness
) -> None:
    """Deliver messages until there are no more; then only keep the pipe empty."""
    with contextlib.suppress(*_BROKEN):
        async with deliver:
            try:
                await _read_messages(stdout, deliver, witness)
            finally:
                witness.lost.set()  # before those who wait for answers learn that there will be none
    with contextlib.suppress(*_BROKEN):
        while True:
            await stdout.receive()


async def _read_messages(
    stdout: ByteReceiveStream, deliver: MemoryObjectSendStream[SessionMessage | Exception], witness: Witness
) -> None:
    buffer, searched = bytearray(), 0
    async for chunk in stdout:
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            searched = 0
            message = parsed(line)
            if message is not None:
                await deliver.send(message)
            elif line.strip():
                witness.note_strange(line)
        searched = len(buffer)
        if searched > LONGEST_MESSAGE:
            witness.problem = f"It sent a line of more than {LONGEST_MESSAGE >> 20} MiB, and was ended."
            return


async def _listen(stderr: ByteReceiveStream, witness: Witness) -> None:
    with contextlib.suppress(*_BROKEN):
        async for words in stderr:
            witness.hear(words)


async def _write(process: Process, queued: MemoryObjectReceiveStream[bytes], witness: Witness) -> None:
    assert process.stdin is not None
    with contextlib.suppress(*_BROKEN):
        async with queued, process.stdin:
            async for line in queued:
                await process.stdin.send(line)
        return
    witness.lost.set()


async def _gone(process: Process, seconds: float) -> bool:
    """Whether the process has ended, or does so in time."""
    with anyio.move_on_after(seconds):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(TICK)
    return process.returncode is not None


async def _end(process: Process) -> None:
    """End the process, if it still runs, and what it has started."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        await _gone(process, GRACE)
    if _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM)):
        await _gone(process, GRACE)
        with anyio.move_on_after(ORPHANS):
            while _signal(process, 0):  # noqa: ASYNC110
                await anyio.sleep(TICK)
    # Of the event loop's own pipes nobody else lets go where a process that has left the group still holds the other
    # ends, and anyio does not offer them.
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


def _signal(process: Process, number: int) -> bool:
    """Whether there was somebody to signal: the process, or on POSIX any that it has started and left in its group."""
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
